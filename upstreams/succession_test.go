package upstreams

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	mcp "istio.io/api/mcp/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"meshrelay/adsclient"
	"meshrelay/config"
	"meshrelay/internal/fakexds"
	"meshrelay/mirror"
)

func syncAll(s *xdsScript, url string, answer func() error) {
	s.open(adsclient.SotW, false)
	for _, u := range subscriptions(false, s.x.extra) {
		if u == url {
			s.ok(answer())
			continue
		}
		s.ok(s.sotw(u))
	}
}

// successor is what Apply does.
func successor(s *xdsScript, same bool, change ...func(*config.Upstream, *config.Node)) *xdsScript {
	s.t.Helper()
	cfg, node := xdsConfig("127.0.0.1:1")
	for _, f := range change {
		f(&cfg, &node)
	}
	s.x.end()
	n := &xdsScript{t: s.t, store: s.store, warns: &warnings{}}
	x, err := newXDS(cfg, node, config.Provenance{}, s.x.gate, slog.New(slog.DiscardHandler))
	if err != nil {
		s.t.Fatal(err)
	}
	n.x = x
	x.table.later = func(kind mirror.Kind) { n.late = append(n.late, kind) }
	s.x.gate.contact(false)
	x.adopt(s.x.kept(), same)
	return n
}

func TestTheGateSleepsWhenThereIsNothingToDo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newXDSScript(t, guarded(30, 10, 10*time.Minute), stale(config.Staleness{StaleAfter: config.Duration(time.Minute), OnStale: "drop"}))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- s.x.gate.run(ctx) }()
		s.ok(s.sotw(xdsEntryURL, entries("e", 40)...))
		s.ok(s.sotw(xdsEntryURL))
		s.lapse()
		s.demand("held", s.x.Status().Held != nil)
		s.disconnects()
		s.after(20 * time.Minute)
		s.demand("dropped", s.count() == 0)
		held := s.x.Status().Held
		wait, _ := s.x.gate.due(time.Now())
		cancel()
		s.ok(<-done)
		if held != nil || wait < time.Second {
			t.Errorf("held %+v, due again in %v", held, wait)
		}
	})
}

func TestServicesKeepTheEndpointsOfBeforeWhileNobodySaysAny(t *testing.T) {
	mode := func(u *config.Upstream, _ *config.Node) { discovers(u) }
	s := newXDSScript(t, mode)
	s.x.table.discovery.known = func(c string) *endpointv3.ClusterLoadAssignment { return assignmentOf(c, "10.0.0.1") }
	s.x.table.discovery.settled = func(string) bool { return true }
	s.ok(s.sotw(xdsEntryURL, service("web", "web.example"), xdsEntry("ns/a", "a.example")))
	s.x.endpointsChanged([]string{webCluster})
	s.demand("two", s.count() == 2)
	saved := savedOf(s, time.Now())

	n := restored(t, saved, true, mode)
	syncAll(n, xdsEntryURL, func() error {
		return n.sotw(xdsEntryURL, service("web", "web.example"), xdsEntry("ns/a", "a.example"))
	})
	n.demand("two are restored", n.count() == 2)
	// No connection for EDS within the patience (the upstream went down again).
	news, _ := n.x.endpoints.take(time.Now().Add(endpointsPatience + time.Second))
	n.x.endpointsChanged(news)
	n.demand("what was known stays", n.count() == 2)
}

func TestARenamedServiceStaysUnderItsOldNameUntilItsEndpointsAreKnown(t *testing.T) {
	mode := func(u *config.Upstream, _ *config.Node) { discovers(u) }
	s := newXDSScript(t, mode)
	s.x.table.discovery.known = func(c string) *endpointv3.ClusterLoadAssignment { return assignmentOf(c, "10.0.0.1") }
	s.x.table.discovery.settled = func(string) bool { return true }
	s.ok(s.sotw(xdsEntryURL, service("web", "web.example")))
	s.x.endpointsChanged([]string{webCluster})
	s.demand("one", s.count() == 1)
	n := successor(s, false, mode, func(u *config.Upstream, _ *config.Node) { u.Rewrite.NamePrefix = "p-" })
	n.demand("one, under either name", n.count() == 1)
}

func TestWhatCountsTowardsTheLimitsIsWhatIsHeld(t *testing.T) {
	cfg, node := xdsConfig("127.0.0.1:1")
	s := &xdsScript{t: t, store: mirror.NewStore()}
	x, err := NewXDS(cfg, node, config.Provenance{Annotations: true, Relay: "r", MaxHops: 8}, s.store, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	s.x = x
	x.table.later = func(kind mirror.Kind) {}
	s.open("sotw", false)
	entry := func(version string) fakexds.Resource {
		return fakexds.MCP("ns/a", &networking.ServiceEntry{Hosts: []string{"a.example"}}, func(m *mcp.Resource) { m.Metadata.Version = version })
	}
	for i := range 100 {
		s.ok(s.sotw(xdsEntryURL, entry([]string{"1", "1000000000000000000"}[i%2])))
	}
	actual := 0
	for _, rec := range x.table.byURL[xdsEntryURL].byName {
		actual += rec.size()
	}
	if x.table.bytes != actual {
		t.Errorf("accounted %d bytes, held %d", x.table.bytes, actual)
	}
}

func TestASourceHasNotSyncedBeforeItsEndpointsAreKnown(t *testing.T) {
	mode := func(u *config.Upstream, _ *config.Node) { discovers(u) }
	s := newXDSScript(t, mode)
	s.x.table.awaited = nil
	cfg, node := xdsConfig("127.0.0.1:1")
	discovers(&cfg)
	n := &xdsScript{t: t, store: mirror.NewStore()}
	x, err := NewXDS(cfg, node, config.Provenance{}, n.store, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	n.x = x
	x.table.later = func(kind mirror.Kind) {}
	syncAll(n, xdsEntryURL, func() error { return n.sotw(xdsEntryURL, service("web", "web.example")) })
	_, meta := x.gate.TakeChanges()
	if meta.Synced && !x.Status().Synced {
		t.Error("kept as synced, although the source has not")
	}
}
