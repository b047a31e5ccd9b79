package relay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"meshrelay/config"
	"meshrelay/upstreams"
	"meshrelay/upstreams/intake"
)

// TestServingLogCountsUpstreamsFromDisk apart from those that have synced.
func TestServingLogCountsUpstreamsFromDisk(t *testing.T) {
	got := fmt.Sprint(servedFrom([]upstreams.Status{
		{Name: "there", Status: intake.Status{Synced: true}},
		{Name: "away", Status: intake.Status{Stale: true}, Resources: map[string]int{"a/B": 1}}, {Name: "also away", Status: intake.Status{Stale: true}, Resources: map[string]int{"a/B": 2}},
		{Name: "never seen"}, {Name: "of which all has expired", Status: intake.Status{Stale: true}},
	})...)
	if want := fmt.Sprint("upstreams", 5, "synced", 1, "fromDisk", 2, "notSynced", 2); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestTheOwnDirectoriesOfTheSocket(t *testing.T) {
	dir := t.TempDir()
	state := filepath.Join(dir, "state")
	for name, tc := range map[string]struct {
		stateDir, socket string
		own              bool
	}{
		"that of the state, by default": {state, "", true},
		"that of the state, as is said": {state, filepath.Join(state, "relay.sock"), true},
		"one that is the relay's":       {"", "", true},
		"one that is said":              {state, filepath.Join(dir, "relay.sock"), false},
		"one below that of the state":   {state, filepath.Join(state, "run", "relay.sock"), false},
		"one that is said, no state":    {"", filepath.Join(dir, "relay.sock"), false},
	} {
		cfg := &config.Config{Admin: config.Admin{Address: "127.0.0.1:15014", Socket: tc.socket}}
		cfg.State.Dir = tc.stateDir
		if got := ownSocketDir(cfg); got != tc.own {
			t.Errorf("%s: %v (%s)", name, got, cfg.AdminSocket())
		}
	}
}

// TestSignalIsTheLoggedCauseOfAnEnd, and nothing is logged after an error.
func TestSignalIsTheLoggedCauseOfAnEnd(t *testing.T) {
	for name, signalled := range map[string]bool{"a signal": true, "an error": false} {
		t.Run(name, func(t *testing.T) {
			var log strings.Builder
			var draining atomic.Bool
			signals, stop := signal.NotifyContext(t.Context(), syscall.SIGTERM)
			defer stop()
			end, cancel := context.WithCancel(t.Context())
			defer cancel()
			if !signalled {
				cancel()
			} else if err := syscall.Kill(os.Getpid(), syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			untilSignal(signals, end, stop, slog.New(slog.NewTextHandler(&log, nil)), &draining)
			if said := strings.Contains(log.String(), "another signal"); said != signalled || !draining.Load() {
				t.Errorf("draining is %v, and it said:\n%s", draining.Load(), log.String())
			}
		})
	}
}

// TestPartsEndInTheirOrder, each after the one before has returned, whichever ends first and with or without an error.
func TestPartsEndInTheirOrder(t *testing.T) {
	failed := errors.New("address already in use")
	for name, tc := range map[string]struct{ of, want error }{"an end": {}, "a failure": {failed, failed}} {
		t.Run(name, func(t *testing.T) {
			var order []string // one part at a time ends
			until := func(who string) part {
				return func(ctx context.Context) error {
					<-ctx.Done()
					order = append(order, who)
					if tc.of != nil && !errors.Is(context.Cause(ctx), tc.of) {
						t.Errorf("%s ends for %v", who, context.Cause(ctx))
					}
					return errors.New("not the first")
				}
			}
			ctx, cancel := context.WithCancel(t.Context())
			cancel() // which ends no part
			err := runParts(ctx, []part{until("a"), until("b"), func(context.Context) error { return tc.of }, until("c")})
			if !errors.Is(err, tc.want) || strings.Join(order, "") != "abc" {
				t.Errorf("%v, in the order %v", err, order)
			}
		})
	}
}
