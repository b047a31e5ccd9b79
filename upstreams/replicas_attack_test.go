package upstreams_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"meshrelay/config"
	"meshrelay/decisions"
	"meshrelay/upstreams/intake"
)

func TestAReleaseFromBeforeARestartDoesNotReleaseTheNextAccident(t *testing.T) {
	for _, when := range []string{"later", "at the start", "later, with a new disk"} {
		inWorld(t, 2, func(w *world) {
			w.has(numbered(0, 40)...)
			w.after(2 * time.Minute)
			w.has()
			w.quiet()
			w.replicas[0].mustOrder("release", intake.Order{All: true})
			w.quiet()
			w.wantServed("released", nil)
			w.has(numbered(0, 40)...) // the same as before
			w.after(2 * time.Minute)
			for _, r := range w.replicas {
				r.end()
				if when == "later, with a new disk" {
					r.dir = t.TempDir()
				}
				r.start()
			}
			w.after(time.Second)
			if when != "at the start" {
				w.has(numbered(0, 40)...)
				w.after(2 * time.Minute)
			}
			w.has()
			w.quiet()
			w.wantServed("it is held again", numbered(0, 40))
			w.wantLog("hold/a", "release/a", "hold/a")
		})
	}
}

func TestAHoldWhoseReplicaIsGoneEndsWhenItsTimeIsOverElsewhere(t *testing.T) {
	inWorld(t, 2, func(w *world) {
		a, b := w.replicas[0], w.replicas[1]
		w.has(numbered(0, 40)...)
		w.after(2 * time.Minute)
		a.has()
		w.quiet()
		a.end() // for ever
		w.after(9 * time.Minute)
		b.has(numbered(1, 40)...)
		w.quiet()
		w.wantServed("the hold is open", numbered(0, 40))
		w.after(time.Hour)
		w.wantServed("it is over", numbered(1, 40))
		w.want("no hold", func(r *replicaRun) bool { return r.status().Joined == nil })
	})
	inWorld(t, 2, func(w *world) {
		a, b := w.replicas[0], w.replicas[1]
		w.has(numbered(0, 40)...)
		w.after(2 * time.Minute)
		a.has()
		w.quiet()
		a.end()
		w.after(time.Hour)
		w.want("no hold, where nothing waits", func(r *replicaRun) bool { return r.status().Joined == nil })
		b.has(numbered(1, 40)...)
		w.wantServed("as usual", numbered(1, 40))
		w.wantLog("hold/a", "returned/b")
	})
}

func TestReplicasOfOneNameDoNotEndEachOthersHolds(t *testing.T) {
	inWorld(t, 2, func(w *world) {
		b := w.replicas[1]
		b.end()
		b.name = "a"
		b.start()
		w.has(numbered(0, 40)...)
		w.after(2 * time.Minute)
		w.replicas[0].has()
		w.after(30 * time.Second)
		if got := w.kinds(); len(got) > 2 {
			t.Errorf("the log has %d records: %v", len(got), got[:3])
		}
	})
}

func TestAnUpstreamThatAReloadAddsFollowsWhatIsDecided(t *testing.T) {
	inWorld(t, 1, func(w *world) {
		a := w.replicas[0]
		log, err := decisions.Log{}.Append(decisions.Record{ID: "1", Kind: decisions.Freeze, Upstream: "scripted-west", Replica: "b"})
		if err != nil {
			t.Fatal(err)
		}
		w.store.set(func() { w.store.log = log })
		w.quiet()
		next := *a.cfg
		next.Upstreams = append(slices.Clone(next.Upstreams), config.Upstream{Name: "scripted-west", ClusterID: "west", Guard: w.guard, Source: &scriptedConfig{}})
		a.checks = time.Second // of the config, which lasts
		if err := a.m.Apply(&next); err != nil {
			t.Fatal(err)
		}
		w.after(time.Minute)
		if st := a.m.Status()[1]; st.Frozen == nil || st.Frozen.Decision != "1" {
			t.Errorf("%+v", st.Status)
		}
	})
}

