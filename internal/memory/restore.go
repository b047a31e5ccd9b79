package memory

import (
	"context"
	"math"
	"runtime/debug"
	"time"
)

const (
	// perStored is the memory, in bytes per byte on disk, that a restore and the first answers need. It
	// includes garbage.
	perStored = 6
	// Collections wait at most restoreTime for a restore and the first answers to clients, and at most
	// answerTime for these answers alone.
	restoreTime = 10 * time.Second
	answerTime  = time.Second
	// leastHeap is the smallest live heap to which GOGC applies: with GOGC=100, no collection starts
	// below this size (see package runtime).
	leastHeap = 4 << 20
)

// Restores sets the size of the state, in bytes, that the start reads from disk. A restore makes
// almost no garbage, so Run delays collections until it ends. Call Restores before Run.
func (c *Collector) Restores(onDisk int64) { c.onDisk = onDisk }

// awaitRestore sets GOGC so high that no collection starts until the state is restored and the first
// clients have their answers, or until more memory is in use than a restore of this size needs.
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

// restoreRoom returns the bytes of memory that a restore needs, at most half of the limit.
func restoreRoom(onDisk, limit int64) int64 {
	return min(min(onDisk, limit/perStored)*perStored, limit/2)
}

// restorePercent returns the GOGC at which the next collection starts when the heap has grown by room
// bytes since the last one.
func restorePercent(room int64, held uint64) int {
	return int(min(room/(max(int64(min(held, math.MaxInt64)), leastHeap)/100), math.MaxInt32)) // bounded
}
