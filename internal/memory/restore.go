package memory

import (
	"context"
	"runtime/debug"
	"time"
)

const (
	// perStored is how much memory a restore takes for each byte on disk, with its garbage and the
	// first answers.
	perStored = 6
	// restoreTime bounds how long collections wait for a restore and its first answers, and
	// answerTime how long for the answers alone.
	restoreTime = 10 * time.Second
	answerTime  = time.Second
	// leastHeap is the size of the heap at which a collection starts at the earliest with a GOGC of
	// 100, as documented in runtime.
	leastHeap = 4 << 20
)

// Restores has the start count on that many bytes of state that are read from disk: nearly all of
// what comes of them stays, so that collections meanwhile find nothing. It is called before Run.
func (c *Collector) Restores(onDisk int64) { c.onDisk = onDisk }

// awaitRestore has collections wait until a restore is over, and its first answers are on their way,
// or the heap is larger than that takes.
func (c *Collector) awaitRestore(ctx context.Context, started <-chan struct{}) {
	percent := restorePercent(c.onDisk, debug.SetMemoryLimit(-1))
	if percent <= mostPercent {
		return
	}
	debug.SetGCPercent(percent)
	defer debug.SetGCPercent(mostPercent)
	select {
	case <-ctx.Done():
	case <-time.After(restoreTime):
	case <-started:
		select {
		case <-ctx.Done():
		case <-time.After(answerTime):
		}
	}
}

// restorePercent returns the GOGC with which nothing is collected before what a restore takes, at
// most half of the limit, is in use.
func restorePercent(onDisk, limit int64) int {
	return int(min(min(onDisk, limit/perStored)*perStored, limit/2) / (leastHeap / 100)) //nolint:gosec // bounded by the limit
}
