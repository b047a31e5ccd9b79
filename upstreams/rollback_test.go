package upstreams

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"meshrelay/config"
	"meshrelay/state"
)

func TestWhatWaitsAfterARollbackIsWhatDiffers(t *testing.T) {
	s := newXDSScript(t)
	s.ok(s.sotw(xdsEntryURL, xdsEntry("ns/a", "a.example")))
	then := s.x.kept()
	s.ok(s.sotw(xdsEntryURL, xdsEntry("ns/a", "a.example"), xdsEntry("ns/b", "b.example")))
	s.ok(s.x.gate.freezeNow())
	s.ok(s.sotw(xdsEntryURL, xdsEntry("ns/a", "a.example")))
	s.lapse()
	s.demand("b waits", s.x.Status().Frozen.Waiting == 1)
	s.x.gate.rollBack(Order{To: 1}, then)
	s.ok(s.x.restateAll(nil))
	s.holds("ns/a=a.example")
	s.demand("nothing waits: the source and what is served are the same", s.x.Status().Frozen.Waiting == 0)
}

// Before the source has said anything since the restart, what it said last is on disk.
func TestUnfreezingAfterARollbackGivesNoMixOfTwoStates(t *testing.T) {
	s := newXDSScript(t)
	s.ok(s.sotw(xdsEntryURL, xdsEntry("ns/a", "a.example"), xdsEntry("ns/old", "old.example")))
	then := s.x.kept()
	s.ok(s.sotw(xdsEntryURL, xdsEntry("ns/a", "a.example"), xdsEntry("ns/new", "new.example")))
	s.lapse()
	n := restored(t, savedOf(s, time.Now()), true)
	n.x.gate.rollBack(Order{To: 1}, then)
	n.ok(n.x.restateAll(nil))
	n.holds("ns/a=a.example", "ns/old=old.example")
	n.ok(n.x.restateAll(n.x.gate.thawNow))
	n.holds("ns/a=a.example", "ns/new=new.example")
}

func TestRulesThatChangeWhileASourceIsFrozenAreNoLoss(t *testing.T) {
	prefix := func(u *config.Upstream, _ *config.Node) { u.Rewrite.NamePrefix = "p-" }
	s := newXDSScript(t, guarded(30, 10, 0))
	s.ok(s.sotw(xdsEntryURL, entries("e", 40)...))
	s.ok(s.x.gate.freezeNow())
	n := successor(s, false, guarded(30, 10, 0), prefix)
	syncAll(n, xdsEntryURL, func() error { return n.sotw(xdsEntryURL, entries("e", 40)...) })
	n.lapse()
	n.demand("frozen", n.count() == 40)
	n.ok(n.x.restateAll(n.x.gate.thawNow))
	n.demand("only the new names are served, and none is held", n.count() == 40 && n.x.Status().Held == nil)
}

func TestWhatIsFrozenOutlivesItsExpiryAndARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rule := stale(drops(time.Minute))
		before := newXDSScript(t)
		before.ok(before.sotw(xdsEntryURL, entries("e", 4)...))
		saved := savedOf(before, time.Now().Add(-time.Hour))
		saved.Meta.Frozen = &state.Frozen{Since: time.Now()}
		s := restored(t, saved, false, rule)
		s.running()
		s.after(time.Hour)
		s.demand("served", s.count() == 4)
		syncAll(s, xdsEntryURL, func() error { return s.sotw(xdsEntryURL, entries("e", 3)...) })
		s.demand("still", s.count() == 4 && s.x.Status().Frozen.Waiting == 1)
		s.ok(s.x.restateAll(s.x.gate.thawNow))
		s.demand("followed", s.count() == 3 && s.x.Status().Frozen == nil)
	})
}

