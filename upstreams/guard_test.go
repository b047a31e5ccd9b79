package upstreams

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"meshrelay/config"
	"meshrelay/mirror"
	"meshrelay/state"
)

// running runs a script's gate until the test ends.
func (s *xdsScript) running() {
	s.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- s.x.gate.run(ctx) }()
	s.t.Cleanup(func() { cancel(); s.ok(<-done) })
}

// after lets time pass in a bubble.
func (s *xdsScript) after(d time.Duration) {
	s.t.Helper()
	time.Sleep(d) // in a bubble no time passes
	synctest.Wait()
}

// asked returns the types that the source was asked to repeat, and has not.
func (s *xdsScript) asked() []string {
	s.x.mu.Lock()
	defer s.x.mu.Unlock()
	return slices.Collect(maps.Keys(s.x.repeating))
}

// repeats answers what the source was asked to repeat: one type by answer, the others with
// nothing.
func (s *xdsScript) repeats(url string, answer func() error) {
	s.t.Helper()
	s.demand("the source was asked to repeat what it has", len(s.asked()) > 0)
	for _, u := range s.x.types {
		if u == url {
			s.ok(answer())
		} else {
			s.ok(s.sotw(u))
		}
	}
	s.demand("it has repeated all", len(s.asked()) == 0)
}

// names returns ns/P0, ns/P1, …
func names(prefix string, n int) (out []string) {
	for i := range n {
		out = append(out, fmt.Sprintf("ns/%s%d", prefix, i))
	}
	return out
}

// Another cluster behind the address, say: the share is of what the source had, not of what
// it has come to have by what it says instead.
func TestReplacingEverythingIsHeld(t *testing.T) {
	s := newXDSScript(t, guarded(30, 10, 0))
	s.ok(s.sotw(xdsEntryURL, entries("e", 40)...))
	s.ok(s.sotw(xdsEntryURL, entries("other", 100)...))
	s.lapse()
	s.demand("all 40 of 40 are removed: held", s.x.Status().Held != nil && s.x.Status().Held.Of == 40 && s.count() == 140)
}

func TestAdditionsDoNotReleaseWhatIsHeld(t *testing.T) {
	s := newXDSScript(t, guarded(30, 10, time.Hour))
	s.ok(s.sotw(xdsEntryURL, entries("e", 40)...))
	s.ok(s.sotw(xdsEntryURL))
	s.lapse()
	s.ok(s.sotw(xdsEntryURL, entries("other", 100)...))
	s.lapse()
	s.demand("none of the 40 is back, so they stay held", s.x.Status().Held != nil && s.count() == 140)
}

// What returns bit by bit looks on its way as if little was gone.
func TestWhatReturnsBitByBitIsNotRemovedOnTheWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newXDSScript(t, guarded(30, 10, time.Hour))
		s.running()
		all := entries("e", 40)
		s.ok(s.sotw(xdsEntryURL, all...))
		s.ok(s.sotw(xdsEntryURL, all[:1]...))
		for back := 2; back <= 35; back++ {
			s.after(time.Second)
			s.ok(s.sotw(xdsEntryURL, all[:back]...))
			s.demand("the others wait", s.x.Status().Held != nil && s.count() == 40)
		}
		s.after(guardWindow - time.Second)
		s.demand("still", s.count() == 40)
		s.after(2 * time.Second)
		s.demand("when nothing has returned for a minute, what is gone is gone", s.x.Status().Held == nil && s.count() == 35)
	})
}

func TestANewStreamThatHasMostOfItAgainEndsAHoldAtOnce(t *testing.T) {
	s := newXDSScript(t, guarded(30, 10, time.Hour))
	all := entries("e", 40)
	s.ok(s.sotw(xdsEntryURL, all...))
	s.ok(s.sotw(xdsEntryURL))
	s.lapse()
	s.demand("held", s.x.Status().Held != nil)
	syncAll(s, xdsEntryURL, func() error { return s.sotw(xdsEntryURL, all[:35]...) })
	s.demand("the five that are gone are gone", s.x.Status().Held == nil && s.count() == 35)
}

func TestWhatIsHeldForEverGoesOnlyWhenSomebodySaysSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newXDSScript(t, guarded(30, 10, 0))
		s.running()
		all := entries("e", 40)
		s.ok(s.sotw(xdsEntryURL, all...))
		s.ok(s.sotw(xdsEntryURL))
		s.lapse()
		syncAll(s, xdsEntryURL, func() error { return s.sotw(xdsEntryURL, all[:35]...) })
		s.after(24 * time.Hour)
		s.demand("five are held", s.x.Status().Held != nil && s.x.Status().Held.Removals == 5 && s.count() == 40)
		s.ok(s.sotw(xdsEntryURL, all[:39]...))
		s.demand("one is", s.x.Status().Held != nil && s.x.Status().Held.Removals == 1)
		s.ok(s.sotw(xdsEntryURL, all...))
		s.demand("it has all again: none is", s.x.Status().Held == nil && s.count() == 40)
	})
}

func TestAHoldEndsInTimeThroughRestarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := guarded(30, 10, 10*time.Minute)
		s := newXDSScript(t, g)
		s.ok(s.sotw(xdsEntryURL, entries("e", 40)...))
		saved := state.Saved{Meta: state.Meta{Synced: true, LastContact: time.Now()}, Records: s.x.kept()}
		for _, held := range []bool{true, false} {
			n := restored(t, saved, true, g)
			syncAll(n, xdsEntryURL, func() error { return n.sotw(xdsEntryURL) })
			n.lapse()
			time.Sleep(6 * time.Minute)
			if _, then := n.x.gate.due(time.Now()); !held {
				then()
				n.repeats(xdsEntryURL, func() error { return n.sotw(xdsEntryURL) })
			}
			n.demand(fmt.Sprintf("held: %v", held), (n.x.Status().Held != nil) == held && (n.count() == 40) == held)
			_, saved.Meta = n.x.gate.TakeChanges()
		}
		if !saved.Meta.HeldSince.IsZero() {
			t.Errorf("nothing is held, and kept is that something is since %v", saved.Meta.HeldSince)
		}
	})
}

func TestTheGateDoesNotSpinWhileAHoldThatIsOverWaitsForANewStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newXDSScript(t, guarded(30, 10, time.Minute))
		s.running()
		s.ok(s.sotw(xdsEntryURL, entries("e", 40)...))
		s.ok(s.delta(xdsEntryURL, names("e", 40)))
		s.demand("held", s.x.Status().Held != nil)
		s.after(55 * time.Second)
		s.open("sotw", false)
		s.after(6 * time.Second)
		if wait, _ := s.x.gate.due(time.Now()); s.x.Status().Held == nil || wait < 100*time.Millisecond {
			t.Errorf("due again in %v, held %+v", wait, s.x.Status().Held)
		}
	})
}

// never starts a script of a source that has never said anything.
func never(t *testing.T, change func(*config.Upstream, *config.Node)) *xdsScript {
	t.Helper()
	cfg, node := xdsConfig("127.0.0.1:1")
	change(&cfg, &node)
	s := &xdsScript{t: t, store: mirror.NewStore(), warns: &warnings{}}
	x, err := NewXDS(cfg, node, config.Provenance{}, s.store, slog.New(slog.DiscardHandler))
	s.ok(err)
	s.x = x
	s.running()
	return s
}

// What a source has had for a while counts as what it had, also when it has not said yet all
// that it has.
func TestAFewDeletionsInTheFirstSyncAreNoLoss(t *testing.T) {
	for _, tc := range []struct {
		name      string
		completes bool
	}{{"that ends", true}, {"that never ends", false}} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := never(t, guarded(30, 10, 0))
				s.answersAllBut(xdsEntryURL, virtualServiceURL)
				s.ok(s.delta(xdsEntryURL, nil, entries("e", 1000)...))
				s.after(2 * time.Second)
				s.ok(s.delta(xdsEntryURL, names("e", 11)))
				if tc.completes {
					s.after(2 * time.Second)
					s.ok(s.sotw(virtualServiceURL))
				}
				s.after(time.Minute)
				s.demand("11 of 1000 go", s.x.Status().Held == nil && s.count() == 989)
			})
		})
	}
}

// Something was held at the end of the former process, and is there now.
func TestAHoldOfBeforeIsForgottenWithoutACompleteSync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := guarded(30, 10, 10*time.Minute)
		s := newXDSScript(t, g)
		s.ok(s.sotw(xdsEntryURL, entries("e", 40)...))
		saved := state.Saved{Meta: state.Meta{Synced: true, LastContact: time.Now(), HeldSince: time.Now()}, Records: s.x.kept()}
		n := restored(t, saved, true, g)
		n.running()
		n.answersAllBut(xdsEntryURL, virtualServiceURL)
		n.ok(n.sotw(xdsEntryURL, entries("e", 40)...))
		n.after(24 * time.Hour)
		n.ok(n.delta(xdsEntryURL, names("e", 39)))
		n.after(time.Minute)
		n.demand("a new accident is held", n.x.Status().Held != nil && n.count() == 40)
	})
}

func TestWhatReturnsLateEndsAHoldAMinuteLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newXDSScript(t, guarded(30, 10, 24*time.Hour))
		s.running()
		all := entries("e", 40)
		s.ok(s.sotw(xdsEntryURL, all...))
		s.ok(s.sotw(xdsEntryURL, all[:1]...))
		s.after(2 * time.Minute)
		s.ok(s.sotw(xdsEntryURL, all[:35]...))
		s.after(guardWindow + time.Second)
		s.demand("five are removed", s.x.Status().Held == nil && s.count() == 35)
	})
}

func TestAGuardThatIsSwitchedOffHoldsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newXDSScript(t, guarded(30, 10, 0))
		s.running()
		s.ok(s.sotw(xdsEntryURL, entries("e", 40)...))
		s.ok(s.sotw(xdsEntryURL))
		s.lapse()
		s.demand("held", s.x.Status().Held != nil)
		cfg, node := xdsConfig("127.0.0.1:1")
		guarded(100, 10, 0)(&cfg, &node)
		s.x.gate.setPolicy(cfg)
		s.after(time.Second)
		s.demand("nothing is held", s.x.Status().Held == nil && s.count() == 0)
	})
}
