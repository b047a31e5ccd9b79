package main

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync"
	"sync/atomic"
	"time"
)

// memoryLook is how long what was read of the memory in use counts.
const memoryLook = 100 * time.Millisecond

// memoryCollect is how long, at least, it is until garbage is collected again because clients
// are turned away. It grows up to memoryCollectMost while that is of no use.
const (
	memoryCollect     = 5 * time.Second
	memoryCollectMost = time.Minute
)

// memoryGuard says when there is too little memory left for more clients. Its methods may be
// called from any goroutine.
type memoryGuard struct {
	percent atomic.Int64 // of the limit; 0: never
	read    func() (inUse, limit uint64)
	collect func()
	short   chan struct{} // one slot: a client was turned away

	mu sync.Mutex
	// until is when the verdict, nil when there is enough, has to be worked out again.
	until   time.Time
	of      int64 // the percent that the verdict is of
	verdict error
}

// newMemoryGuard returns a guard that allows a percentage of the runtime's memory limit to be
// in use.
func newMemoryGuard(percent int) *memoryGuard {
	g := &memoryGuard{read: memoryInUse, collect: runtime.GC, short: make(chan struct{}, 1)}
	g.setPercent(percent)
	return g
}

// setPercent changes how much may be in use. 0 allows everything.
func (g *memoryGuard) setPercent(percent int) { g.percent.Store(int64(percent)) }

// run collects garbage while clients are turned away, now and then, until ctx ends. What
// clients held that have gone counts as in use until it is collected, and while no new ones
// are taken on there may be no reason for that: with GOGC=off, none at all.
func (g *memoryGuard) run(ctx context.Context) error {
	pause := memoryCollect
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-g.short:
			g.collect()
		}
		if _, _, over := g.over(g.percent.Load()); over {
			pause = min(2*pause, memoryCollectMost)
		} else {
			pause = memoryCollect
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
	}
}

// over reports whether as much memory is in use as is allowed.
func (g *memoryGuard) over(percent int64) (inUse, limit uint64, over bool) {
	inUse, limit = g.read()
	if percent <= 0 || limit == 0 || limit >= math.MaxInt64 { // there is none
		return inUse, limit, false
	}
	return inUse, limit, float64(inUse) >= float64(limit)*float64(percent)/100
}

// Overloaded returns an error, for clients, while as much memory is in use as is allowed.
func (g *memoryGuard) Overloaded() error {
	percent := g.percent.Load()
	if percent <= 0 {
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	if now.Before(g.until) && g.of == percent {
		return g.verdict
	}
	g.until, g.of, g.verdict = now.Add(memoryLook), percent, nil
	if inUse, limit, over := g.over(percent); over {
		g.verdict = fmt.Errorf("the relay takes no more clients for now: %d MiB of its memory limit of %d MiB are in use, and new clients are taken below %d %%",
			inUse>>20, limit>>20, percent)
		select {
		case g.short <- struct{}{}:
		default: // it is about to be seen to
		}
	}
	return g.verdict
}

// memoryInUse returns how much of the runtime's memory limit is in use, in bytes, and the
// limit.
//
// What counts against the limit has garbage in it, a third with the usual GOGC, and spans
// that are free: while there is that, there is room. What is in use is therefore what a
// collection would leave, and a tenth of it for the collector to work in, but never more than
// what counts against the limit.
func memoryInUse() (inUse, limit uint64) {
	samples := []metrics.Sample{
		{Name: "/memory/classes/total:bytes"},
		{Name: "/memory/classes/heap/released:bytes"},
		{Name: "/memory/classes/heap/free:bytes"},
		{Name: "/memory/classes/heap/objects:bytes"},
		{Name: "/gc/heap/live:bytes"},
	}
	metrics.Read(samples)
	of := func(i int) uint64 { return samples[i].Value.Uint64() }
	counted := less(of(0), of(1))
	left := less(less(counted, of(2)), less(of(3), of(4)))
	return min(counted, left+left/10), uint64(debug.SetMemoryLimit(-1))
}

// less returns a-b, or 0: figures that are read one after the other need not agree.
func less(a, b uint64) uint64 { return a - min(a, b) }
