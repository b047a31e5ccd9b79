package upstreams

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
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
	"meshrelay/state"
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

func TestUnfreezingInTheMiddleOfASyncDeletesNothing(t *testing.T) {
	s := newXDSScript(t)
	s.ok(s.sotw(xdsEntryURL, xdsEntry("ns/a", "a.example")))
	s.ok(s.x.gate.freezeNow())
	s.open(adsclient.SotW, false)
	s.ok(s.sotw(xdsEntryURL)) // rolled back istiod: alpha comes later
	s.ok(s.x.restateAll(s.x.gate.thawNow))
	s.holds("ns/a=a.example")
}

func TestUnfreezingLateInASyncDeletesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newXDSScript(t, guarded(30, 10, time.Hour))
		s.ok(s.sotw(xdsEntryURL, xdsEntry("ns/a", "a.example")))
		s.ok(s.x.gate.freezeNow())
		s.open(adsclient.SotW, false)
		s.ok(s.sotw(xdsEntryURL))
		time.Sleep(11 * time.Second)
		s.ok(s.x.restateAll(s.x.gate.thawNow))
		s.holds("ns/a=a.example")
	})
}

func TestWhatWaitedForAnotherVersionGoesAfterAReload_C1(t *testing.T) {
	s := newXDSScript(t)
	s.ok(s.sotw(xdsEntryURL, xdsEntry("ns/a", "a.example"), xdsEntry("ns/b", "b.example")))
	s.open(adsclient.SotW, false)
	s.ok(s.sotw(xdsEntryURL, xdsEntry("ns/a", "a.example"))) // b waits for beta and alpha
	s.holds("ns/a=a.example", "ns/b=b.example")
	n := successor(s, true)
	syncAll(n, xdsEntryURL, func() error { return n.sotw(xdsEntryURL, xdsEntry("ns/a", "a.example")) })
	n.lapse()
	n.demand("synced", n.x.Status().Synced)
	n.holds("ns/a=a.example")
}

func TestWhatWaitsForAnotherVersionOutlivesAReload_C1(t *testing.T) {
	s := newXDSScript(t)
	s.ok(s.sotw(xdsEntryURL, xdsEntry("ns/a", "a.example"), xdsEntry("ns/b", "b.example")))
	s.open(adsclient.SotW, false)
	s.ok(s.sotw(xdsEntryURL))
	s.holds("ns/a=a.example", "ns/b=b.example")
	n := successor(s, false)
	n.holds("ns/a=a.example", "ns/b=b.example")
}

func TestATypeThatIsNotAskedForAnyMoreGoes(t *testing.T) {
	url := "example.com/v1/Widget"
	extra := func(u *config.Upstream, _ *config.Node) { u.XDS.Types = []string{url} }
	s := newXDSScript(t, extra)
	kind, _, err := mirror.ParseTypeURL(url)
	s.ok(err)
	s.ok(s.sotw(url, emptyOf(mirror.Kind{Group: "networking.istio.io", Kind: "ServiceEntry"}, "ns/w")))
	s.demand("held", s.store.Counts()[kind] == 1)
	n := successor(s, true)
	syncAll(n, "", nil)
	n.demand("gone", n.store.Counts()[kind] == 0)
}

func TestWhatWasFrozenIsImportedAnewUnderOtherRules(t *testing.T) {
	prefix := func(u *config.Upstream, _ *config.Node) { u.Rewrite.NamePrefix = "p-" }
	s := newXDSScript(t)
	s.x.gate.keeps = true
	s.ok(s.sotw(xdsEntryURL, xdsEntry("ns/a", "a.example")))
	s.ok(s.x.gate.freezeNow())
	disk := map[mirror.Key]state.Record{}
	flush := func(s *xdsScript) state.Saved {
		changes, meta := s.x.gate.TakeChanges()
		for _, c := range changes {
			if c.Record == nil {
				delete(disk, c.Key)
			} else {
				disk[c.Key] = *c.Record
			}
		}
		out := state.Saved{Meta: meta}
		for _, r := range disk {
			out.Records = append(out.Records, r)
		}
		return out
	}
	saved := flush(s)
	s2 := restored(t, saved, false, prefix) // restart with other rules
	s2.x.gate.setFingerprint("new")
	saved = flush(s2)
	if saved.Meta.Fingerprint != "new" {
		t.Fatal("the fingerprint of other rules is not kept")
	}
	s3 := restored(t, saved, true, prefix) // another restart: the fingerprint is the same
	syncAll(s3, xdsEntryURL, func() error { return s3.sotw(xdsEntryURL, xdsEntry("ns/a", "a.example")) })
	s3.ok(s3.x.restateAll(s3.x.gate.thawNow))
	s3.lapse()
	s3.holds("ns/p-a=a.example")
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

func TestDeletionsAreJudgedWhenThePatienceIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newXDSScript(t, guarded(30, 10, 10*time.Minute))
		s.running()
		s.ok(s.sotw(xdsEntryURL, entries("e", 40)...))
		synctest.Wait()
		s.open(adsclient.SotW, false)
		synctest.Wait()
		for _, u := range []string{xdsEntryURL, xdsEntryBeta, xdsEntryAlpha} {
			if u == xdsEntryURL {
				s.ok(s.sotw(u, entries("e", 39)...))
			} else {
				s.ok(s.sotw(u))
			}
		}
		s.after(5 * time.Minute)
		s.demand("one went", s.count() == 39)
	})
}

