package memory

import (
	"context"
	"math"
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
	// leastHeap is what counts as held at least, when GOGC is applied to it: with 100 a collection
	// starts at this size at the earliest, as documented in runtime.
	leastHeap = 4 << 20
)

// Restores has the start count on that many bytes of state that are read from disk: nearly all of
// what comes of them stays, so that collections meanwhile find nothing. It is called before Run.
func (c *Collector) Restores(onDisk int64) { c.onDisk = onDisk }

// awaitRestore has collections wait until a restore is over, and its first answers are on their way,
// or more is in use than that takes. It looks at what each collection has left: GOGC applies to that.
func (c *Collector) awaitRestore(ctx context.Context, started <-chan struct{}) {
	room := restoreRoom(c.onDisk, debug.SetMemoryLimit(-1))
	defer debug.SetGCPercent(mostPercent)
	tick := time.NewTicker(adjustInterval)
	defer tick.Stop()
	over := time.After(restoreTime)
	for percent := mostPercent; ; {
		next := restorePercent(room, heldBytes())
		if next <= mostPercent {
			return
		}
		if next != percent {
			percent = next
			debug.SetGCPercent(percent)
		}
		select {
		case <-ctx.Done():
			return
		case <-over:
			return
		case <-started:
			started, over = nil, time.After(answerTime)
		case <-tick.C:
		}
	}
}

// restoreRoom returns how much memory a restore takes, at most half of the limit.
func restoreRoom(onDisk, limit int64) int64 {
	return min(min(onDisk, limit/perStored)*perStored, limit/2)
}

// restorePercent returns the GOGC with which nothing is collected before room bytes more are in use than
// the last collection has left.
func restorePercent(room int64, held uint64) int {
	return int(min(room/(max(int64(min(held, math.MaxInt64)), leastHeap)/100), math.MaxInt32)) //nolint:gosec // bounded
}
