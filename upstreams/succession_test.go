package upstreams_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"meshrelay/adsclient"
	"meshrelay/config"
	"meshrelay/federation/services"
	"meshrelay/upstreams"
	"meshrelay/upstreams/intake"
	"meshrelay/upstreams/xds"
)

func syncAll(s *xdsScript, url string, answer func() error) {
	s.open(adsclient.SotW, false)
	for _, u := range allTypes() {
		if u == url {
			s.ok(answer())
			continue
		}
		s.ok(s.sotw(u))
	}
}

// successor is what Apply does.
func successor(s *xdsScript, change ...func(*config.Upstream, *config.Node)) *xdsScript {
	s.t.Helper()
	cfg, node := xdsConfig("127.0.0.1:1")
	for _, f := range change {
		f(&cfg, &node)
	}
	s.x.u.Stops(func() { s.x.u.Tell(intake.Closed{}) }, func() {})
	n := &xdsScript{t: s.t, warns: &warnings{}}
	s.x.m.StartBy(func(u *upstreams.Upstream) { n.attach(&xdsSource{u.Source().(*xds.Source), u, s.x.m}, nil) })
	s.ok(s.x.m.Apply(&config.Config{Upstreams: []config.Upstream{cfg}, Node: node}))
	return n
}

func TestTheIntakeSleepsWhenThereIsNothingToDo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newXDSScript(t, guarded(30, 10, 10*time.Minute), stale(config.Staleness{StaleAfter: config.Duration(time.Minute), ExpireAfter: config.OpenEnded(time.Minute)}))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- s.x.u.RunTimer(ctx) }()
		s.ok(s.sotw(xdsEntryURL, entries("e", 40)...))
		s.ok(s.sotw(xdsEntryURL))
		s.lapse()
		s.demand("held", s.x.Status().Held != nil)
		s.disconnects()
		s.after(20 * time.Minute)
		s.demand("dropped", s.count() == 0)
		held := s.x.Status().Held
		wait := s.x.u.Due()
		cancel()
		s.ok(<-done)
		if held != nil || wait < time.Second {
			t.Errorf("held %+v, due again in %v", held, wait)
		}
	})
}

// hasOne has one endpoint for webCluster, and hasNone nothing, and does not wait for any.
var (
	hasOne  = intake.Endpoints{webCluster: {Endpoints: services.Pack(services.FromAssignment(assignmentOf(webCluster, "10.0.0.1"))), Known: true}}
	hasNone = intake.Endpoints{webCluster: {}}
)

func TestServicesKeepTheEndpointsOfBeforeWhileNobodySaysAny(t *testing.T) {
	mode := func(u *config.Upstream, _ *config.Node) { discovers(u) }
	s := newXDSScript(t, mode)
	s.ok(s.sotw(xdsEntryURL, service("web", "web.example"), xdsEntry("ns/a", "a.example")))
	s.x.u.Tell(hasOne)
	s.demand("two", s.count() == 2)
	saved := savedOf(s, time.Now())

	n := restored(t, saved, mode)
	syncAll(n, xdsEntryURL, func() error {
		return n.sotw(xdsEntryURL, service("web", "web.example"), xdsEntry("ns/a", "a.example"))
	})
	n.demand("two are restored", n.count() == 2)
	// No connection for EDS within the patience (the upstream went down again).
	n.x.u.Tell(hasNone)
	n.demand("what was known stays", n.count() == 2)
}

func TestARenamedServiceStaysUnderItsOldNameUntilItsEndpointsAreKnown(t *testing.T) {
	mode := func(u *config.Upstream, _ *config.Node) { discovers(u) }
	s := newXDSScript(t, mode)
	s.ok(s.sotw(xdsEntryURL, service("web", "web.example")))
	s.x.u.Tell(hasOne)
	s.demand("one", s.count() == 1)
	n := successor(s, mode, func(u *config.Upstream, _ *config.Node) { u.Rewrite.NamePrefix = "p-" })
	n.demand("one, under either name", n.count() == 1)
}

func TestASourceHasNotSyncedBeforeItsEndpointsAreKnown(t *testing.T) {
	s := neverSynced(t, func(u *config.Upstream, _ *config.Node) { discovers(u) })
	syncAll(s, xdsEntryURL, func() error { return s.sotw(xdsEntryURL, service("web", "web.example")) })
	_, meta := s.x.u.TakeChanges()
	if meta.Synced || s.x.Status().Synced {
		t.Errorf("kept as synced: %v, shown as synced: %v", meta.Synced, s.x.Status().Synced)
	}
}