func TestWhatIsHeldStaysHeldWhileTheSourceIsSyncing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		vs := "networking.istio.io/v1/VirtualService"
		kind, _, _ := mirror.ParseTypeURL(vs)
		s := newXDSScript(t, guarded(30, 10, 0))
		var all, none = entries("e", 35), 0
		_ = none
		var vss = entries("x", 0)
		for i := range 5 {
			vss = append(vss, emptyOf(kind, fmt.Sprintf("ns/v%d", i)))
		}
		s.ok(s.sotw(xdsEntryURL, all...))
		s.ok(s.sotw(vs, vss...))
		syncAll(s, "", nil) // it comes back empty
		s.demand("held", s.x.Status().Held != nil && s.x.Status().Held.Removals == 40)
		s.open(adsclient.SotW, false) // and again, with all, slowly
		time.Sleep(11 * time.Second)
		s.ok(s.sotw(xdsEntryURL, all...))
		s.demand("the virtual services are there until the source has said that they are not", s.store.Counts()[kind] == 5)
	})
}

func TestUnfreezingMakesThePolicyCountAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newXDSScript(t, guarded(30, 10, 0), stale(config.Staleness{StaleAfter: config.Duration(time.Minute), OnStale: "drop"}))
		s.running()
		s.ok(s.sotw(xdsEntryURL, entries("e", 4)...))
		s.ok(s.x.gate.freezeNow())
		s.disconnects()
		s.after(10 * time.Minute)
		s.demand("frozen", s.count() == 4)
		s.ok(s.x.restateAll(s.x.gate.thawNow))
		s.after(10 * time.Minute)
		s.demand("dropped", s.count() == 0)
	})
}

func TestASourceFrozenWhileEmptyStaysFrozenThroughARestart(t *testing.T) {
	f := &state.Frozen{Since: time.Now()}
	u, _ := xdsConfig("127.0.0.1:1")
	r := runManager(t, &memoryKeeper{saved: map[string]state.Saved{"east": {Meta: state.Meta{Frozen: f}}}}, u)
	if r.m.Status()[0].Frozen == nil {
		t.Error("not frozen after a restart")
	}
}

func TestOverTheLimitARestartServesWhatWasServed(t *testing.T) {
	path := t.TempDir()
	writeFile(t, filepath.Join(path, "f.yaml"), serviceEntry("m", "m.example"))
	u := fileUpstream("local", path)
	u.Limits.MaxResources = 1
	var saved state.Saved
	t.Run("before", func(t *testing.T) {
		r := runManager(t, nil, u)
		r.awaitServed("shop/m=m.example@local")
		writeFile(t, filepath.Join(path, "a.yaml"), serviceEntry("a", "a.example"))
		r.await("over", func() bool { return r.m.Status()[0].OverLimit > 0 })
		if got := r.served(); got != "shop/m=m.example@local" {
			t.Fatalf("served %q", got)
		}
		saved = state.Saved{Meta: state.Meta{Synced: true, LastContact: time.Now(), Fingerprint: r.m.members[0].gate.fingerprint}, Records: r.m.members[0].source.kept()}
	})
	r := runManager(t, &memoryKeeper{saved: map[string]state.Saved{"local": saved}}, u)
	r.await("it has been read, and is over the limit", func() bool { return r.m.Status()[0].OverLimit > 0 })
	r.awaitServed("shop/m=m.example@local")
}

