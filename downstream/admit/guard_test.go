package admit

import (
	"context"
	"math"
	"runtime"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"meshrelay/internal/memory"
	"meshrelay/internal/testing/await"
)

// guardOf returns a Guard of a limit of 1000 MiB, of which the result is in use, in MiB.
func guardOf(inUse uint64) (*Guard, *atomic.Uint64) {
	g, used := NewGuard(), new(atomic.Uint64)
	used.Store(inUse)
	g.read = func() (uint64, uint64) { return used.Load() << 20, 1000 << 20 }
	g.collect = func() {}
	return g, used
}

func TestNewClientsAreRefusedBeforeTheMemoryLimit(t *testing.T) {
	for inUse, want := range map[uint64][2]bool{849: {}, 850: {true}, 919: {true}, 920: {true, true}, 1200: {true, true}} {
		g, _ := guardOf(inUse)
		if got := [2]bool{g.Overloaded(false) != nil, g.Overloaded(true) != nil}; got != want {
			t.Errorf("with %d of 1000 MiB, refused are those without an identity and those with one: %v", inUse, got)
		}
	}
	g, _ := guardOf(900)
	if err := g.Overloaded(false); !strings.Contains(err.Error(), "900 MiB of its memory limit of 1000 MiB, and accepts clients without an identity below 85 %") {
		t.Error(err)
	}
	for _, none := range []uint64{0, math.MaxInt64} {
		g.read = func() (uint64, uint64) { return 1 << 40, none }
		if g.until = (time.Time{}); g.Overloaded(false) != nil {
			t.Error("clients are refused without a limit")
		}
	}
}

func TestMemoryIsReadTenTimesASecondAtMost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewGuard()
		reads, inUse := 0, uint64(100)
		g.read = func() (uint64, uint64) { reads++; return inUse, 100 }
		for range 1000 {
			if g.Overloaded(true) == nil {
				t.Fatal("100 of 100 is not too much")
			}
		}
		inUse = 1
		await.Pass(readInterval - 1)
		if g.Overloaded(true) == nil || reads != 1 {
			t.Errorf("read %d times", reads)
		}
		await.Pass(time.Nanosecond)
		if g.Overloaded(true) != nil || reads != 2 {
			t.Errorf("what was read counts for too long: %d reads", reads)
		}
	})
}

// TestStreamsEndWhileMemoryIsShort: once a second, after a collection; where that is enough, less often is one made.
func TestStreamsEndWhileMemoryIsShort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, inUse := guardOf(990)
		var collected, shed atomic.Int64
		g.collect = func() { collected.Add(1) }
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- g.Run(ctx, func() { shed.Add(1) }) }()
		count := func(d time.Duration) (collections, sheds int64) {
			c, s := collected.Load(), shed.Load()
			await.Pass(d)
			synctest.Wait()
			return collected.Load() - c, shed.Load() - s
		}
		if c, s := count(10 * time.Second); s < 5 || s > 10 || c != s {
			t.Errorf("%d collections, and streams ended %d times, in ten seconds", c, s)
		}
		inUse.Store(900)
		if c, s := count(10 * time.Minute); s != 0 || c < 29 || c > 31 {
			t.Errorf("%d collections, and streams ended %d times, in ten minutes", c, s)
		}
		inUse.Store(1)
		if c, s := count(10 * time.Minute); c+s != 0 {
			t.Errorf("%d collections, and streams ended %d times, where there is enough", c, s)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// TestSheddingEndsWhenClientsHaveGone: also where nothing but the limit has garbage collected,
// which refused clients do not come near.
func TestSheddingEndsWhenClientsHaveGone(t *testing.T) {
	const mib = 1 << 20
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	runtime.GC()
	before, _ := memory.InUse()
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(int64(before) + 100*mib)) // some MiB
	for range 91 {
		held = append(held, make([]byte, mib))
	}
	runtime.GC()
	g := NewGuard()
	if g.Overloaded(false) == nil {
		t.Fatal("there is enough memory: the test shows nothing")
	}
	held = nil
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- g.Run(ctx, func() {}) }()
	await.Until(t, "clients are let in", func() bool { return g.Overloaded(false) == nil }, func() any { return g.Overloaded(false) })
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// held is what tests of memory hold on to.
var held [][]byte

func BenchmarkOverloaded(b *testing.B) {
	g := NewGuard()
	b.ReportAllocs()
	for b.Loop() {
		_ = g.Overloaded(true)
	}
}
