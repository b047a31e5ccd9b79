package upstreams_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"meshrelay/events"
	"meshrelay/upstreams/intake"
)

func TestAnOrderToOneReplicaIsInForceOnAllAndTellsOnHowMany(t *testing.T) {
	inWorld(t, 3, func(w *world) {
		a, b := w.replicas[0], w.replicas[1]
		w.has(numbered(0, 20)...)
		w.quiet()
		e := a.mustOrder("freeze", intake.Order{Reason: "INC-1"})
		if r := e.Replicas; r == nil || r.Did != 3 || r.Of != 3 || len(r.Unreachable) != 0 || r.Local {
			t.Errorf("freeze: %+v", r)
		}
		w.want("frozen, with the reason", func(r *replicaRun) bool {
			f := r.status().Frozen
			return f != nil && f.Reason == "INC-1" && f.Decision != ""
		})
		b.wantRefused("freeze", intake.Order{}, "is frozen already")
		w.has(numbered(5, 25)...)
		w.wantServed("frozen", numbered(0, 20))
		w.replicas[2].end()
		e = b.mustOrder("unfreeze", intake.Order{})
		if r := e.Replicas; r == nil || r.Did != 2 || r.Of != 3 || len(r.Unreachable) != 1 || r.Unreachable[0] != "c" {
			t.Errorf("unfreeze: %+v", r)
		}
		w.quiet()
		w.want("not frozen", func(r *replicaRun) bool { return r.status().Frozen == nil })
		w.wantLog("freeze/a", "unfreeze/b")
	})
}

func TestAHoldOfOneReplicaHoldsOnAllAndBringsBackWhatHasGone(t *testing.T) {
	inWorld(t, 3, func(w *world) {
		a, b, c := w.replicas[0], w.replicas[1], w.replicas[2]
		w.has(numbered(0, 40)...)
		w.after(2 * time.Minute)
		b.has(numbered(2, 40)...) // two go as usual
		b.has(numbered(4, 40)...)
		a.has() // everything: the guard holds
		w.quiet()
		w.wantLog("hold/a")
		w.wantServed("what b has let go is back", numbered(0, 40))
		if a.holds() != 40 || b.holds() != 4 || c.holds() != 0 || c.status().Joined == nil || c.status().Joined.Replica != "a" {
			t.Errorf("held %d, %d, %d, joined %+v", a.holds(), b.holds(), c.holds(), c.status().Joined)
		}
		c.has(numbered(1, 40)...) // a deletion that no guard would hold waits, too
		w.quiet()
		w.wantServed("all deletions wait", numbered(0, 40))
		log, _, _ := w.store.read()
		if r := log.Records()[0]; r.Content == "" || r.Number != 40 || len(r.Content) < 16 {
			t.Errorf("the record: %+v", r)
		}
		if strings.Contains(log.Encode(), "n0") {
			t.Errorf("the log has names: %s", log.Encode())
		}
		b.has()
		c.has()
		w.quiet()
		e := c.mustOrder("release", intake.Order{All: true})
		if e.Removed != 40 || e.Replicas.Did != 3 {
			t.Errorf("release: %+v %+v", e, e.Replicas)
		}
		w.quiet()
		w.wantServed("released on all", nil)
		w.wantLog("hold/a", "release/c")
	})
}

func TestAHoldIsJoinedThroughConflictsLostAnswersAndASlowWatch(t *testing.T) {
	inWorld(t, 3, func(w *world) {
		w.store.set(func() { w.store.conflicts, w.store.lose, w.store.delay = 3, 2, 2*time.Second })
		w.has(numbered(0, 40)...)
		w.after(2 * time.Minute)
		w.replicas[1].has(numbered(2, 40)...)
		w.replicas[0].has()
		w.after(8 * time.Second)
		w.wantLog("hold/a")
		w.wantServed("joined", numbered(0, 40))
	})
}

func TestAReleasedHoldIsReleasedOnAReplicaThatHoldsItLater(t *testing.T) {
	inWorld(t, 3, func(w *world) {
		a, c := w.replicas[0], w.replicas[2]
		w.has(numbered(0, 40)...)
		w.after(2 * time.Minute)
		c.end()
		a.has()
		w.replicas[1].has()
		w.quiet()
		a.mustOrder("release", intake.Order{Hold: a.status().Held.ID})
		w.quiet()
		c.start()
		w.quiet()
		if got := c.serves(); len(got) != 40 {
			t.Errorf("from disk: %v", got)
		}
		c.has()
		w.quiet()
		w.wantServed("the same on all", nil)
		w.wantLog("hold/a", "release/a")
		// It was decided for this accident, not for the next one.
		w.has(numbered(0, 40)...)
		w.after(2 * time.Minute)
		w.has()
		w.quiet()
		w.wantServed("held again", numbered(0, 40))
	})
}

