package upstreams_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"meshrelay/internal/testing/await"
	"meshrelay/upstreams"
)

// TestThePausesAfterFailuresGrowAndAreShortAfterALongRun, and the log has the stack of a repeated panic once.
func TestThePausesAfterFailuresGrowAndAreShortAfterALongRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var logged bytes.Buffer
		var at []time.Duration
		begin, failures := time.Now(), 0
		upstreams.Restart(ctx, slog.New(slog.NewTextHandler(&logged, nil)), func(context.Context) error {
			at = append(at, time.Since(begin))
			switch len(at) {
			case 13:
				await.Pass(time.Hour)
			case 15:
				return errors.New("no panic")
			case 16:
				return nil
			}
			panic("over a resource")
		}, func(err error) {
			if failures++; err == nil {
				t.Error("no error")
			}
			if failures == 2 {
				panic("while it is told")
			}
		})
		if len(at) != 16 || failures != 15 {
			t.Fatalf("%d runs, %d failures", len(at), failures)
		}
		for i := 1; i < 13; i++ {
			want := min(time.Second<<(i-1), 5*time.Minute)
			if got := at[i] - at[i-1]; got < want*9/10 || got > want*11/10 {
				t.Errorf("pause %d is %v, want about %v", i, got, want)
			}
		}
		if got := at[13] - at[12] - time.Hour; got > 2*time.Second {
			t.Errorf("after a long run the pause is %v", got)
		}
		if n := strings.Count(logged.String(), "stack="); n != 2 {
			t.Errorf("the log has %d stacks, want one, and one after the long run:\n%s", n, &logged)
		}
		if n := strings.Count(logged.String(), `msg="source failed"`); n != 15 || !strings.Contains(logged.String(), "no panic") {
			t.Errorf("%d failures in the log, want 15", n)
		}
	})
}

// TestARestartEndsWithItsContext, also in the middle of a pause.
func TestARestartEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			upstreams.Restart(ctx, slog.New(slog.DiscardHandler), func(context.Context) error { panic("at once") }, func(error) {})
		}()
		await.Pass(time.Hour)
		cancel()
		<-done
	})
}
