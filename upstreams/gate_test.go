package upstreams

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/anypb"
	networking "istio.io/api/networking/v1alpha3"

	"meshrelay/adsclient"
	"meshrelay/config"
	"meshrelay/internal/fakexds"
	"meshrelay/mirror"
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

func TestTheGuardHoldsDeletionsOnlyAboveBothShareAndCount(t *testing.T) {
	for _, tc := range []struct {
		name       string
		had, left  int
		held       bool
		percent, n int
	}{
		{"below both", 100, 95, false, 30, 10},
		{"a large share of few", 10, 0, false, 30, 10},
		{"eleven of eleven", 11, 0, true, 30, 10},
		{"many, and a small share", 1000, 800, false, 30, 10},
		{"exactly the share", 100, 70, false, 30, 10},
		{"one more than the share", 100, 69, true, 30, 10},
		{"all", 100, 0, true, 30, 10},
		{"switched off", 100, 0, false, 100, 10},
		{"any at all", 100, 99, true, 0, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newXDSScript(t, guarded(tc.percent, tc.n, time.Minute))
			all := entries("e", tc.had)
			s.ok(s.sotw(xdsEntryURL, all...))
			s.ok(s.sotw(xdsEntryURL, all[:tc.left]...))
			s.lapse()
			st := s.x.Status()
			if (st.Held != nil) != tc.held {
				t.Fatalf("held: %+v, want %v", st.Held, tc.held)
			}
			if want := tc.left; !tc.held && s.count() != want {
				t.Errorf("%d resources, want %d", s.count(), want)
			}
			if !tc.held {
				return
			}
			if s.count() != tc.had {
				t.Errorf("%d resources, want all %d", s.count(), tc.had)
			}
			if st.Held.Removals != tc.had-tc.left || st.Held.Of != tc.had || len(st.Held.Examples) == 0 {
				t.Errorf("held: %+v", st.Held)
			}
		})
	}
}

func TestWhileDeletionsAreHeldAdditionsAndChangesApply(t *testing.T) {
	s := newXDSScript(t, guarded(30, 10, time.Minute))
	s.ok(s.sotw(xdsEntryURL, entries("e", 40)...))
	s.ok(s.sotw(xdsEntryURL, xdsEntry("ns/e0", "changed.example"), xdsEntry("ns/new", "new.example")))
	s.lapse()
	s.demand("40 and the new one", s.count() == 41)
	key := mirror.Key{Kind: xdsEntryKind, Namespace: "ns", Name: "e0"}
	s.demand("the change has come", hostOf(t, s.store.Get(key)) == "changed.example")
	s.demand("39 are held", s.x.Status().Held.Removals == 39)

	key.Name = "e7"
	traces := s.x.Trace(key)
	s.demand("explain says why it is served", len(traces) == 1 && strings.Contains(traces[0].Detail, "relay held east"))
}

func TestAnOperatorReleasesWhatIsHeld(t *testing.T) {
	s := newXDSScript(t, guarded(30, 10, 0))
	if err := s.x.gate.releaseAll(); !errors.Is(err, ErrNotPossible) {
		t.Fatalf("release of nothing: %v", err)
	}
	s.ok(s.sotw(xdsEntryURL, entries("e", 40)...))
	s.ok(s.sotw(xdsEntryURL))
	s.lapse()
	s.ok(s.x.gate.releaseAll())
	s.demand("all is gone", s.count() == 0 && s.x.Status().Held == nil)
	s.ok(s.sotw(xdsEntryURL, entries("f", 20)...))
	s.demand("and what comes later comes", s.count() == 20)
}

func TestWhatIsHeldGoesThroughAfterHoldFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newXDSScript(t, guarded(30, 10, 10*time.Minute))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- s.x.gate.run(ctx) }()
		s.ok(s.sotw(xdsEntryURL, entries("e", 40)...))
		s.ok(s.sotw(xdsEntryURL))
		s.lapse()
		synctest.Wait()
		time.Sleep(10*time.Minute - time.Second) // within the bubble, no time passes
		synctest.Wait()
		s.demand("still held", s.count() == 40 && s.x.Status().Held != nil)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		s.demand("held until the source repeats it", s.count() == 40 && s.x.Status().Held.Clock == ClockOver)
		s.repeats(xdsEntryURL, func() error { return s.sotw(xdsEntryURL) })
		s.demand("let through", s.count() == 0 && s.x.Status().Held == nil)
		cancel()
		s.ok(<-done)
	})
}