func TestAPartOfAHoldIsReleasedOnAll(t *testing.T) {
	inWorld(t, 2, func(w *world) {
		w.has(numbered(0, 40)...)
		w.after(2 * time.Minute)
		w.has()
		w.quiet()
		part, err := intake.ParsePart("*/ns")
		if err != nil {
			t.Fatal(err)
		}
		w.replicas[1].mustOrder("release", intake.Order{Only: []intake.Part{part}})
		w.quiet()
		w.wantServed("released", nil)
	})
}

func TestDeletionsThatNoGuardHoldsGoStoreOrNoStore(t *testing.T) {
	inWorld(t, 2, func(w *world) {
		w.has(numbered(0, 40)...)
		w.after(2 * time.Minute)
		w.store.setDown(true)
		w.has(numbered(2, 40)...)
		w.wantServed("without the store", numbered(2, 40))
	})
}

func TestWithTheStoreDownNothingIsReleasedAndNothingHeldGoesAndServingGoesOn(t *testing.T) {
	inWorld(t, 3, func(w *world) {
		a := w.replicas[0]
		w.has(numbered(0, 40)...)
		w.after(2 * time.Minute)
		w.store.setDown(true)
		w.has() // held, and nobody has recorded it
		w.after(time.Hour)
		w.wantServed("nothing held goes by the clock", numbered(0, 40))
		w.want("held", func(r *replicaRun) bool { return r.holds() == 40 })
		a.wantRefused("release", intake.Order{All: true}, "--local")
		a.wantRefused("freeze", intake.Order{}, "--local")
		w.want("shown", func(r *replicaRun) bool {
			st := r.m.Replicas()
			return !st.Reachable && strings.Contains(strings.Join(st.Problems(), " "), "the store can not be reached")
		})
		for _, r := range w.replicas {
			r.has("x")
		}
		w.wantServed("serving goes on", append(numbered(0, 40), "x"))
		w.store.setDown(false)
		w.after(time.Minute)
		w.want("the hold is recorded, and its end", func(r *replicaRun) bool { return r.holds() == 0 && r.m.Replicas().Reachable })
		w.wantServed("and it ends on all", []string{"x"})
	})
}

func TestAFreezeWhoseTimeIsOverEndsOnAllWhenThatIsRecorded(t *testing.T) {
	inWorld(t, 3, func(w *world) {
		w.has(numbered(0, 20)...)
		w.quiet()
		w.replicas[0].mustOrder("freeze", intake.Order{For: time.Hour})
		w.store.setDown(true)
		w.after(2 * time.Hour)
		w.want("frozen while the store is down", func(r *replicaRun) bool { return r.status().Frozen != nil })
		w.replicas[1].wantRefused("unfreeze", intake.Order{}, "--local")
		w.store.setDown(false)
		w.after(time.Minute)
		w.want("unfrozen", func(r *replicaRun) bool { return r.status().Frozen == nil })
	})
}

func TestAHoldEndsOnAllWhenItsClockIsOverAndThatIsRecorded(t *testing.T) {
	inWorld(t, 3, func(w *world) {
		w.has(numbered(0, 40)...)
		w.after(2 * time.Minute)
		w.replicas[0].has()
		w.after(30 * time.Second)
		w.replicas[1].has()
		w.replicas[2].has()
		w.after(9 * time.Minute)
		w.wantServed("held", numbered(0, 40))
		w.after(31 * time.Second)
		w.wantServed("over on all at once, though two clocks still run", nil)
		w.wantLog("hold/a", "over/a")
	})
}

func TestAHoldEndsOnAllWhenTheUpstreamHasEverythingAgain(t *testing.T) {
	inWorld(t, 3, func(w *world) {
		w.has(numbered(0, 40)...)
		w.after(2 * time.Minute)
		w.replicas[0].has()
		w.quiet()
		w.replicas[1].has(numbered(1, 40)...)
		w.replicas[0].has(numbered(0, 40)...)
		w.quiet()
		w.wantLog("hold/a", "returned/a")
		w.want("no hold", func(r *replicaRun) bool { return r.holds() == 0 && r.status().Joined == nil })
		if got := w.replicas[1].serves(); len(got) != 39 {
			t.Errorf("what no guard holds goes after that: %d", len(got))
		}
	})
}

