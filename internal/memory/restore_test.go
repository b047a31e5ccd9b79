package memory

import (
	"context"
	"math"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"meshrelay/internal/testing/await"
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
		for _, held := range []int{1, 4, 40, 400} { // MiB
			percent := restorePercent(restoreRoom(tc.onDisk, tc.limit), uint64(held*mib))
			if heap := max(held, leastHeap/mib) * percent / 100; heap < tc.heap-held/100-1 || heap > tc.heap+1 {
				t.Errorf("%d MiB on disk, limit %d MiB, %d held: GOGC %d has a collection start with %d MiB more, want %d",
					tc.onDisk/mib, tc.limit/mib, held, percent, heap, tc.heap)
			}
		}
	}
}

// What was held before, and what the first collection leaves, counts: else the next one would be many
// times as late.
func TestCollectionsWaitForNoMoreThanARestoreTakes(t *testing.T) {
	t.Setenv("GOGC", "")
	c := quietCollector(t)
	c.Restores(10 << 20)
	held := make([]byte, 40<<20)
	runtime.GC()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- c.Run(ctx, nil) }()
		await.Pass(2 * adjustInterval)
		if percent := gcPercent(); percent > 150 {
			t.Errorf("with 40 MiB held, and 60 MiB to come, GOGC is %d", percent)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	runtime.KeepAlive(held)
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
				start := time.AfterFunc(tc.startedAfter, func() { close(started) })
				defer start.Stop()
				if tc.collectsAfter > 0 {
					await.Pass(tc.collectsAfter - time.Millisecond)
					if percent := gcPercent(); percent < 10*mostPercent {
						t.Errorf("GOGC is %d while it is restored", percent)
					}
				}
				await.Pass(2 * time.Millisecond)
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