func TestAReplicaThatCanNotRollBackDoesNotCountAsOneThatHas(t *testing.T) {
	inWorld(t, 2, func(w *world) {
		a, b := w.replicas[0], w.replicas[1]
		b.end()
		w.noPeers = true // it can not ask a for the content
		b.start()
		a.has(numbered(0, 20)...)
		w.quiet()
		w.has(numbered(0, 22)...)
		w.quiet()
		if e := a.mustOrder("rollback", intake.Order{To: 1}); e.Replicas.Did != 1 || e.Replicas.Of != 2 {
			t.Errorf("rollback: %+v", e.Replicas)
		}
		next := *b.cfg
		next.Upstreams = append(slices.Clone(next.Upstreams), config.Upstream{Name: "scripted-west", ClusterID: "west", Guard: w.guard, Source: &scriptedConfig{}})
		for _, r := range w.replicas {
			if err := r.m.Apply(&next); err != nil {
				t.Fatal(err)
			}
		}
		w.quiet()
		e, err := a.m.Order(context.Background(), "scripted-west", "freeze", intake.Order{})
		if err != nil || e.Replicas.Did != 2 {
			t.Errorf("an order about another upstream: %+v, %v", e.Replicas, err)
		}
		b.mustOrder("unfreeze", intake.Order{Force: true})
		w.quiet()
		if e := a.mustOrder("freeze", intake.Order{}); e.Replicas.Did != 2 {
			t.Errorf("afterwards: %+v", e.Replicas)
		}
	})
}

func TestALogThatWasEditedIsTheSameOnAllReplicas(t *testing.T) {
	inWorld(t, 2, func(w *world) {
		a, b := w.replicas[0], w.replicas[1]
		w.has(numbered(0, 20)...)
		w.quiet()
		a.mustOrder("freeze", intake.Order{})
		w.quiet()
		edited, err := decisions.Decode(`{"seq":2}`)
		if err != nil {
			t.Fatal(err)
		}
		b.end()
		w.store.set(func() { w.store.log = edited })
		b.start()
		w.quiet()
		w.want("not frozen", func(r *replicaRun) bool { return r.status().Frozen == nil })
	})
}

func TestLocalDecisionsAreAgreedFiveSecondsAfterTheStoreIsBack(t *testing.T) {
	inWorld(t, 2, func(w *world) {
		w.has(numbered(0, 20)...)
		w.quiet()
		w.store.setDown(true)
		w.quiet()
		w.replicas[0].mustOrder("freeze", intake.Order{Local: true})
		w.after(time.Hour)
		w.store.setDown(false)
		w.after(5 * time.Second)
		w.want("frozen on both", func(r *replicaRun) bool { f := r.status().Frozen; return f != nil && f.Decision != "" })
	})
}

func TestWhatIsHeldWithAnotherReplicaStaysAfterARestartWithoutTheStore(t *testing.T) {
	inWorld(t, 2, func(w *world) {
		a, b := w.replicas[0], w.replicas[1]
		w.restartsWithAHoldAndNoStore(a, b)
		b.has(numbered(2, 40)...)
		w.after(time.Hour)
		w.wantServed("held", numbered(0, 40))
		w.store.set(func() {}) // a look at the store
		w.want("still held", func(r *replicaRun) bool { return r.holds() > 0 })
		w.store.setDown(false)
		w.after(time.Minute)
		w.want("the hold is over", func(r *replicaRun) bool { return r.holds() == 0 && r.status().Joined == nil })
	})
}

func TestAFreezeOutlivesALogThatWasDeletedWhileNoReplicaRan(t *testing.T) {
	inWorld(t, 2, func(w *world) {
		w.has(numbered(0, 20)...)
		w.quiet()
		w.replicas[0].mustOrder("freeze", intake.Order{Reason: "INC-4"})
		w.quiet()
		for _, r := range w.replicas {
			r.end()
		}
		w.store.set(func() { w.store.log = decisions.Log{} })
		for _, r := range w.replicas {
			r.start()
		}
		w.has(numbered(0, 22)...)
		w.quiet()
		w.wantServed("frozen", numbered(0, 20))
		w.want("agreed again", func(r *replicaRun) bool {
			f := r.status().Frozen
			return f != nil && f.Reason == "INC-4" && f.Decision != ""
		})
		w.replicas[1].mustOrder("unfreeze", intake.Order{})
		w.quiet()
		w.wantServed("unfrozen", numbered(0, 22))
	})
}

func TestALocalUnfreezeEndsALocalFreeze(t *testing.T) {
	inWorld(t, 2, func(w *world) {
		a := w.replicas[0]
		w.has(numbered(0, 20)...)
		w.quiet()
		w.store.setDown(true)
		w.quiet()
		a.mustOrder("freeze", intake.Order{Local: true})
		a.mustOrder("unfreeze", intake.Order{Local: true})
		a.has(numbered(0, 22)...)
		if got := a.serves(); a.status().Frozen != nil || len(got) != 22 {
			t.Errorf("it serves %d, frozen: %+v", len(got), a.status().Frozen)
		}
		w.store.setDown(false)
		w.has(numbered(0, 22)...)
		w.after(5 * time.Second)
		w.wantServed("agreed", numbered(0, 22))
		w.wantLog("freeze/a", "unfreeze/a")
	})
}

