package memory

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

	"meshrelay/internal/testing/await"
)

func TestNewClientsAreShedBeforeTheMemoryLimit(t *testing.T) {
	const mib = 1 << 20
	for name, tc := range map[string]struct {
		percent      int
		inUse, limit uint64
		shed         bool
	}{
		"below":             {90, 899 * mib, 1000 * mib, false},
		"at":                {90, 900 * mib, 1000 * mib, true},
		"above the limit":   {90, 1200 * mib, 1000 * mib, true},
		"never":             {0, 1200 * mib, 1000 * mib, false},
		"no limit":          {90, 1200 * mib, math.MaxInt64, false},
		"a limit of nought": {90, 1200 * mib, 0, false},
		"100 is the limit":  {100, 999 * mib, 1000 * mib, false},
		"a large limit":     {90, math.MaxInt64 - 2, math.MaxInt64 - 1, true},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewGuard(tc.percent)
			g.read = func() (uint64, uint64) { return tc.inUse, tc.limit }
			err := g.Overloaded()
			if (err != nil) != tc.shed {
				t.Fatal(err)
			}
			if name == "at" && !strings.Contains(err.Error(), "900 MiB of its memory limit of 1000 MiB, and accepts clients below 90 %") {
				t.Error(err)
			}
		})
	}
}

func TestMemoryIsReadTenTimesASecondAtMost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewGuard(90)
		reads, inUse := 0, uint64(100)
		g.read = func() (uint64, uint64) { reads++; return inUse, 100 }
		for range 1000 {
			if g.Overloaded() == nil {
				t.Fatal("100 of 100 is not too much")
			}
		}
		inUse = 1
		await.Pass(readInterval - 1)
		if g.Overloaded() == nil || reads != 1 {
			t.Errorf("read %d times", reads)
		}
		await.Pass(time.Nanosecond)
		if g.Overloaded() != nil || reads != 2 {
			t.Errorf("what was read counts for too long: %d reads", reads)
		}
		// Another percentage counts at once.
		g.SetPercent(1)
		if g.Overloaded() == nil || reads != 3 {
			t.Errorf("the old percentage counts: %d reads", reads)
		}
		g.SetPercent(0)
		if g.Overloaded() != nil {
			t.Error("0 is never")
		}
	})
}

// TestGarbageIsCollectedWhileClientsAreTurnedAway, now and then as long as some come, and ever
// less often as long as that is of no use.
func TestGarbageIsCollectedWhileClientsAreTurnedAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewGuard(90)
		var inUse, collected atomic.Uint64
		inUse.Store(100)
		g.read = func() (uint64, uint64) { return inUse.Load(), 100 }
		g.collect = func() { collected.Add(1) }
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- g.Run(ctx) }()
		come := func(d time.Duration) {
			for end := time.Now().Add(d); time.Now().Before(end); await.Pass(readInterval) {
				_ = g.Overloaded()
			}
			synctest.Wait()
		}
		come(10 * collectPause)
		if collections := collected.Load(); collections != 3 { // at once, after two pauses, and after four more
			t.Errorf("%d collections in %v, want 3", collections, 10*collectPause)
		}
		come(10 * time.Minute)
		if collections := collected.Load(); collections > 13 || collections < 11 {
			t.Errorf("%d collections in ten minutes more, want one a minute", collections-3)
		}
		inUse.Store(1)
		come(2 * maxCollectPause) // one may be due for who came before
		was := collected.Load()
		come(2 * maxCollectPause)
		if collections := collected.Load(); collections != was {
			t.Errorf("%d collections where there is enough", collections-was)
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
	before, _ := InUse()
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(int64(before) + 100*mib)) // some MiB
	for range 91 {
		held = append(held, make([]byte, mib))
	}
	runtime.GC()
	g := NewGuard(90)
	if g.Overloaded() == nil {
		t.Fatal("there is enough memory: the test shows nothing")
	}
	held = nil
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- g.Run(ctx) }()
	await.Until(t, "clients are let in", func() bool { return g.Overloaded() == nil }, func() any { return g.Overloaded() })
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// held is what tests of memory hold on to.
var held [][]byte

func TestGarbageIsNotInUse(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // nothing is collected but by us
	runtime.GC()
	before, _ := InUse()
	for range 64 {
		held = append(held, make([]byte, 1<<20))
	}
	held = nil
	garbage, _ := InUse()
	if garbage > before+16<<20 {
		t.Errorf("with 64 MiB of garbage %d MiB more count as in use", (garbage-before)>>20)
	}
	for range 64 {
		held = append(held, make([]byte, 1<<20))
	}
	runtime.GC()
	used, limit := InUse()
	if used < before+64<<20 {
		t.Errorf("with 64 MiB more held only %d MiB more are in use", int64(used-before)>>20)
	}
	if limit == 0 {
		t.Error("no limit is math.MaxInt64")
	}
	held = nil
}

func BenchmarkOverloaded(b *testing.B) {
	g := NewGuard(90)
	b.ReportAllocs()
	for b.Loop() {
		_ = g.Overloaded()
	}
}
