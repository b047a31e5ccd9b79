package main

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

func quietMemory(t *testing.T) *memory {
	t.Helper()
	percent, limit := debug.SetGCPercent(100), debug.SetMemoryLimit(-1)
	t.Cleanup(func() { debug.SetGCPercent(percent); debug.SetMemoryLimit(limit) })
	return newMemory(slog.New(slog.NewTextHandler(io.Discard, nil)))
}

func TestQuietRelayIsCollectedOnce(t *testing.T) {
	t.Setenv("GOGC", "")
	m := quietMemory(t)
	if len(m.ballast) == 0 {
		t.Error("nothing puts collections off during the start")
	}
	runtime.GC() // ends the collection that making the ballast has set off
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		released, done := make(chan struct{}), make(chan error)
		go func() { done <- m.run(ctx, released) }()
		began := collections()
		time.Sleep(10 * quietTime)
		if n := collections() - began; n != 0 {
			t.Errorf("%d collections before the start is over", n)
		}
		close(released)
		time.Sleep(3 * quietTime)
		once := collections()
		if once == began {
			t.Error("what the start took is not given back")
		}
		time.Sleep(30 * quietTime)
		if n := collections() - once; n != 0 {
			t.Errorf("%d more collections, although nothing happens", n)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if m.ballast != nil {
			t.Error("the ballast outlives the start")
		}
	})
}

func TestGOGCTakesPrecedence(t *testing.T) {
	t.Setenv("GOGC", "150")
	m := quietMemory(t)
	if percent := debug.SetGCPercent(100); percent != 100 || m.tune || m.ballast != nil {
		t.Errorf("the collector is tuned to %d %% all the same", percent)
	}
}
