package upstreams

import (
	"testing"
	"testing/synctest"
	"time"

	"meshrelay/config"
	"meshrelay/state"
)

// A server that needs longer for all that it has than the time between two requests.
func TestWhatASlowServerHasRepeatedCountsWhenItIsAskedAgain_C4(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newXDSScript(t, guarded(30, 10, time.Hour))
		s.running()
		s.ok(s.sotw(xdsEntryURL, entries("e", 40)...))
		s.ok(s.sotw(xdsEntryURL))
		s.lapse()
		s.after(time.Hour)
		s.demand("it is asked to repeat", len(s.asked()) == len(s.x.types))
		for _, u := range s.x.types {
			s.demand("held until all is repeated", s.x.Status().Held != nil)
			s.ok(s.sotw(u))
			s.after(repeatEvery / 2)
		}
		s.demand("gone", s.x.Status().Held == nil && s.count() == 0)
	})
}

// What is deleted between two requests has been repeated by nobody.
func TestWhatGoesBetweenTwoRequestsToRepeatIsJudgedAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newXDSScript(t, guarded(30, 10, time.Hour))
		s.running()
		all := entries("e", 80)
		s.ok(s.sotw(xdsEntryURL, all...))
		s.ok(s.sotw(xdsEntryURL, all[:40]...))
		s.lapse()
		s.after(time.Hour)
		s.ok(s.sotw(xdsEntryURL, all[:40]...))
		s.ok(s.sotw(xdsEntryURL))
		s.lapse()
		s.after(repeatEvery + time.Second)
		for _, u := range s.x.types {
			if u != xdsEntryURL {
				s.ok(s.sotw(u))
			}
		}
		h := s.x.Status().Held
		s.demand("the first half is gone, the second is held", s.count() == 40 && h != nil && h.Removals == 40 && h.Clock == ClockRunning)
	})
}

// An operator is as fast as the end of a freeze.
func TestTheEndOfAFreezeEndsNoOtherFreeze(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newXDSScript(t, guarded(30, 10, 0))
		syncAll(s, xdsEntryURL, func() error { return s.sotw(xdsEntryURL, entries("e", 3)...) })
		then := s.x.kept()
		s.ok(errorOf(s.x.gate.freeze(Order{For: time.Hour})))
		s.ok(s.sotw(xdsEntryURL, entries("e", 4)...))
		time.Sleep(time.Hour)
		_, end := s.x.gate.due(time.Now())
		s.x.gate.rollBack(Order{To: 1}, then)
		s.ok(s.x.restateAll(nil))
		end()
		s.demand("the rollback stays", s.x.Status().Frozen != nil && s.x.Status().Frozen.Revision == 1 && s.count() == 3)
	})
}

// A broken file is repaired when the time of a hold is over.
func TestFilesThatAreWholeAgainRepeatWhatIsHeld(t *testing.T) {
	dir := t.TempDir()
	path, broken := dir+"/f.yaml", dir+"/broken.yaml"
	writeFile(t, path, manyEntries("e", 40))
	writeFile(t, broken, serviceEntry("z", "z.example"))
	before := restartedFile(t, dir, config.Guard{Percent: 30, Count: 10}, savedNothing)
	saved := state.Saved{Meta: state.Meta{Synced: true, LastContact: time.Now()}, Records: before.kept()}

	writeFile(t, broken, "a: [")
	f := restartedFile(t, dir, config.Guard{Percent: 30, Count: 10, HoldFor: config.OpenEnded(time.Nanosecond)}, saved)
	writeFile(t, path, manyEntries("e", 1))
	readFiles(t, f)
	if h := f.Status().Held; h == nil || h.Removals != 39 || h.Clock != ClockOver {
		t.Fatalf("held: %+v", h)
	}
	writeFile(t, broken, serviceEntry("z", "z.example"))
	readFiles(t, f)
	if h, n := f.Status().Held, f.store.Counts()[xdsEntryKind]; h != nil || n != 2 {
		t.Errorf("%d resources, held: %+v", n, h)
	}
}

// Other rules for an upstream need a new stream, and are no release.
func TestAHoldOutlivesAReloadThatChangesItsUpstream(t *testing.T) {
	server := startServer(t, xdsEntry("ns/a", "a.example"), xdsEntry("ns/b", "b.example"), xdsEntry("ns/c", "c.example"))
	u := xdsUpstream("east", server)
	u.Guard = config.Guard{Percent: 30, Count: 10, Empty: config.EmptyHold}
	r := runManager(t, nil, u)
	r.awaitServed("ns/a=a.example@east ns/b=b.example@east ns/c=c.example@east")
	server.Set(xdsEntryURL)
	server.Push(xdsEntryURL)
	r.await("the deletions are held", func() bool { return r.m.Status()[0].Held != nil })
	before := *r.m.Status()[0].Held

	u.Rewrite.Labels.Set = map[string]string{"n": "1"}
	r.mustApply(u)
	r.await("the upstream has synced under the new rules", func() bool {
		return r.m.Status()[0].State == StateSynced && r.m.Status()[0].Protocol != ""
	})
	st := r.m.Status()[0]
	if st.Held == nil || st.Held.ID != before.ID || !st.Held.Since.Equal(before.Since) {
		t.Fatalf("held is %+v, was %+v", st.Held, before)
	}
	server.Set(xdsEntryURL, xdsEntry("ns/a", "a.example"), xdsEntry("ns/b", "b.example"), xdsEntry("ns/c", "c.example"))
	server.Push(xdsEntryURL)
	r.await("nothing is held any more", func() bool { return r.m.Status()[0].Held == nil })
	r.awaitServed("ns/a=a.example@east ns/b=b.example@east ns/c=c.example@east")
}