func TestWhatARollbackBroughtIsJudgedByTheGuardWhenUnfrozen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newXDSScript(t, guarded(30, 10, 0))
		s.running()
		s.ok(s.sotw(xdsEntryURL, entries("e", 100)...))
		then := s.x.kept()
		s.ok(s.sotw(xdsEntryURL, entries("e", 20)...))
		s.lapse()
		s.ok(s.x.gate.releaseAll())
		s.after(time.Hour)
		s.x.gate.rollBack(Order{To: 1}, then)
		s.ok(s.x.restateAll(nil))
		s.after(10 * time.Second)
		s.ok(s.x.restateAll(s.x.gate.thawNow))
		s.demand("held", s.count() == 100 && s.x.Status().Held.Removals == 80)
		s.ok(s.x.gate.releaseAll())
		s.demand("as the source has it", s.count() == 20 && s.x.Status().Held == nil)
		s.ok(s.sotw(xdsEntryURL, entries("e", 19)...))
		s.after(10 * time.Second)
		s.demand("one deletion goes through", s.x.Status().Held == nil && s.count() == 19)
	})
}

// What the history says of each revision: who, or what, has made it.
func TestARevisionSaysWhatHasLedToIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newXDSScript(t, guarded(30, 10, time.Hour), stale(drops(time.Minute)))
		s.x.gate.keeps = true
		s.running()
		var changes []state.Change
		by := func(what string, n int, want string) {
			t.Helper()
			var meta state.Meta
			if changes, meta = s.x.gate.TakeChanges(); len(changes) != n || meta.By != want {
				t.Errorf("%s: %d changes by %q, want %d by %q", what, len(changes), meta.By, n, want)
			}
		}
		s.ok(s.sotw(xdsEntryURL, entries("e", 40)...))
		by("the source", 40, "")
		then := s.x.kept()
		s.ok(s.sotw(xdsEntryURL, entries("e", 1)...))
		by("it is held", 0, "")
		s.ok(s.x.gate.releaseAll())
		by("let go", 39, "release")
		s.x.gate.rollBack(Order{To: 3}, then)
		s.ok(s.x.restateAll(nil))
		by("rolled back", 39, "rollback to 3")
		s.x.gate.GiveBack(changes)
		by("and not written", 39, "rollback to 3")
		s.ok(s.x.restateAll(s.x.gate.thawNow))
		by("followed again, and held", 0, "unfreeze")
		s.ok(errorOf(s.x.gate.freeze(Order{For: time.Minute})))
		s.after(time.Minute)
		by("followed again by itself, and held", 0, "end of the freeze")
		s.ok(s.x.gate.releaseAll())
		by("let go again", 39, "release")
		s.ok(s.sotw(xdsEntryURL, entries("e", 40)...))
		s.ok(s.sotw(xdsEntryURL, entries("e", 1)...))
		by("nothing but the source", 39, "")
		s.after(time.Hour + time.Second)
		s.repeats(xdsEntryURL, func() error { return s.sotw(xdsEntryURL, entries("e", 1)...) })
		by("held for long enough", 39, "guard.holdFor")
		s.disconnects()
		s.after(2 * time.Minute)
		by("out of contact", 1, "staleness")
		s.ok(s.sotw(xdsEntryURL))
		by("nothing", 0, "")
	})
}

// Nothing can be written, and names come and go for ever.
func TestChurnWhileTheDiskIsFullIsBounded(t *testing.T) {
	s := newXDSScript(t)
	s.x.gate.keeps = true
	s.ok(s.delta(xdsEntryURL, nil, xdsEntry("ns/stays", "stays.example")))
	s.x.gate.TakeChanges()
	for i := range maxGone/1000 + 2 {
		var added []string
		pods := entries(fmt.Sprintf("pod-%d-", i), 1000)
		for _, r := range pods {
			added = append(added, r.Name)
		}
		s.ok(s.delta(xdsEntryURL, nil, pods...))
		changes, _ := s.x.gate.TakeChanges()
		s.x.gate.GiveBack(changes)
		s.ok(s.delta(xdsEntryURL, added))
	}
	s.demand("one is left", s.count() == 1)
	if n := len(s.x.gate.passed); n > maxGone+2 {
		t.Errorf("%d changes wait to be written", n)
	}
	for range 2 { // it is not lost when that can not be written either
		changes, meta := s.x.gate.TakeChanges()
		kept := 0
		for _, c := range changes {
			if c.Record != nil {
				kept++
			}
		}
		if !meta.Whole || kept != 1 {
			t.Errorf("whole %v, with %d resources", meta.Whole, kept)
		}
		s.x.gate.GiveBack(changes)
	}
	s.x.gate.TakeChanges()
	if _, meta := s.x.gate.TakeChanges(); meta.Whole {
		t.Error("it is whole once more")
	}
}
