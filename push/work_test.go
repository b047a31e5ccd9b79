package push

import (
	"testing"
	"time"
)

func TestWaitingIsNoWork(t *testing.T) {
	w := NewWork()
	w.Busy(time.Second)
	w.BusyWith(100, 20*time.Microsecond)
	w.BusyWith(0, time.Hour)
	w.BusyWith(4_000_000, time.Hour)
	if got, want := w.Total(), time.Second+20*time.Microsecond+50*time.Microsecond+4050*time.Microsecond; got != want {
		t.Errorf("the work is %v, want %v", got, want)
	}
}

// TestAPushHasReachedMostOnceHalfHaveGotToIt, of those that it has told.
func TestAPushHasReachedMostOnceHalfHaveGotToIt(t *testing.T) {
	w := NewWork()
	w.Told() // by an earlier push, and does not get to it
	w.track(func() {
		for range 5 {
			w.Told()
		}
		w.Reached()
	})
	for n := range 2 {
		if w.hasReached() {
			t.Errorf("the push has reached most when %d of 5 have got to it", 1+n)
		}
		w.Reached()
	}
	select {
	case <-w.wake:
	default:
		t.Error("the pusher is not woken")
	}
	if !w.hasReached() {
		t.Error("the push has not reached most when 3 of 5 have got to it")
	}
	w.track(func() {})
	if !w.hasReached() {
		t.Error("a push that nobody is told of waits for somebody")
	}
}

func TestReportsMakeNoGarbage(t *testing.T) {
	w := NewWork()
	if n := testing.AllocsPerRun(100, func() { w.Told(); w.BusyWith(1, 1); w.Reached() }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
