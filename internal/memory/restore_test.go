package memory

import (
	"context"
	"math"
	"runtime"
	"testing"
	"testing/synctest"
	"time"
)

func TestCollectionsWaitForWhatARestoreTakes(t *testing.T) {
	const mib = 1 << 20
	for _, tc := range []struct {
		onDisk, limit int64
		heap          int // MiB at which a collection starts
	}{
		{0, math.MaxInt64, 0},
		{10 * mib, math.MaxInt64, 60},
		{200 * mib, math.MaxInt64, 1200},
		{200 * mib, 1000 * mib, 500}, // the container is small
		{math.MaxInt64, 1000 * mib, 500},
	} {
		percent := restorePercent(tc.onDisk, tc.limit)
		if heap := leastHeap / mib * percent / 100; heap < tc.heap-1 || heap > tc.heap+1 {
			t.Errorf("%d MiB on disk, limit %d MiB: GOGC %d has a collection start at %d MiB, want %d", tc.onDisk/mib, tc.limit/mib, percent, heap, tc.heap)
		}
	}
}

func TestCollectionsWaitForARestoreAndItsAnswers(t *testing.T) {
	for name, tc := range map[string]struct {
		startedAfter, collectsAfter time.Duration
	}{
		"served soon":  {2 * time.Second, 2*time.Second + answerTime},
		"served late":  {time.Hour, restoreTime},
		"not restored": {time.Hour, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("GOGC", "")
			c := quietCollector(t)
			if tc.collectsAfter > 0 {
				c.Restores(100 << 20)
			}
			runtime.GC()
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				started, done := make(chan struct{}), make(chan error)
				go func() { done <- c.Run(ctx, started) }()
				go func() {
					select {
					case <-time.After(tc.startedAfter):
						close(started)
					case <-ctx.Done():
					}
				}()
				if tc.collectsAfter > 0 {
					time.Sleep(tc.collectsAfter - time.Millisecond)
					if percent := gcPercent(); percent < 10*mostPercent {
						t.Errorf("GOGC is %d while it is restored", percent)
					}
				}
				time.Sleep(2 * time.Millisecond)
				if percent := gcPercent(); percent > mostPercent {
					t.Errorf("GOGC is %d after %v", percent, tc.collectsAfter)
				}
				cancel()
				if err := <-done; err != nil {
					t.Error(err)
				}
			})
		})
	}
}
