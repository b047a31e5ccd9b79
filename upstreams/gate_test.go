package upstreams_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"meshrelay/adsclient"
	"meshrelay/config"
	"meshrelay/internal/testing/await"
	"meshrelay/internal/testing/fakexds"
	"meshrelay/state"
	"meshrelay/upstreams/intake"
)

// entries returns ServiceEntries named ns/P0, ns/P1, …
func entries(prefix string, n int) (out []fakexds.Resource) {
	for i := range n {
		name := fmt.Sprintf("%s%d", prefix, i)
		out = append(out, xdsEntry("ns/"+name, name+".example"))
	}
	return out
}

func guarded(percent, count int, holdFor time.Duration) func(*config.Upstream, *config.Node) {
	return func(u *config.Upstream, _ *config.Node) {
		u.Guard = config.Guard{Percent: percent, Count: count, HoldFor: config.OpenEnded(holdFor)}
	}
}

func (s *xdsScript) count() int { return s.store.Counts()[xdsEntryKind] }

func (s *xdsScript) demand(what string, ok bool) {
	s.t.Helper()
	if !ok {
		s.t.Fatalf("not so: %s; %d resources, status %+v", what, s.count(), s.x.Status())
	}
}

// savedOf returns what would be kept of a source now.
func savedOf(s *xdsScript, lastContact time.Time) state.Saved {
	_, meta := s.x.u.TakeChanges()
	return state.Saved{Meta: state.Meta{Synced: true, LastContact: lastContact, Fingerprint: meta.Fingerprint}, Records: s.x.kept()}
}

// restored returns a script of a relay that was restarted with what another one held.
func restored(t *testing.T, saved state.Saved, change ...func(*config.Upstream, *config.Node)) *xdsScript {
	t.Helper()
	cfg, node := xdsConfig("127.0.0.1:1")
	for _, f := range change {
		f(&cfg, &node)
	}
	s := &xdsScript{t: t, warns: &warnings{}}
	keeper := &memoryKeeper{saved: map[string]state.Saved{cfg.Name: saved}}
	s.attach(keptXDS(cfg, node, config.Provenance{}, slog.New(slog.DiscardHandler), keeper))
	return s
}

func stale(rule config.Staleness) func(*config.Upstream, *config.Node) {
	return func(u *config.Upstream, _ *config.Node) { u.Staleness = rule }
}

func TestStaleResourcesAreAnnotatedOnRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newXDSScript(t, stale(config.Staleness{StaleAfter: config.Duration(time.Minute), OnStale: "keep", Annotate: true}))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- s.x.u.RunTimer(ctx) }()
		s.ok(s.sotw(xdsEntryURL, xdsEntry("ns/a", "a.example")))
		s.x.u.TakeChanges()
		plain := s.store.List(xdsEntryKind, "")[0]
		lost := time.Now().UTC().Format(time.RFC3339)
		s.x.HandleState(adsclient.State{Phase: adsclient.Disconnected, Err: errors.New("gone"), Answered: true})
		await.Settle(2 * time.Minute)
		r := s.store.List(xdsEntryKind, "")[0]
		if got := r.Metadata().Annotations[intake.StaleAnnotation]; got != lost {
			t.Errorf("annotation %q, want %q", got, lost)
		}
		if changes, _ := s.x.u.TakeChanges(); len(changes) > 0 {
			t.Error("the annotation is kept on disk")
		}
		s.open(adsclient.SotW, false)
		for _, url := range allTypes() {
			if url == xdsEntryURL {
				s.ok(s.sotw(url, xdsEntry("ns/a", "a.example")))
				continue
			}
			s.ok(s.sotw(url))
		}
		if r := s.store.List(xdsEntryKind, "")[0]; !r.Equal(plain) {
			t.Errorf("it is still annotated: %v", r.Metadata().Annotations)
		}
		cancel()
		s.ok(<-done)
	})
}
