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
	// readInterval is the time for which a reading of the memory in use is valid.
	readInterval = 100 * time.Millisecond
	// collectPause is the shortest time between two collections for refused clients. It doubles, up to
	// maxCollectPause, while memory stays short.
	collectPause    = 5 * time.Second
	maxCollectPause = time.Minute
)

// Guard refuses clients for lack of memory. Any goroutine may call its methods.
type Guard struct {
	read    func() (inUse, limit uint64)
	collect func()
	short   chan struct{} // one slot: a client was refused

	mu      sync.Mutex // guards the following fields
	percent int        // of the limit; 0: never
	until   time.Time  // the end of the last reading
	inUse   uint64     // of the last reading, as limit
	limit   uint64
}

// NewGuard returns a Guard that refuses clients above a percentage of the runtime's memory limit.
func NewGuard(percent int) *Guard {
	return &Guard{read: InUse, collect: runtime.GC, short: make(chan struct{}, 1), percent: percent}
}

// SetPercent changes the percentage. With 0 the Guard refuses no client.
func (g *Guard) SetPercent(percent int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.percent, g.until = percent, time.Time{}
}

// Run collects garbage while the Guard refuses clients, until ctx ends. Without a collection, memory of
// disconnected clients would still count as in use.
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
		over := g.over()
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

// over reads the memory in use, and reports whether it reaches the percentage. The caller holds mu.
func (g *Guard) over() bool {
	g.inUse, g.limit = g.read()
	return g.reaches(g.percent)
}

// reaches reports whether the memory in use reaches a percentage. The caller holds mu.
func (g *Guard) reaches(percent int) bool {
	if g.percent <= 0 || g.limit == 0 || g.limit >= math.MaxInt64 { // there is no limit
		return false
	}
	return float64(g.inUse) >= float64(g.limit)*float64(percent)/100
}

// Overloaded returns an error for clients while the memory in use reaches the percentage.
func (g *Guard) Overloaded() error { return g.refuse("clients", false) }

// Full returns an error for clients with an identity while the memory in use reaches the middle between the
// percentage and the limit.
func (g *Guard) Full() error { return g.refuse("clients with an identity", true) }

// refuse returns an error for clients that have an identity, or have none.
func (g *Guard) refuse(whom string, known bool) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if now := time.Now(); !now.Before(g.until) {
		g.until = now.Add(readInterval)
		if g.over() {
			select {
			case g.short <- struct{}{}:
			default: // Run has not handled the last signal
			}
		}
	}
	percent := g.percent
	if known {
		percent += (100 - percent) / 2
	}
	if !g.reaches(percent) {
		return nil
	}
	return fmt.Errorf("the relay refuses new %s: it uses %d MiB of its memory limit of %d MiB, and accepts %s below %d %%",
		whom, g.inUse>>20, g.limit>>20, whom, percent)
}

// InUse returns the memory in use and the runtime's memory limit, in bytes.
//
// Garbage and free spans count against the limit, although a collection frees them. So the memory in
// use is 1.1 times the memory left after a collection, but at most the memory that counts.
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

// subFloor returns a-b, or 0 if b is larger: metrics are not read at the same instant.
func subFloor(a, b uint64) uint64 { return a - min(a, b) }