func TestWhatWasHeldUnderOtherRulesGoesInTheEnd(t *testing.T) {
	prefix := func(u *config.Upstream, _ *config.Node) { u.Rewrite.NamePrefix = "p-" }
	s := newXDSScript(t, guarded(30, 10, 0))
	s.x.gate.keeps = true
	disk := map[mirror.Key]state.Record{}
	flush := func(s *xdsScript) state.Saved {
		changes, meta := s.x.gate.TakeChanges()
		for _, c := range changes {
			if c.Record == nil {
				delete(disk, c.Key)
			} else {
				disk[c.Key] = *c.Record
			}
		}
		out := state.Saved{Meta: meta}
		for _, r := range disk {
			out.Records = append(out.Records, r)
		}
		return out
	}
	s.ok(s.sotw(xdsEntryURL, entries("e", 40)...))
	s.ok(s.sotw(xdsEntryURL))
	s.lapse()
	s.demand("held", s.x.Status().Held != nil)
	n := successor(s, false, guarded(30, 10, 0), prefix)
	n.demand("still", n.count() == 40)
	saved := flush(n)
	s3 := restored(t, saved, true, prefix, guarded(30, 10, 0))
	syncAll(s3, xdsEntryURL, func() error { return s3.sotw(xdsEntryURL, entries("f", 40)...) })
	s3.lapse()
	if s3.x.Status().Held != nil {
		s3.ok(s3.x.gate.releaseAll())
	}
	s3.demand("only what the source has", s3.count() == 40)
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

func TestWhatIsKeptAnewIsKnownUnderTheSourcesName(t *testing.T) {
	prefix := func(u *config.Upstream, _ *config.Node) { u.Rewrite.NamePrefix = "p-" }
	s := newXDSScript(t, prefix)
	s.x.gate.keeps = true
	s.x.gate.follows(s.x)
	s.ok(s.sotw(xdsEntryURL, xdsEntry("ns/a", "a.example")))
	s.ok(s.x.gate.freezeNow())
	s.ok(s.sotw(xdsEntryURL)) // deleted, frozen
	s.lapse()
	s.x.gate.TakeChanges()
	s.x.gate.MarkAll()
	changes, meta := s.x.gate.TakeChanges()
	saved := state.Saved{Meta: meta}
	for _, c := range changes {
		if c.Record != nil {
			saved.Records = append(saved.Records, *c.Record)
		}
	}
	n := restored(t, saved, true, prefix)
	syncAll(n, "", nil)
	n.ok(n.x.restateAll(n.x.gate.thawNow))
	n.lapse()
	n.holds()
}
func TestWhatIsKeptAnewAgainstTheSourcesWordGoesInTheEnd(t *testing.T) {
	prefix := func(u *config.Upstream, _ *config.Node) { u.Rewrite.NamePrefix = "p-" }
	s := newXDSScript(t, prefix, guarded(0, 0, 0))
	s.x.gate.keeps = true
	s.x.gate.follows(s.x)
	s.ok(s.sotw(xdsEntryURL, xdsEntry("ns/a", "a.example")))
	s.ok(s.sotw(xdsEntryURL))
	s.lapse()
	s.demand("held", s.x.Status().Held != nil)
	s.x.gate.TakeChanges()
	s.x.gate.MarkAll()
	changes, meta := s.x.gate.TakeChanges()
	saved := state.Saved{Meta: meta}
	for _, c := range changes {
		if c.Record != nil {
			saved.Records = append(saved.Records, *c.Record)
		}
	}
	n := restored(t, saved, true, prefix)
	syncAll(n, "", nil)
	n.lapse()
	n.holds()
}

func TestASourceThatFlapsCanDeleteAllTheSame(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newXDSScript(t, guarded(30, 10, 10*time.Minute))
		s.ok(s.sotw(xdsEntryURL, entries("e", 40)...))
		for range 100 {
			s.open("sotw", false)
			for _, u := range []string{xdsEntryURL, xdsEntryBeta, xdsEntryAlpha} {
				if u == xdsEntryURL {
					s.ok(s.sotw(u, entries("e", 39)...))
				} else {
					s.ok(s.sotw(u))
				}
			}
			time.Sleep(8 * time.Second)
			s.x.gate.due(time.Now())
		}
		s.demand("one went within 13 minutes", s.count() == 39)
	})
}

func TestWhatWasRolledBackIsImportedAnewUnderOtherRules(t *testing.T) {
	prefix := func(u *config.Upstream, _ *config.Node) { u.Rewrite.NamePrefix = "p-" }
	s := newXDSScript(t)
	s.ok(s.sotw(xdsEntryURL, xdsEntry("ns/a", "a.example")))
	old := s.x.kept()
	n := successor(s, false, prefix)
	syncAll(n, xdsEntryURL, func() error { return n.sotw(xdsEntryURL, xdsEntry("ns/a", "a.example")) })
	n.holds("ns/p-a=a.example")
	n.x.gate.rollBack(Order{To: 1}, old)
	n.holds("ns/a=a.example")
	_, meta := n.x.gate.TakeChanges()
	saved := savedOf(n, time.Now())
	saved.Records, saved.Meta.Frozen = old, meta.Frozen
	m := restored(t, saved, true, prefix)
	syncAll(m, xdsEntryURL, func() error { return m.sotw(xdsEntryURL, xdsEntry("ns/a", "a.example")) })
	m.ok(m.x.restateAll(m.x.gate.thawNow))
	m.holds("ns/p-a=a.example")
}

func TestAReloadDoesNotUnfreeze(t *testing.T) {
	cfg, node := xdsConfig("127.0.0.1:1")
	_ = cfg
	_ = node
	s := newXDSScript(t)
	// as at the start: not in contact, nothing held
	s.x.gate.synced = false
	s.ok(s.x.gate.freezeNow())
	s.open("sotw", false)
	s.ok(s.sotw(xdsEntryURL, xdsEntry("ns/a", "a.example")))
	s.holds()
	n := successor(s, true)
	n.demand("still frozen", n.x.Status().Frozen != nil)
	n.holds()
}
