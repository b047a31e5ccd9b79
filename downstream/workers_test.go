package downstream

import (
	"sync"
	"testing"
	"testing/synctest"
)

// jobFunc is a job of a test.
type jobFunc func()

func (f jobFunc) run() { f() }

// TestWorkersDoNotWaitForEachOther: a job that takes long delays no other one.
func TestWorkersDoNotWaitForEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w workers
		long, ran := make(chan struct{}), 0
		for range 3 * maxResting {
			w.do(jobFunc(func() { <-long }))
		}
		var mu sync.Mutex
		for range 100 {
			w.do(jobFunc(func() { mu.Lock(); ran++; mu.Unlock() }))
		}
		synctest.Wait()
		if mu.Lock(); ran != 100 {
			t.Errorf("%d of 100 jobs ran beside long ones", ran)
		}
		mu.Unlock()
		close(long)
		synctest.Wait()
		if len(w.resting) != maxResting {
			t.Errorf("%d workers rest, want %d", len(w.resting), maxResting)
		}
		w.close()
	})
}

// TestWorkersThatNobodyNeedsEnd: those of one burst do not outlive the next look, and one that is used stays.
func TestWorkersThatNobodyNeedsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w workers
		hold := make(chan struct{})
		for range 10 {
			w.do(jobFunc(func() { <-hold }))
		}
		close(hold)
		synctest.Wait()
		w.thin() // they have worked since the last look
		if len(w.resting) != 10 {
			t.Fatalf("%d workers rest after a burst of 10", len(w.resting))
		}
		w.do(jobFunc(func() {}))
		synctest.Wait()
		w.thin()
		if len(w.resting) != 1 {
			t.Errorf("%d workers rest, and one was needed", len(w.resting))
		}
		w.thin()
		if len(w.resting) != 0 {
			t.Errorf("%d workers rest, and none was needed", len(w.resting))
		}
		w.do(jobFunc(func() {}))
		w.close() // the bubble fails when a goroutine stays
	})
}
