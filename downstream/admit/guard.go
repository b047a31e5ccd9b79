package admit

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"sync"
	"time"

	"meshrelay/internal/memory"
)

const (
	// unprovenBelow, provenBelow and endAbove are parts of the memory limit, in percent. New streams of peers without
	// an identity are refused from the first, and all new streams from the second. From the third, streams end.
	unprovenBelow, provenBelow, endAbove = 85, 92, 95
	// readInterval is the time for which a reading of the memory in use is valid.
	readInterval = 100 * time.Millisecond
	// lookInterval is the time between two looks of Guard.Run, and collectPause the one between two collections of
	// garbage where they are enough.
	lookInterval, collectPause = time.Second, 20 * time.Second
)

// Guard refuses clients, and has them sent away, for lack of memory. Any goroutine may call its methods.
type Guard struct {
	read    func() (inUse, limit uint64)
	collect func()

	mu           sync.Mutex // guards the following fields
	until        time.Time  // the end of the last reading
	inUse, limit uint64     // of the last reading
}

// NewGuard returns a Guard of the runtime's memory limit. Without one it does nothing.
func NewGuard() *Guard { return &Guard{read: memory.InUse, collect: runtime.GC} }

// Run ends streams while they take too much, by calls of shed, until ctx ends. It looks right after a collection of
// garbage, and has that made: what clients had that are gone counts as live until the next one, which the runtime makes
// when the heap has grown, or after two minutes. Refused clients let none grow, so others would be sent away for garbage.
func (g *Guard) Run(ctx context.Context, shed func()) error {
	tick := time.NewTicker(lookInterval)
	defer tick.Stop()
	for next := time.Now(); ; {
		select {
		case <-ctx.Done():
			return nil
		case now := <-tick.C:
			if !g.above(unprovenBelow, true) || now.Before(next) {
				continue
			}
			g.collect()
			if next = now.Add(collectPause); g.above(endAbove, true) {
				shed()
				next = now
			}
		}
	}
}

// above reports whether the memory in use reaches a part of the limit. It reads it anew if fresh, or after
// readInterval.
func (g *Guard) above(percent int, fresh bool) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if now := time.Now(); fresh || !now.Before(g.until) {
		g.until = now.Add(readInterval)
		g.inUse, g.limit = g.read()
	}
	if g.limit == 0 || g.limit >= math.MaxInt64 { // there is no limit
		return false
	}
	return float64(g.inUse) >= float64(g.limit)*float64(percent)/100
}

// Overloaded returns why new streams of peers are refused that have proven an identity, or none; nil if they are not.
func (g *Guard) Overloaded(proven bool) error {
	whom, below := "clients without an identity", unprovenBelow
	if proven {
		whom, below = "clients", provenBelow
	}
	if !g.above(below, false) {
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return fmt.Errorf("the relay refuses new %s: it uses %d MiB of its memory limit of %d MiB, and accepts %s below %d %%",
		whom, g.inUse>>20, g.limit>>20, whom, below)
}
