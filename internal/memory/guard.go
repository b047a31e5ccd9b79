package memory

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync"
	"time"
)

const (
	// readInterval is the time for which a reading of the memory in use counts.
	readInterval = 100 * time.Millisecond
	// collectPause is the least time between two collections for refused clients. It grows up
	// to maxCollectPause while collecting does not help.
	collectPause    = 5 * time.Second
	maxCollectPause = time.Minute
)

// Guard refuses clients for lack of memory. Any goroutine may call its methods.
type Guard struct {
	read    func() (inUse, limit uint64)
	collect func()
	short   chan struct{} // one slot: it has refused a client

	mu      sync.Mutex // guards the percentage and its last verdict
	percent int        // of the limit; 0: never
	until   time.Time  // the end of the verdict
	verdict error      // nil: there is enough memory
}

// NewGuard returns a Guard that allows the use of a percentage of the runtime's memory limit.
func NewGuard(percent int) *Guard {
	return &Guard{read: InUse, collect: runtime.GC, short: make(chan struct{}, 1), percent: percent}
}

// SetPercent changes the percentage. 0 allows everything.
func (g *Guard) SetPercent(percent int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.percent, g.until = percent, time.Time{}
}

// Run collects garbage while the Guard refuses clients, until ctx ends. Memory of clients that
// have gone counts as in use until a collection, and nothing else may start one.
func (g *Guard) Run(ctx context.Context) error {
	pause := collectPause
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-g.short:
			g.collect()
		}
		g.mu.Lock()
		_, _, over := g.over()
		g.mu.Unlock()
		if over {
			pause = min(2*pause, maxCollectPause)
		} else {
			pause = collectPause
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
	}
}

// over reports whether the memory in use reaches the percentage.
func (g *Guard) over() (inUse, limit uint64, over bool) {
	inUse, limit = g.read()
	if g.percent <= 0 || limit == 0 || limit >= math.MaxInt64 { // there is no limit
		return inUse, limit, false
	}
	return inUse, limit, float64(inUse) >= float64(limit)*float64(g.percent)/100
}

// Overloaded returns an error for clients while the memory in use reaches the percentage.
func (g *Guard) Overloaded() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	if now.Before(g.until) {
		return g.verdict
	}
	g.until, g.verdict = now.Add(readInterval), nil
	if inUse, limit, over := g.over(); over {
		g.verdict = fmt.Errorf("the relay takes no more clients for now: %d MiB of its memory limit of %d MiB are in use, and new clients are taken below %d %%",
			inUse>>20, limit>>20, g.percent)
		select {
		case g.short <- struct{}{}:
		default: // a collection is due already
		}
	}
	return g.verdict
}

// InUse returns the memory in use and the runtime's memory limit, in bytes.
//
// Garbage and free spans count against the limit, and are room. In use is therefore the memory
// after a collection and a tenth of it for the collector, but at most the memory that counts.
func InUse() (inUse, limit uint64) {
	samples := []metrics.Sample{
		{Name: "/memory/classes/total:bytes"},
		{Name: "/memory/classes/heap/released:bytes"},
		{Name: "/memory/classes/heap/free:bytes"},
		{Name: "/memory/classes/heap/objects:bytes"},
		{Name: "/gc/heap/live:bytes"},
	}
	metrics.Read(samples)
	of := func(i int) uint64 { return samples[i].Value.Uint64() }
	counted := subFloor(of(0), of(1))
	left := subFloor(subFloor(counted, of(2)), subFloor(of(3), of(4)))
	return min(counted, left+left/10), uint64(debug.SetMemoryLimit(-1))
}

// subFloor returns a-b, or 0: figures that are read one after the other need not agree.
func subFloor(a, b uint64) uint64 { return a - min(a, b) }
