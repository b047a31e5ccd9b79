package push

import (
	"sync/atomic"
	"time"

	"meshrelay/mirror"
)

// Work counts the work of pushes. Whoever does the work reports it. No method blocks, and any goroutine
// may call all of them.
type Work struct {
	busy    atomic.Int64 // nanoseconds of all CPUs
	told    atomic.Int64 // calls of Told
	reached atomic.Int64 // calls of Reached
	enough  atomic.Int64 // the value of reached when the last push has reached most clients
	wake    chan struct{}
}

// NewWork returns a Work without work.
func NewWork() *Work { return &Work{wake: make(chan struct{}, 1)} }

const (
	// mostFixed and mostPerByte bound the CPU time that counts for a response to one client. The rest of
	// the elapsed time is waiting: for the client, or for a goroutine that encodes the same.
	mostFixed   = 50 * time.Microsecond
	mostPerByte = time.Nanosecond
)

// Busy adds CPU time.
func (w *Work) Busy(d time.Duration) { w.busy.Add(int64(d)) }

// BusyWith adds the time of sending a number of bytes to one client.
func (w *Work) BusyWith(bytes int, took time.Duration) {
	w.Busy(min(took, mostFixed+time.Duration(bytes)*mostPerByte))
}

// Total returns the CPU time so far.
func (w *Work) Total() time.Duration { return time.Duration(w.busy.Load()) }

// Told counts a client that a push concerns. A client does not count while it has not reached an
// earlier push, or while its transport has not taken a response.
func (w *Work) Told() { w.told.Add(1) }

// Reached counts a client for which all responses are encoded. Its transport may still be sending.
func (w *Work) Reached() {
	if w.reached.Add(1) == w.enough.Load() {
		mirror.Signal(w.wake)
	}
}

// track runs push, and counts its calls of Told. After that, hasReached returns true once Reached was called
// at least half as often.
func (w *Work) track(push func()) {
	told, reached := w.told.Load(), w.reached.Load()
	push()
	w.enough.Store(reached + (w.told.Load()-told+1)/2)
}

func (w *Work) hasReached() bool { return w.reached.Load() >= w.enough.Load() }