func TestALocalDecisionIsVisibleAndAgreedWhenTheStoreIsBack(t *testing.T) {
	inWorld(t, 3, func(w *world) {
		a, b := w.replicas[0], w.replicas[1]
		w.has(numbered(0, 40)...)
		w.after(2 * time.Minute)
		a.wantRefused("freeze", intake.Order{Local: true}, "leave out --local")
		w.has()
		w.quiet()
		w.store.setDown(true)
		w.quiet()
		e := a.mustOrder("release", intake.Order{All: true, Local: true})
		if !e.Replicas.Local || len(a.serves()) != 0 || len(b.serves()) != 40 {
			t.Errorf("%+v: a serves %d, b %d", e.Replicas, len(a.serves()), len(b.serves()))
		}
		b.mustOrder("freeze", intake.Order{Local: true, Reason: "INC-2"})
		if lines := strings.Join(b.m.Replicas().Problems(), "\n"); !strings.Contains(lines, "local decision, not agreed: freeze scripted-east by ann") {
			t.Errorf("problems:\n%s", lines)
		}
		w.store.setDown(false)
		w.after(time.Minute)
		w.want("agreed", func(r *replicaRun) bool {
			f := r.status().Frozen
			return len(r.m.Replicas().Local) == 0 && f != nil && f.Reason == "INC-2" && f.Decision != ""
		})
		if got := w.kinds(); len(got) != 3 || got[0] != "hold/a" {
			t.Errorf("log %v", got)
		}
	})
}

func TestALocalDecisionIsDroppedWithAnEventWhenOthersHaveDecided(t *testing.T) {
	inWorld(t, 2, func(w *world) {
		a, b := w.replicas[0], w.replicas[1]
		w.has(numbered(0, 20)...)
		w.quiet()
		b.mustOrder("freeze", intake.Order{})
		w.store.setDown(true)
		w.quiet()
		a.mustOrder("unfreeze", intake.Order{Local: true})
		if a.status().Frozen != nil {
			t.Fatal("not unfrozen")
		}
		w.has(numbered(0, 21)...)
		a.end() // it does not see what b decides
		w.store.setDown(false)
		w.quiet()
		b.mustOrder("unfreeze", intake.Order{})
		b.mustOrder("freeze", intake.Order{Reason: "again"})
		a.start()
		a.has(numbered(0, 22)...)
		w.quiet()
		w.want("frozen by the newer decision", func(r *replicaRun) bool { f := r.status().Frozen; return f != nil && f.Reason == "again" })

		// The same without a restart.
		w.store.setDown(true)
		w.quiet()
		a.mustOrder("unfreeze", intake.Order{Local: true})
		log, _, _ := w.store.read()
		u := log.State().Upstreams["scripted-east"].Frozen
		log, err := log.Append(recordOf("unfreeze", u.ID, "b"))
		if err != nil {
			t.Fatal(err)
		}
		w.store.set(func() { w.store.log, w.store.down = log, false })
		w.after(time.Minute)
		if page := textOf(a); !strings.Contains(page, "the local decision unfreeze is dropped") {
			t.Errorf("the journal:\n%s", page)
		}
		w.want("not frozen", func(r *replicaRun) bool { return r.status().Frozen == nil && len(r.m.Replicas().Local) == 0 })
	})
}

func TestALocalFreezeEndsWhenOthersHaveUnfrozen(t *testing.T) {
	inWorld(t, 1, func(w *world) {
		a := w.replicas[0]
		w.has(numbered(0, 20)...)
		w.quiet()
		w.store.setDown(true)
		w.quiet()
		a.mustOrder("freeze", intake.Order{Local: true})
		log, _, _ := w.store.read()
		log, _ = log.Append(recordOf("freeze", "", "b"))
		log, err := log.Append(recordOf("unfreeze", "freeze-b", "b"))
		if err != nil {
			t.Fatal(err)
		}
		w.store.set(func() { w.store.log, w.store.down = log, false })
		w.after(time.Minute)
		w.want("not frozen", func(r *replicaRun) bool { return r.status().Frozen == nil })
	})
}

