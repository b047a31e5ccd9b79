package memory

import (
	"context"
	"io"
	"log/slog"
	"runtime"
	"runtime/debug"
	"testing"
	"testing/synctest"
	"time"

	"meshrelay/internal/testing/await"
)

// gcPercent returns GOGC.
func gcPercent() int {
	percent := debug.SetGCPercent(100)
	debug.SetGCPercent(percent)
	return percent
}

func quietCollector(t *testing.T) *Collector {
	t.Helper()
	percent, limit := debug.SetGCPercent(80), debug.SetMemoryLimit(-1)
	t.Cleanup(func() { debug.SetGCPercent(percent); debug.SetMemoryLimit(limit) })
	return NewCollector(slog.New(slog.NewTextHandler(io.Discard, nil)))
}

func TestQuietRelayIsCollectedOnce(t *testing.T) {
	t.Setenv("GOGC", "")
	c := quietCollector(t)
	if percent := gcPercent(); percent != mostPercent {
		t.Errorf("GOGC is %d as the start begins, want %d", percent, mostPercent)
	}
	runtime.GC() // ends a collection that is under way
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		started, done := make(chan struct{}), make(chan error)
		go func() { done <- c.Run(ctx, started) }()
		began := collections()
		await.Pass(10 * quietTime)
		if n := collections() - began; n != 0 {
			t.Errorf("%d collections before the start is over", n)
		}
		close(started)
		await.Pass(3 * quietTime)
		once := collections()
		if once == began {
			t.Error("no collection after the start")
		}
		if percent := gcPercent(); percent != runPercent {
			t.Errorf("GOGC is %d after the start, want %d", percent, runPercent)
		}
		await.Pass(30 * quietTime)
		if n := collections() - once; n != 0 {
			t.Errorf("%d more collections, although nothing happens", n)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// TestSteadyWorkIsNotQuiet: a relay that makes garbage all the time collects by itself.
func TestSteadyWorkIsNotQuiet(t *testing.T) {
	t.Setenv("GOGC", "")
	c := quietCollector(t)
	forced := func() uint64 { return metric("/gc/cycles/forced:gc-cycles") }
	runtime.GC()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		started, done := make(chan struct{}), make(chan error)
		close(started)
		go func() { done <- c.Run(ctx, started) }()
		began := forced()
		var garbage []byte
		for range 20 {
			await.Pass(quietTime / 2)
			garbage = make([]byte, max(quietBytes, heldBytes()/quietPart))
		}
		runtime.KeepAlive(garbage)
		if n := forced() - began; n != 0 {
			t.Errorf("%d collections of its own while there is work", n)
		}
		await.Pass(10 * quietTime) // no time passes for a collection that is under way
		if forced() == began {
			t.Error("no collection after the work")
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// With many stacks a collection costs more, so that a small heap may have more garbage.
func TestGarbageOfAStartFallsAsItGrows(t *testing.T) {
	for held, want := range map[uint64]int{0: 150, 4 << 20: 150, 48 << 20: 150, 64 << 20: 137, 96 << 20: 87, 192 << 20: 37, 320 << 20: 17, 480 << 20: 12, 8 << 30: 12} {
		if got := startPercent(held, 0); got != want {
			t.Errorf("with %d MiB held GOGC is %d, want %d", held>>20, got, want)
		}
	}
	for stacks, want := range map[uint64]int{1 << 20: 150, 4 << 20: 200, 8 << 20: 400, 1 << 30: 1187} {
		if got := startPercent(8<<20, stacks); got != want {
			t.Errorf("with 8 MiB held, and %d MiB of stacks, GOGC is %d, want %d", stacks>>20, got, want)
		}
	}
}

func TestStartFollowsTheHeap(t *testing.T) {
	t.Setenv("GOGC", "")
	c := quietCollector(t)
	held := make([]byte, startGarbage)
	runtime.GC()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- c.Run(ctx, nil) }()
		await.Pass(2 * adjustInterval)
		if percent := gcPercent(); percent < leastPercent || percent > 100 {
			t.Errorf("GOGC is %d with %d bytes held", percent, len(held))
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	runtime.KeepAlive(held)
}

func TestGOGCTakesPrecedence(t *testing.T) {
	t.Setenv("GOGC", "150")
	c := quietCollector(t)
	if percent := gcPercent(); percent != 80 || c.tune {
		t.Errorf("GOGC was set to %d", percent)
	}
}

// TestAQuietRelayCollectsOnlyAfterGrowth: a relay that allocates so slowly that it is quiet collects by
// itself now and then, and no more often for that; a storm that is over is collected for once.
func TestAQuietRelayCollectsOnlyAfterGrowth(t *testing.T) {
	t.Setenv("GOGC", "")
	c := quietCollector(t)
	forced := func() uint64 { return metric("/gc/cycles/forced:gc-cycles") }
	runtime.GC()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		started, done := make(chan struct{}), make(chan error)
		close(started)
		go func() { done <- c.Run(ctx, started) }()
		await.Pass(3 * quietTime)
		synctest.Wait()
		began := forced()
		const minutes, often = 10, 12 // often in a minute
		for range minutes * often {
			runtime.GC() // as by itself
			await.Pass(time.Minute / often)
		}
		synctest.Wait()
		if own := forced() - began - minutes*often; own != 0 {
			t.Errorf("%d collections of its own in %d minutes", own, minutes)
		}
		for range 3 {
			began = forced()
			storm := make([]byte, residentBytes()+2*growBytes)
			runtime.GC()
			runtime.KeepAlive(storm)
			runtime.GC() // the storm is over
			await.Pass(quietAgain + 2*quietTime)
			synctest.Wait()
			if own := forced() - began - 2; own == 0 || own > 2 {
				t.Errorf("%d collections of its own after a storm, resident %d", own, residentBytes())
			}
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
