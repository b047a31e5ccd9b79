package upstreams_test

import (
	"fmt"
	"log/slog"
	"testing"
	"time"

	"meshrelay/config"
	"meshrelay/internal/testing/fakexds"
	"meshrelay/state"
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