// TestADecisionOfOneReplicaDoesNotEndAHoldThatItCanNotRead: it has started without the store, and knows of the hold by its
// disk.
func TestADecisionOfOneReplicaDoesNotEndAHoldThatItCanNotRead(t *testing.T) {
	for _, told := range []bool{false, true} { // the source has told everything before the orders
		inWorld(t, 2, func(w *world) {
			a, b := w.replicas[0], w.replicas[1]
			w.restartsWithAHoldAndNoStore(a, b)
			if told {
				b.has(numbered(2, 40)...)
			}
			for _, verb := range []string{"freeze", "unfreeze"} {
				b.mustOrder(verb, intake.Order{Local: true, Force: true})
			}
			b.has(numbered(2, 40)...)
			w.after(time.Minute)
			w.wantServed(fmt.Sprint("held after the orders, ", told), numbered(0, 40))
			w.store.setDown(false)
			w.after(time.Minute)
			w.wantServed("held", numbered(0, 40))
			a.mustOrder("release", intake.Order{All: true})
			w.after(5 * time.Second)
			w.want("released", func(r *replicaRun) bool { return r.holds() == 0 })
		})
	}
}

// TestAHoldOutlivesAFreezeAndARestartWithoutTheStore, whether something waits for it here or not.
func TestAHoldOutlivesAFreezeAndARestartWithoutTheStore(t *testing.T) {
	for _, waits := range []bool{false, true} {
		inWorld(t, 2, func(w *world) {
			a, b := w.replicas[0], w.replicas[1]
			w.has(numbered(0, 40)...)
			w.after(2 * time.Minute)
			a.has()
			w.quiet()
			if waits {
				b.has(numbered(2, 40)...)
			}
			w.quiet()
			a.mustOrder("freeze", intake.Order{})
			w.quiet()
			w.store.setDown(true)
			w.after(time.Minute)
			b.end()
			b.start()
			b.has(numbered(2, 40)...)
			b.mustOrder("unfreeze", intake.Order{Local: true, Force: true})
			b.has(numbered(2, 40)...)
			w.after(time.Minute)
			w.wantServed(fmt.Sprint("held after the freeze, ", waits), numbered(0, 40))
			w.store.setDown(false)
			w.after(time.Minute)
			a.mustOrder("release", intake.Order{All: true})
			w.quiet()
			b.has(numbered(3, 40)...)
			w.after(time.Minute)
			w.want("deletions go as usual", func(r *replicaRun) bool { return r != b || len(r.serves()) == 37 })
		})
	}
}

func TestALocalUnfreezeOutlivesARestart(t *testing.T) {
	inWorld(t, 2, func(w *world) {
		a := w.replicas[0]
		w.has(numbered(0, 20)...)
		w.quiet()
		a.mustOrder("freeze", intake.Order{})
		w.quiet()
		w.store.setDown(true)
		w.quiet()
		a.mustOrder("unfreeze", intake.Order{Local: true})
		for range 2 {
			a.end()
			a.start()
			a.has(numbered(0, 22)...)
			w.quiet()
			if local := a.m.Replicas().Local; len(a.serves()) != 22 || len(local) != 1 || local[0] != "unfreeze scripted-east by ann" {
				t.Fatalf("a serves %d, local %v", len(a.serves()), local)
			}
		}
		w.store.setDown(false)
		w.after(5 * time.Second)
		w.has(numbered(0, 23)...)
		w.wantServed("agreed", numbered(0, 23))
		w.wantLog("freeze/a", "unfreeze/a")
		a.end()
		a.start()
		w.after(5 * time.Second)
		w.want("nothing waits", func(r *replicaRun) bool { return len(r.m.Replicas().Local) == 0 })
	})
}

// TestALocalDecisionIsWrittenWhenThereIsRoomAgain: the order tells that it is not, and can not be given twice.
func TestALocalDecisionIsWrittenWhenThereIsRoomAgain(t *testing.T) {
	inWorld(t, 1, func(w *world) {
		a := w.replicas[0]
		w.has(numbered(0, 20)...)
		w.quiet()
		w.store.setDown(true)
		w.quiet()
		inTheWay := filepath.Join(a.dir, "decisions-local.json", "x")
		if err := os.MkdirAll(inTheWay, 0o700); err != nil {
			t.Fatal(err)
		}
		if _, err := a.order("freeze", intake.Order{Local: true}); err == nil || !strings.Contains(err.Error(), "a restart forgets") {
			t.Fatal(err)
		}
		if err := os.RemoveAll(filepath.Dir(inTheWay)); err != nil {
			t.Fatal(err)
		}
		w.store.setDown(true) // the store is asked again
		w.quiet()
		a.end()
		a.start()
		w.quiet()
		if local := a.m.Replicas().Local; len(local) != 1 || local[0] != "freeze scripted-east by ann" {
			t.Errorf("after a restart: %v", local)
		}
	})
}