func TestWhatIsLostBitByBitWithinAMinuteCountsTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newXDSScript(t, guarded(30, 10, time.Hour))
		all := entries("e", 100)
		s.ok(s.sotw(xdsEntryURL, all...))
		for left := 90; left >= 70; left -= 10 {
			time.Sleep(time.Second)
			s.ok(s.sotw(xdsEntryURL, all[:left]...))
			s.demand("ten went", s.count() == left)
		}
		s.ok(s.sotw(xdsEntryURL, all[:60]...))
		s.demand("the fourth ten are held", s.count() == 70 && s.x.Status().Held != nil)
		s.ok(s.x.gate.releaseAll())
		for left := 50; left > 0; left -= 10 {
			time.Sleep(2 * time.Minute)
			s.ok(s.sotw(xdsEntryURL, all[:left]...))
			s.demand("slowly, all may go", s.count() == left)
		}
	})
}

// A source of five kinds, none of which alone would be a large share.
func TestASourceThatReconnectsEmptyIsHeldAsAWhole(t *testing.T) {
	kinds := []string{
		"networking.istio.io/v1/ServiceEntry", "networking.istio.io/v1/VirtualService", "networking.istio.io/v1/DestinationRule",
		"networking.istio.io/v1/Gateway", "networking.istio.io/v1/Sidecar",
	}
	s := newXDSScript(t, guarded(30, 10, time.Hour))
	for _, url := range kinds {
		kind, _, err := mirror.ParseTypeURL(url)
		s.ok(err)
		var all []fakexds.Resource
		for i := range 20 {
			all = append(all, emptyOf(kind, fmt.Sprintf("ns/r%d", i)))
		}
		s.ok(s.sotw(url, all...))
	}
	total := func() (n int) {
		for _, c := range s.store.Counts() {
			n += c
		}
		return n
	}
	s.demand("a hundred in all", total() == 100)
	s.open(adsclient.SotW, false)
	for _, url := range subscriptions(false, nil) {
		s.ok(s.sotw(url))
	}
	st := s.x.Status()
	s.demand("all hundred are served, and held", total() == 100 && st.Held != nil && st.Held.Removals == 100)
}

func TestDeltaRemovalsAreHeldAsWell(t *testing.T) {
	s := newXDSScript(t, guarded(30, 10, time.Hour))
	var names []string
	all := entries("e", 40)
	for _, r := range all {
		names = append(names, r.Name)
	}
	s.ok(s.delta(xdsEntryURL, nil, all...))
	s.ok(s.delta(xdsEntryURL, names[:5]))
	s.demand("five went", s.count() == 35)
	s.ok(s.delta(xdsEntryURL, names[5:20]))
	s.demand("fifteen are held", s.count() == 35 && s.x.Status().Held.Removals == 15)
}

func TestAFrozenSourceStaysAsItIsUntilUnfrozen(t *testing.T) {
	s := newXDSScript(t, guarded(100, 0, 0))
	s.ok(s.sotw(xdsEntryURL, xdsEntry("ns/a", "a.example"), xdsEntry("ns/b", "b.example")))
	s.ok(s.x.gate.freezeNow())
	if err := s.x.gate.freezeNow(); !errors.Is(err, ErrNotPossible) {
		t.Errorf("freezing twice: %v", err)
	}
	s.ok(s.sotw(xdsEntryURL, xdsEntry("ns/a", "a2.example"), xdsEntry("ns/c", "c.example")))
	s.lapse()
	s.holds("ns/a=a.example", "ns/b=b.example")
	s.demand("three wait", s.x.Status().Frozen.Waiting == 3)
	s.ok(s.sotw(xdsEntryURL, xdsEntry("ns/a", "a.example"), xdsEntry("ns/c", "c.example")))
	s.demand("two wait: one is as it was", s.x.Status().Frozen.Waiting == 2)
	s.ok(s.x.restateAll(s.x.gate.thawNow))
	s.holds("ns/a=a.example", "ns/c=c.example")
	s.demand("not frozen", s.x.Status().Frozen == nil)
	if err := s.x.restateAll(s.x.gate.thawNow); !errors.Is(err, ErrNotPossible) {
		t.Errorf("unfreezing twice: %v", err)
	}
}

func TestWhatAFrozenSourceHasLostIsJudgedByTheGuardWhenUnfrozen(t *testing.T) {
	s := newXDSScript(t, guarded(30, 10, 0))
	s.ok(s.sotw(xdsEntryURL, entries("e", 40)...))
	s.ok(s.x.gate.freezeNow())
	s.ok(s.sotw(xdsEntryURL))
	s.lapse()
	s.ok(s.x.restateAll(s.x.gate.thawNow))
	s.demand("held", s.count() == 40 && s.x.Status().Held.Removals == 40)
}

