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
	if percent := gcPercent(); percent != startPercent {
		t.Errorf("GOGC is %d during the start, want %d", percent, startPercent)
	}
	runtime.GC() // ends a collection that is under way
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		started, done := make(chan struct{}), make(chan error)
		go func() { done <- c.Run(ctx, started) }()
		began := collections()
		time.Sleep(10 * quietTime)
		if n := collections() - began; n != 0 {
			t.Errorf("%d collections before the start is over", n)
		}
		close(started)
		time.Sleep(3 * quietTime)
		once := collections()
		if once == began {
			t.Error("no collection after the start")
		}
		if percent := gcPercent(); percent != runPercent {
			t.Errorf("GOGC is %d after the start, want %d", percent, runPercent)
		}
		time.Sleep(30 * quietTime)
		if n := collections() - once; n != 0 {
			t.Errorf("%d more collections, although nothing happens", n)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestGOGCTakesPrecedence(t *testing.T) {
	t.Setenv("GOGC", "150")
	c := quietCollector(t)
	if percent := gcPercent(); percent != 80 || c.tune {
		t.Errorf("GOGC was set to %d", percent)
	}
}