// TestALocalReleaseIsDroppedByARestartAndTheJournalTells, because what is held after it may be another accident.
func TestALocalReleaseIsDroppedByARestartAndTheJournalTells(t *testing.T) {
	inWorld(t, 2, func(w *world) {
		a := w.replicas[0]
		w.has(numbered(0, 40)...)
		w.after(2 * time.Minute)
		w.has()
		w.quiet()
		w.store.setDown(true)
		w.quiet()
		a.mustOrder("release", intake.Order{All: true, Local: true})
		if len(a.serves()) != 0 {
			t.Fatal("not released")
		}
		a.end()
		a.start()
		w.quiet()
		if page := textOf(a); !strings.Contains(page, "the local decision release is dropped") || !strings.Contains(page, "release it again") {
			t.Errorf("the journal:\n%s", page)
		}
		w.store.setDown(false)
		a.has()
		w.after(time.Minute)
		w.wantServed("held by all", numbered(0, 40))
		a.mustOrder("release", intake.Order{All: true})
		w.quiet()
		w.wantServed("released", nil)
	})
}

// TestAFreezeOutlivesALogThatOthersHaveBegunAnew, with decisions about other upstreams, and with the freeze itself.
func TestAFreezeOutlivesALogThatOthersHaveBegunAnew(t *testing.T) {
	for _, anew := range []decisions.Record{
		{ID: "1", Kind: decisions.Hold, Upstream: "scripted-west", Replica: "c", Content: "x"},
		recordOf(decisions.Freeze, "", "c"),
	} {
		inWorld(t, 2, func(w *world) {
			w.has(numbered(0, 20)...)
			w.quiet()
			w.replicas[0].mustOrder("freeze", intake.Order{Reason: "INC-4"})
			w.quiet()
			for _, r := range w.replicas {
				r.end()
			}
			log, err := decisions.Log{}.Append(anew)
			if err != nil {
				t.Fatal(err)
			}
			w.store.set(func() { w.store.log, w.store.down = log, true })
			for _, r := range w.replicas {
				r.start()
			}
			w.has(numbered(0, 22)...)
			w.store.setDown(false)
			w.quiet()
			w.wantServed("frozen", numbered(0, 20))
			w.want("agreed", func(r *replicaRun) bool { f := r.status().Frozen; return f != nil && f.Decision != "" })
			w.replicas[1].mustOrder("unfreeze", intake.Order{})
			w.quiet()
			w.wantServed("unfrozen", numbered(0, 22))
		})
	}
}

func TestAHostileLogDoesNotKeepReplicasFromDeciding(t *testing.T) {
	inWorld(t, 2, func(w *world) {
		a, b := w.replicas[0], w.replicas[1]
		w.has(numbered(0, 40)...)
		w.after(2 * time.Minute)
		var log decisions.Log
		add := func(r decisions.Record) {
			next, err := log.Append(r)
			if err != nil {
				t.Fatal(err)
			}
			log = next
		}
		for i := range 1000 {
			add(decisions.Record{ID: fmt.Sprint("h", i), Kind: decisions.Hold, Upstream: fmt.Sprint("u", i), Replica: "b", Content: "x"})
		}
		for _, r := range []decisions.Record{
			{ID: "1", Kind: decisions.Rollback, Upstream: "scripted-east", Content: "none", Number: 1 << 40},
			{ID: "2", Kind: decisions.Unfreeze, Upstream: "scripted-east"},
			{ID: "3", Kind: decisions.Release, Upstream: "scripted-east", Content: "none", Number: 40, Parts: []string{"*/*", "x", ""}},
			{ID: "4", Kind: decisions.ServeWithout, Upstream: "scripted-east"},
			{ID: "5", Kind: "teleport", Upstream: "scripted-east"},
			{ID: "6", Kind: decisions.Hold, Upstream: "scripted-east", Replica: "b", Content: "y", Number: 1 << 40},
		} {
			add(r)
		}
		w.store.set(func() { w.store.log = log })
		w.quiet()
		a.has(numbered(1, 40)...)
		w.quiet()
		w.wantServed("it holds", numbered(0, 40))
		if e := a.mustOrder("release", intake.Order{All: true}); e.Replicas.Did != 2 {
			t.Errorf("%+v", e.Replicas)
		}
		b.has(numbered(1, 40)...)
		w.quiet()
		w.wantServed("released", numbered(1, 40))
		if e := b.mustOrder("freeze", intake.Order{}); e.Replicas.Did != 2 {
			t.Errorf("%+v", e.Replicas)
		}
	})
}