// savedOf returns what would be kept of a source now.
func savedOf(s *xdsScript, lastContact time.Time) state.Saved {
	return state.Saved{Meta: state.Meta{Synced: true, LastContact: lastContact}, Records: s.x.kept()}
}

// restored returns a script of a relay that was restarted with what another one held.
func restored(t *testing.T, saved state.Saved, same bool, change ...func(*config.Upstream, *config.Node)) *xdsScript {
	t.Helper()
	cfg, node := xdsConfig("127.0.0.1:1")
	for _, f := range change {
		f(&cfg, &node)
	}
	s := &xdsScript{t: t, store: mirror.NewStore(), warns: &warnings{}}
	x, err := NewXDS(cfg, node, config.Provenance{}, s.store, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	s.x = x
	x.table.later = func(kind mirror.Kind) { s.late = append(s.late, kind) }
	x.gate.keeps = true
	x.restore(saved)
	x.adopt(saved.Records, same)
	return s
}

func TestARestartServesWhatWasKeptAtOnceAndIsStaleUntilSynced(t *testing.T) {
	before := newXDSScript(t)
	before.ok(before.sotw(xdsEntryURL, xdsEntry("ns/a", "a.example"), xdsEntry("ns/b", "b.example")))
	s := restored(t, savedOf(before, time.Now()), true)
	s.holds("ns/a=a.example", "ns/b=b.example")
	st := s.x.Status()
	s.demand("stale, and the store has synced", st.Stale && !st.Synced && s.store.HasSynced())
	a := s.store.List(xdsEntryKind, "")[0]

	s.open(adsclient.SotW, false)
	for _, url := range subscriptions(false, nil) {
		if url == xdsEntryURL {
			s.ok(s.sotw(url, xdsEntry("ns/a", "a.example"), xdsEntry("ns/c", "c.example")))
			continue
		}
		s.ok(s.sotw(url))
	}
	s.holds("ns/a=a.example", "ns/c=c.example")
	if got := s.store.List(xdsEntryKind, "")[0]; got != a {
		t.Error("what is as it was has been decoded again")
	}
	s.demand("not stale any more", !s.x.Status().Stale && s.x.Status().Synced)
}

func TestWhatWasKeptUnderOtherRulesIsImportedAnew(t *testing.T) {
	before := newXDSScript(t)
	before.ok(before.sotw(xdsEntryURL, entries("e", 30)...))
	s := restored(t, savedOf(before, time.Now()), false, guarded(0, 0, 0), func(u *config.Upstream, _ *config.Node) {
		u.Import.Expression = `name == "e1" || name == "e2"`
		u.Rewrite.NamePrefix = "x-"
	})
	s.holds("ns/x-e1=e1.example", "ns/x-e2=e2.example")
	for _, version := range s.x.ResumeVersions(xdsEntryURL) {
		if version != "" {
			t.Errorf("version %q is claimed of what was had under other rules", version)
		}
	}
}

func TestChangesThatPassAreKept(t *testing.T) {
	s := newXDSScript(t)
	s.x.gate.keeps = true
	take := func() (puts, removes []string) {
		changes, _ := s.x.gate.TakeChanges()
		for _, c := range changes {
			if c.Record == nil {
				removes = append(removes, c.Key.Name)
			} else {
				puts = append(puts, c.Key.Name)
			}
		}
		slices.Sort(puts)
		slices.Sort(removes)
		return puts, removes
	}
	s.ok(s.sotw(xdsEntryURL, entries("e", 3)...))
	if puts, removes := take(); !slices.Equal(puts, []string{"e0", "e1", "e2"}) || removes != nil {
		t.Errorf("kept %v, removed %v", puts, removes)
	}
	s.ok(s.sotw(xdsEntryURL, entries("e", 3)...))
	if puts, removes := take(); puts != nil || removes != nil {
		t.Errorf("nothing has changed, and kept %v, removed %v", puts, removes)
	}
	s.ok(s.sotw(xdsEntryURL, entries("e", 2)...))
	changes, meta := s.x.gate.TakeChanges()
	if len(changes) != 1 || changes[0].Record != nil || changes[0].Key.Name != "e2" || !meta.Synced {
		t.Errorf("changes %+v, meta %+v", changes, meta)
	}
	s.ok(s.sotw(xdsEntryURL, append(entries("e", 2), xdsEntry("ns/e2", "again.example"))...))
	s.x.gate.GiveBack(changes)
	changes, _ = s.x.gate.TakeChanges()
	if len(changes) != 1 || changes[0].Record == nil {
		t.Errorf("what could not be written has overwritten what is newer: %+v", changes)
	}
}

func TestARollbackServesAFormerStateAndFreezes(t *testing.T) {
	s := newXDSScript(t)
	s.x.gate.keeps = true
	s.ok(s.sotw(xdsEntryURL, xdsEntry("ns/a", "a1.example"), xdsEntry("ns/b", "b.example")))
	then := s.x.kept()
	s.ok(s.sotw(xdsEntryURL, xdsEntry("ns/a", "a2.example"), xdsEntry("ns/c", "c.example")))
	s.x.gate.rollBack(Order{To: 7}, then)
	s.ok(s.x.restateAll(nil))
	s.holds("ns/a=a1.example", "ns/b=b.example")
	f := s.x.Status().Frozen
	s.demand("frozen in revision 7, three differ", f != nil && f.Revision == 7 && f.Waiting == 3)
	s.ok(s.sotw(xdsEntryURL, xdsEntry("ns/a", "a3.example"), xdsEntry("ns/c", "c.example")))
	s.holds("ns/a=a1.example", "ns/b=b.example")
	s.ok(s.x.restateAll(s.x.gate.thawNow))
	s.holds("ns/a=a3.example", "ns/c=c.example")
}

func stale(rule config.Staleness) func(*config.Upstream, *config.Node) {
	return func(u *config.Upstream, _ *config.Node) { u.Staleness = rule }
}

func TestStalenessIsAPolicyOfTheUpstreamAndTheKind(t *testing.T) {
	const groupURL = xdsGroupURL
	groups := mirror.Kind{Group: "networking.istio.io", Kind: "WorkloadGroup"}
	minutes := func(n int) config.Duration { return config.Duration(time.Duration(n) * time.Minute) }
	for _, tc := range []struct {
		name            string
		rule            config.Staleness
		after           time.Duration
		stale           bool
		entries, groups int
	}{
		{"fresh", config.Staleness{StaleAfter: minutes(5), OnStale: "drop"}, 4 * time.Minute, false, 2, 1},
		{"stale is kept", config.Staleness{StaleAfter: minutes(5), OnStale: "keep"}, time.Hour, true, 2, 1},
		{"stale is dropped", config.Staleness{StaleAfter: minutes(5), OnStale: "drop"}, 6 * time.Minute, true, 0, 0},
		{"kept until it expires", config.Staleness{StaleAfter: minutes(5), OnStale: "keep", ExpireAfter: config.OpenEnded(time.Hour)}, 59 * time.Minute, true, 2, 1},
		{"expired", config.Staleness{StaleAfter: minutes(5), OnStale: "keep", ExpireAfter: config.OpenEnded(time.Hour)}, 61 * time.Minute, true, 0, 0},
		{"one kind is dropped, the others are kept for ever", config.Staleness{StaleAfter: minutes(5), OnStale: "keep", Kinds: []config.KindStaleness{
			{Kinds: []string{"WorkloadGroup"}, StaleAfter: minutes(1), OnStale: "drop"},
		}}, 2 * time.Minute, false, 2, 0},
		{"one kind is kept, the others are dropped", config.Staleness{StaleAfter: minutes(1), OnStale: "drop", Kinds: []config.KindStaleness{
			{Kinds: []string{"WorkloadGroup"}, StaleAfter: minutes(1), OnStale: "keep"},
		}}, 24 * time.Hour, true, 0, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newXDSScript(t, guarded(0, 0, 0), stale(tc.rule))
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan error)
				go func() { done <- s.x.gate.run(ctx) }()
				s.ok(s.sotw(xdsEntryURL, entries("e", 2)...))
				s.ok(s.sotw(groupURL, emptyOf(groups, "ns/g")))
				time.Sleep(24 * time.Hour)
				s.x.HandleState(adsclient.State{Phase: adsclient.Disconnected, Err: errors.New("gone"), Answered: true})
				time.Sleep(tc.after)
				synctest.Wait()
				st := s.x.Status()
				if s.count() != tc.entries || s.store.Counts()[groups] != tc.groups || st.Stale != tc.stale {
					t.Fatalf("%d entries, %d groups, stale %v; want %d, %d, %v", s.count(), s.store.Counts()[groups], st.Stale, tc.entries, tc.groups, tc.stale)
				}
				if n := st.Expired["networking.istio.io/ServiceEntry"]; n != 2-tc.entries {
					t.Errorf("%d entries are said to have expired", n)
				}
				// It comes back, with the same content, which is therefore not decoded again.
				s.open(adsclient.SotW, false)
				for _, url := range subscriptions(false, nil) {
					switch url {
					case xdsEntryURL:
						s.ok(s.sotw(url, entries("e", 2)...))
					case groupURL:
						s.ok(s.sotw(url, emptyOf(groups, "ns/g")))
					default:
						s.ok(s.sotw(url))
					}
				}
				st = s.x.Status()
				if s.count() != 2 || s.store.Counts()[groups] != 1 || st.Stale || len(st.Expired) != 0 || st.Held != nil {
					t.Fatalf("after it came back: %d entries, %d groups, status %+v", s.count(), s.store.Counts()[groups], st)
				}
				cancel()
				s.ok(<-done)
			})
		})
	}
}

