package relay

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"meshrelay/config"
	"meshrelay/internal/testing/await"
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
	for name, tc := range map[string]struct {
		end  func(interrupt func(error)) error
		said bool
	}{
		"a signal": {func(func(error)) error { return syscall.Kill(os.Getpid(), syscall.SIGTERM) }, true},
		"an error": {func(interrupt func(error)) error { interrupt(errors.New("address already in use")); return nil }, false},
	} {
		t.Run(name, func(t *testing.T) {
			var log strings.Builder
			var draining atomic.Bool
			execute, interrupt := untilSignal(t.Context(), slog.New(slog.NewTextHandler(&log, nil)), &draining)
			done := make(chan error, 1)
			go func() { done <- execute() }()
			if err := tc.end(interrupt); err != nil {
				t.Fatal(err)
			}
			err := await.Value(t, "it ends", done)
			if said := strings.Contains(log.String(), "another signal"); err != nil || said != tc.said || !draining.Load() {
				t.Errorf("%v, draining is %v, and it said:\n%s", err, draining.Load(), log.String())
			}
			interrupt(nil)
		})
	}
}
