package push

import (
	"sync/atomic"
	"time"
)

// Work is the work that pushes make. Those who do it report it; none of the methods blocks, and
// all may be called from any goroutine.
type Work struct {
	busy    atomic.Int64 // nanoseconds, of all CPUs
	told    atomic.Int64 // how often a client was told of a push
	reached atomic.Int64 // how often a client has got to that
	enough  atomic.Int64 // what reached is once the last push has reached most clients
	wake    chan struct{}
}

// NewWork returns a Work of which nothing is done.
func NewWork() *Work { return &Work{wake: make(chan struct{}, 1)} }

const (
	// mostFixed and mostPerByte are how long a CPU works on so many bytes for one client at most.
	// What that takes longer, it waits: for others who make the same, or for the client.
	mostFixed   = 50 * time.Microsecond
	mostPerByte = time.Nanosecond
)

// Busy adds time that a CPU worked.
func (w *Work) Busy(d time.Duration) { w.busy.Add(int64(d)) }

// BusyWith adds the time that it took to bring so many bytes on their way to one client.
func (w *Work) BusyWith(bytes int, took time.Duration) {
	w.Busy(min(took, mostFixed+time.Duration(bytes)*mostPerByte))
}

// Total returns the time that CPUs worked so far.
func (w *Work) Total() time.Duration { return time.Duration(w.busy.Load()) }

// Told counts a client that is told of a push, unless it has not got to an earlier one, or its
// transport is still to take a response.
func (w *Work) Told() { w.told.Add(1) }

// Reached counts a client whose responses to all that it was told of are made. Its transport may
// still be slow to take them.
func (w *Work) Reached() {
	if w.reached.Add(1) == w.enough.Load() {
		select {
		case w.wake <- struct{}{}:
		default:
		}
	}
}

// track runs push. Then hasReached is true once half of the clients that push told have got to
// it: those that have been told before, and have not got to that, do not count.
func (w *Work) track(push func()) {
	told, reached := w.told.Load(), w.reached.Load()
	push()
	w.enough.Store(reached + (w.told.Load()-told+1)/2)
}

func (w *Work) hasReached() bool { return w.reached.Load() >= w.enough.Load() }