func TestWhatIsRestoredTooLateIsNotServed(t *testing.T) {
	before := newXDSScript(t)
	before.ok(before.sotw(xdsEntryURL, entries("e", 3)...))
	s := restored(t, savedOf(before, time.Now().Add(-time.Hour)), true,
		stale(config.Staleness{StaleAfter: config.Duration(time.Minute), OnStale: "drop"}))
	s.demand("nothing is served", s.count() == 0 && s.x.Status().Expired["networking.istio.io/ServiceEntry"] == 3)
}

func TestStaleResourcesAreAnnotatedOnRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newXDSScript(t, stale(config.Staleness{StaleAfter: config.Duration(time.Minute), OnStale: "keep", Annotate: true}))
		s.x.gate.keeps = true
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- s.x.gate.run(ctx) }()
		s.ok(s.sotw(xdsEntryURL, xdsEntry("ns/a", "a.example")))
		s.x.gate.TakeChanges()
		plain := s.store.List(xdsEntryKind, "")[0]
		lost := time.Now().UTC().Format(time.RFC3339)
		s.x.HandleState(adsclient.State{Phase: adsclient.Disconnected, Err: errors.New("gone"), Answered: true})
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		r := s.store.List(xdsEntryKind, "")[0]
		if got := r.Metadata().Annotations[StaleAnnotation]; got != lost {
			t.Errorf("annotation %q, want %q", got, lost)
		}
		if changes, _ := s.x.gate.TakeChanges(); len(changes) > 0 {
			t.Error("the annotation is kept on disk")
		}
		s.open(adsclient.SotW, false)
		for _, url := range subscriptions(false, nil) {
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

func TestWhatOnlyAskingAgainBringsIsCountedAsDrift_C4(t *testing.T) {
	s := newXDSScript(t)
	s.ok(s.sotw(xdsEntryURL, entries("e", 2)...))
	s.relist = true
	s.ok(s.sotw(xdsEntryURL, entries("e", 2)...))
	s.demand("nothing was missed", len(s.x.Status().Drift) == 0)
	s.ok(s.sotw(xdsEntryURL, xdsEntry("ns/e0", "other.example"), xdsEntry("ns/new", "new.example")))
	s.demand("a change, an addition and a deletion were missed", s.x.Status().Drift["networking.istio.io/ServiceEntry"] == 3)
}

// emptyOf is a resource of a kind of networking.istio.io, with an empty body.
func emptyOf(kind mirror.Kind, name string) fakexds.Resource {
	r := fakexds.MCP(name, &networking.ServiceEntry{})
	return fakexds.Resource{Name: name, Any: rewrapped(r, &anypb.Any{TypeUrl: "type.googleapis.com/istio.networking.v1alpha3." + kind.Kind})}
}

func TestWhenTheDiskHasLostEverythingAllIsKeptAnew(t *testing.T) {
	s := newXDSScript(t)
	s.x.gate.keeps = true
	s.x.gate.follows(s.x)
	s.ok(s.sotw(xdsEntryURL, xdsEntry("ns/a", "a.example"), xdsEntry("ns/b", "b.example")))
	s.x.gate.TakeChanges()
	s.ok(s.x.gate.freezeNow())
	s.ok(s.sotw(xdsEntryURL, xdsEntry("ns/a", "a.example"), xdsEntry("ns/b", "b2.example")))
	s.x.gate.MarkAll()
	changes, _ := s.x.gate.TakeChanges()
	for _, c := range changes {
		host := hostOf(t, c.Record.Resource)
		if host != c.Key.Name+".example" || (c.Record.TypeURL == "") != (c.Key.Name == "b") {
			t.Errorf("%s is kept as %s, of type %q", c.Key, host, c.Record.TypeURL)
		}
	}
	if len(changes) != 2 {
		t.Errorf("%d are kept, want 2", len(changes))
	}
}
