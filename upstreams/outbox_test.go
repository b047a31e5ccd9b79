package upstreams_test

import (
	"context"
	"io"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"meshrelay/adsclient"
	"meshrelay/config"
	"meshrelay/events"
	"meshrelay/internal/panics"
	"meshrelay/upstreams/intake"
)

// slowLog is a slog.Handler that hangs on one message until goes is closed.
type slowLog struct {
	slog.Handler
	on   string
	goes chan struct{}

	mu    sync.Mutex
	lines []string
}

func (l *slowLog) WithAttrs([]slog.Attr) slog.Handler { return l }
func (l *slowLog) Handle(_ context.Context, r slog.Record) error {
	if r.Message == l.on {
		<-l.goes
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, r.Message)
	return nil
}

// TestEventsAndLogLinesAreInTheOrderOfSteps: a slow log handler neither holds up other steps nor has them overtake.
func TestEventsAndLogLinesAreInTheOrderOfSteps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := &slowLog{Handler: slog.NewTextHandler(io.Discard, nil), on: "upstream has synced", goes: make(chan struct{})}
		cfg, node := xdsConfig("127.0.0.1:1")
		s := &xdsScript{t: t}
		s.attach(newXDS(cfg, node, config.Provenance{}, slog.New(log)))
		journal := events.New()
		s.x.m.Record(journal)
		s.open(adsclient.SotW, false)
		done := make(chan struct{})
		go func() {
			defer close(done)
			for _, url := range allTypes() {
				s.ok(s.sotw(url))
			}
		}()
		synctest.Wait() // the log hangs
		types := func() (all []events.Type) {
			for _, e := range journal.Read(events.Query{}).Events {
				all = append(all, e.Type)
			}
			return all
		}
		s.x.u.Tell(intake.Freeze{Order: intake.Order{Reason: "test"}})
		if got, want := types(), []events.Type{events.Synced, events.Frozen}; !slices.Equal(got, want) {
			t.Errorf("events: %q, want %q", got, want)
		}
		for range 21_000 { // one in 20 is a note
			s.x.u.Tell(intake.Panicked{What: "x", Panic: &panics.Panic{}})
		}
		if n := s.x.u.Notes(); n != 1000 {
			t.Errorf("%d notes wait", n)
		}
		close(log.goes)
		<-done
		if want := []string{"upstream has synced", "panic while handling a resource"}; !slices.Equal(slices.Compact(log.lines), want) {
			t.Errorf("%d lines: %q, want %q", len(log.lines), log.lines, want)
		}
	})
}