func TestAReplicaThatStartsFoldsTheLogBeforeItReleasesClients(t *testing.T) {
	inWorld(t, 2, func(w *world) {
		a, b := w.replicas[0], w.replicas[1]
		w.has(numbered(0, 40)...)
		w.after(2 * time.Minute)
		b.has(numbered(2, 40)...)
		b.end()
		a.has()
		w.quiet()
		w.store.set(func() { w.store.delay = 3 * time.Second })
		b.start()
		served := make(chan []string, 1)
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		go func() {
			if b.m.AwaitFirstSync(ctx, func() []string { return nil }) == nil {
				served <- b.serves()
			}
		}()
		w.after(2 * time.Second)
		select {
		case <-served:
			t.Error("clients are served before the log is read")
		default:
		}
		w.after(3 * time.Second)
		select {
		case names := <-served:
			if len(names) != 40 {
				t.Errorf("clients are served %d, want what the other replica holds, too", len(names))
			}
		default:
			t.Error("clients are not served")
		}
	})
}

func TestAReplicaThatStartsWithoutTheStoreServesByItsDiskAndSaysSo(t *testing.T) {
	inWorld(t, 2, func(w *world) {
		b := w.replicas[1]
		w.has(numbered(0, 40)...)
		w.quiet()
		b.mustOrder("freeze", intake.Order{})
		b.end()
		w.store.setDown(true)
		b.start()
		served := make(chan struct{})
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		go func() {
			if b.m.AwaitFirstSync(ctx, func() []string { return nil }) == nil {
				close(served)
			}
		}()
		w.after(12 * time.Second)
		select {
		case <-served:
		default:
			t.Error("clients are not served")
		}
		if st := b.m.Replicas(); st.Applied || st.Reachable || b.status().Frozen == nil || len(b.serves()) != 40 {
			t.Errorf("%+v, frozen %+v", st, b.status().Frozen)
		}
		b.wantRefused("unfreeze", intake.Order{Force: true}, "--local")
		b.mustOrder("unfreeze", intake.Order{Force: true, Local: true})
		if b.status().Frozen != nil {
			t.Error("still frozen")
		}
	})
}

func TestAFreezeFromBeforeTheReplicasIsAgreed(t *testing.T) {
	inWorld(t, 2, func(w *world) {
		a := w.replicas[0]
		w.has(numbered(0, 20)...)
		w.quiet()
		w.store.setDown(true)
		w.quiet()
		a.mustOrder("freeze", intake.Order{Local: true, Reason: "old"})
		a.end() // the disk has a freeze on which nobody has agreed
		w.store.setDown(false)
		a.start()
		w.after(time.Minute)
		w.want("frozen", func(r *replicaRun) bool { f := r.status().Frozen; return f != nil && f.Reason == "old" })
		w.wantLog("freeze/a")
	})
}

func TestServingWithoutAnUpstreamIsDecidedForAllUntilOneHasSynced(t *testing.T) {
	inWorld(t, 3, func(w *world) {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		served := make(chan string, 3)
		await := func(r *replicaRun) {
			go func() {
				if r.m.AwaitFirstSync(ctx, func() []string { return nil }) == nil {
					served <- r.name
				}
			}()
		}
		for _, r := range w.replicas {
			await(r)
		}
		w.after(time.Minute)
		if len(served) > 0 {
			t.Fatal("clients are served")
		}
		if e := w.replicas[1].mustOrder("serve-without", intake.Order{}); e.Replicas == nil || e.Replicas.Did != 3 {
			t.Errorf("%+v", e.Replicas)
		}
		w.quiet()
		if len(served) != 3 {
			t.Errorf("%d replicas serve", len(served))
		}
		w.replicas[0].has("a")
		w.quiet()
		w.wantLog("serve-without/b", "synced/a") // the next replica without a disk waits again
	})
}

func TestTheJournalHasWhoGaveAnOrderHere(t *testing.T) {
	inWorld(t, 2, func(w *world) {
		w.has(numbered(0, 5)...)
		w.replicas[0].mustOrder("freeze", intake.Order{Reason: "INC-3"})
		w.quiet()
		for i, want := range []string{"ann", ""} {
			got := "none"
			for _, e := range w.replicas[i].journal.Read(events.Query{}).Events {
				if e.Type == events.Frozen && e.Operator != nil {
					got = e.Operator.User
				} else if e.Type == events.Frozen {
					got = ""
				}
			}
			if got != want {
				t.Errorf("replica %d: %q", i, got)
			}
		}
	})
}

func TestWithoutReplicasNoRecordIsNeeded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := startQuiet(t, t.TempDir(), stillFresh, true)
		defer q.end()
		synctest.Wait()
		e, err := q.m.Order(t.Context(), "scripted-east", "freeze", intake.Order{Local: true})
		if st := q.m.Status()[0]; err != nil || e.Replicas != nil || q.m.Replicas() != nil || st.Frozen.Decision != "" || st.Joined != nil {
			t.Errorf("%+v, %v, %+v", e, err, st)
		}
	})
}
