package downstream

import (
	"slices"
	"sync"
)

// maxResting is how many goroutines of workers wait for more.
const maxResting = 4 * wakeBatch

// workers runs jobs, each in a goroutine of its own for as long as it takes. A few goroutines wait for
// more, the last to end first in turn: their stacks have grown, while a new one would begin with a small
// stack and move it, and after each push every client has two short jobs.
type workers struct {
	mu      sync.Mutex // guards all below
	resting []chan job
	least   int // how many rested all the time since thin
	closed  bool
}

type job interface{ run() }

// do runs a job. It does not wait for it.
func (w *workers) do(j job) {
	w.mu.Lock()
	n := len(w.resting)
	if n == 0 {
		w.mu.Unlock()
		go w.work(j)
		return
	}
	next := w.resting[n-1]
	w.resting = w.resting[:n-1]
	w.least = min(w.least, n-1)
	w.mu.Unlock()
	next <- j
}

// work runs a job, and then those that come while it rests.
func (w *workers) work(j job) {
	jobs := make(chan job, 1)
	for more := true; more; j, more = <-jobs {
		j.run()
		if !w.rest(jobs) {
			return
		}
	}
}

// rest has a goroutine wait for jobs, unless enough do.
func (w *workers) rest(jobs chan job) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed || len(w.resting) == maxResting {
		return false
	}
	w.resting = append(w.resting, jobs)
	return true
}

// thin ends the goroutines that nobody needed since the last call.
func (w *workers) thin() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.end(w.least)
	w.least = len(w.resting)
}

// close ends the goroutines that wait. Others end after their job.
func (w *workers) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	w.end(len(w.resting))
}

// end ends the n goroutines that rest the longest. The caller holds mu.
func (w *workers) end(n int) {
	for _, jobs := range w.resting[:n] {
		close(jobs)
	}
	w.resting = slices.Delete(w.resting, 0, n)
}
