package upstreams_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"meshrelay/config"
	"meshrelay/internal/testing/await"
	"meshrelay/upstreams"
	"meshrelay/upstreams/intake"
)

func TestAnOrderAtOneReplicaIsInForceOnAll(t *testing.T) {
	inWorld(t, 3, func(w *world) {
		a, b, c := w.replicas[0], w.replicas[1], w.replicas[2]
		w.has(numbered(0, 10)...)
		w.quiet()
		a.must("freeze", intake.Order{Reason: "INC-1"}, 3, 3)
		w.wantFrozen("INC-1")
		w.has(numbered(0, 12)...)
		w.wantServed("frozen", 10, 10, 10)
		b.wantRefused("freeze", intake.Order{}, "frozen already")
		b.must("unfreeze", intake.Order{}, 3, 3)
		w.wantFrozen("")
		w.wantServed("followed again", 12, 12, 12)
		c.wantRefused("unfreeze", intake.Order{}, "not frozen")

		// One that is away follows when it is back, before it serves.
		c.end()
		a.must("freeze", intake.Order{Reason: "INC-2"}, 2, 3)
		await.Settle(3 * time.Minute)
		if reach := a.must("unfreeze", intake.Order{}, 2, 2); len(reach.Missing) != 0 {
			t.Errorf("%+v", reach)
		}
		a.must("freeze", intake.Order{Reason: "INC-3"}, 2, 2)
		c.start()
		w.quiet()
		w.wantFrozen("INC-3")
		if all := a.m.Replicas(); len(all) != 3 || !all[0].Self || all[2].Name != "c" || all[2].Away {
			t.Errorf("%+v", all)
		}
	})
}

func TestTheLossOfTheObjectOrOfADiskUndoesNoOrder(t *testing.T) {
	inWorld(t, 3, func(w *world) {
		a, b := w.replicas[0], w.replicas[1]
		w.has(numbered(0, 10)...)
		w.quiet()
		a.must("freeze", intake.Order{Reason: "INC-1"}, 3, 3)
		backup := w.store.text()
		lose := map[string]func(){
			"gone": func() { w.store.data = nil }, "unreadable": func() { w.store.data["orders"] = "{" },
			"edited": func() { w.store.data["orders"] = `{"version":1}` },
		}
		for what, f := range lose {
			w.store.set(f)
			w.quiet()
			if w.store.orders().Frozen == nil {
				t.Errorf("%s: %s", what, w.store.text())
			}
			w.wantFrozen("INC-1")
		}
		b.must("unfreeze", intake.Order{}, 3, 3)
		w.store.set(func() { w.store.data["orders"] = backup })
		w.quiet()
		if e := w.store.orders(); e.Frozen != nil {
			t.Errorf("the freeze is back: %+v", e)
		}
		w.wantFrozen("")

		a.must("freeze", intake.Order{Reason: "INC-2"}, 3, 3)
		for _, r := range w.replicas {
			r.losesItsDisk()
			w.quiet()
		}
		w.wantFrozen("INC-2")
	})
}

func TestAFreezeCanBeGivenAndTakenBackWithoutTheObject(t *testing.T) {
	inWorld(t, 2, func(w *world) {
		a, b := w.replicas[0], w.replicas[1]
		w.has(numbered(0, 10)...)
		w.quiet()
		w.store.setDown(true)
		w.quiet()
		if reach := a.must("freeze", intake.Order{Reason: "alone"}, 1, 2); reach.Unwritten == "" {
			t.Errorf("%+v", reach)
		}
		if _, err := a.order("unfreeze", intake.Order{}); err != nil {
			t.Errorf("it can not be taken back: %v", err)
		}
		w.wantFrozen("")
		a.must("freeze", intake.Order{Reason: "alone again"}, 1, 2)
		a.end()
		a.start() // it is on disk
		await.Settle(10 * time.Second)
		if f := a.status().Frozen; f == nil || f.Reason != "alone again" {
			t.Errorf("after a restart: %+v", f)
		}
		b.wantRefused("rollback", intake.Order{To: 1}, "the ConfigMap with the orders can not be used")
		if lines := strings.Join(a.m.OrderProblems(), "\n"); !strings.Contains(lines, "only freeze is taken") {
			t.Error(lines)
		}
		w.store.setDown(false)
		w.quiet()
		w.wantFrozen("alone again")
		w.store.setDown(true)
		w.quiet()
		b.wantRefused("unfreeze", intake.Order{}, "the ConfigMap with the orders can not be used")
		w.wantFrozen("alone again")
	})
}

// TestAnOrderWhoseAnswerWasLostIsTheSame: the freeze is taken, and is not a second one.
func TestAnOrderWhoseAnswerWasLostIsTheSame(t *testing.T) {
	inWorld(t, 2, func(w *world) {
		w.has(numbered(0, 10)...)
		w.quiet()
		w.store.set(func() { w.store.lose = 1 })
		if _, err := w.replicas[0].order("freeze", intake.Order{Reason: "INC"}); err != nil {
			t.Fatal(err)
		}
		counter := w.store.orders().Counter
		w.quiet()
		w.wantFrozen("INC")
		if e := w.store.orders(); e.Counter != counter {
			t.Errorf("%+v, want counter %d", e, counter)
		}
	})
}

func TestGuardsStayLocalAndAReleaseIsForTheSameHoldOnAll(t *testing.T) {
	inWorld(t, 3, func(w *world) {
		a, b, c := w.replicas[0], w.replicas[1], w.replicas[2]
		w.has(numbered(0, 20)...)
		await.Settle(2 * time.Minute)
		a.has()
		w.quiet()
		id := a.held()
		if id == "" || b.held() != "" {
			t.Fatalf("held: %q, %q", id, b.held())
		}
		b.has(numbered(0, 1)...) // another hold
		w.quiet()
		c.must("release", intake.Order{Hold: id, Reason: "gone"}, 3, 3)
		w.wantServed("released at another replica", 0, 20, 20)
		c.has() // within ten minutes: the same accident
		w.wantServed("the same hold begins later", 0, 20, 0)
		if b.held() == "" {
			t.Error("another hold was released")
		}

		// The same accident again is held again.
		c.has(numbered(0, 20)...)
		await.Settle(2 * time.Minute)
		c.has()
		w.quiet()
		if c.held() != id {
			t.Errorf("held: %q", c.held())
		}
		a.must("release", intake.Order{All: true}, 3, 3)
		w.wantServed("all are released", 0, 1, 0)
		a.wantRefused("release", intake.Order{Hold: "nothing"}, "nothing is held")
	})
}

func TestAReleaseIsOverAfterTenMinutesAndForAReplicaThatKnewNothing(t *testing.T) {
	inWorld(t, 2, func(w *world) {
		a, b := w.replicas[0], w.replicas[1]
		w.has(numbered(0, 20)...)
		await.Settle(2 * time.Minute)
		a.has()
		w.quiet()
		a.must("release", intake.Order{All: true}, 2, 2)
		await.Settle(11 * time.Minute)
		b.has()
		w.quiet()
		if b.held() == "" {
			t.Error("it is released by an order from eleven minutes before")
		}
		b.must("release", intake.Order{All: true}, 2, 2)
		b.losesItsDisk()
		b.has(numbered(0, 20)...)
		await.Settle(time.Minute)
		b.has()
		w.quiet()
		if b.held() == "" {
			t.Error("it is released by an order from before it began")
		}
	})
}

// TestAReleaseIsOverForAReplicaThatDidNotHearOfIt for so long, but for a hold that is open then.
func TestAReleaseIsOverForAReplicaThatDidNotHearOfIt(t *testing.T) {
	for _, how := range []string{"cut off", "restarted", "restarted at once"} {
		inWorld(t, 2, func(w *world) {
			a, b := w.replicas[0], w.replicas[1]
			w.has(numbered(0, 20)...)
			await.Settle(2 * time.Minute)
			a.has()
			w.quiet()
			back := func() { b.start() }
			if how == "cut off" {
				b.cut(true)
				back = func() { b.cut(false) }
			} else {
				b.end()
			}
			a.must("release", intake.Order{All: true}, 1, 2)
			if how != "restarted at once" {
				await.Settle(time.Hour)
			}
			back()
			b.has(numbered(0, 20)...)
			await.Settle(2 * time.Minute)
			b.has()
			w.quiet()
			if is := b.held() == ""; is != (how == "restarted at once") {
				t.Errorf("%s: released %v", how, is)
			}
		})
	}
}

// TestWhatHasGrownIsNotReleased: nobody has seen it.
func TestWhatHasGrownIsNotReleased(t *testing.T) {
	inWorld(t, 2, func(w *world) {
		a, b := w.replicas[0], w.replicas[1]
		w.has(numbered(0, 20)...)
		await.Settle(2 * time.Minute)
		w.has(numbered(0, 5)...)
		w.quiet()
		id := a.held()
		b.has() // more than a person who looks at a has seen
		reach := a.must("release", intake.Order{Hold: id}, 1, 2)
		if len(reach.Missing) != 1 || !strings.Contains(reach.Missing[0], "has grown") {
			t.Errorf("%+v", reach)
		}
		w.wantServed("one is released", 5, 20)
		await.Settle(10 * time.Second) // until the report of a does not have the ID any more
		if _, err := b.order("release", intake.Order{Hold: id}); err == nil || !strings.Contains(err.Error(), "has grown") {
			t.Errorf("at the replica whose hold has grown: %v", err)
		}
		w.wantServed("no more is released", 5, 20)
	})
}

func TestAReplicaWithoutTheContentOfARollbackStaysFrozenAndTakesOneForItself(t *testing.T) {
	inWorld(t, 2, func(w *world) {
		a, b := w.replicas[0], w.replicas[1]
		w.has(numbered(0, 10)...)
		w.quiet()
		w.has(numbered(0, 12)...)
		w.quiet()
		history, err := a.m.History("scripted-east")
		if err != nil || len(history) < 2 {
			t.Fatal(history, err)
		}
		first := history[len(history)-1].ID
		a.must("rollback", intake.Order{To: first}, 2, 2)
		w.wantServed("rolled back", 10, 10)
		a.must("unfreeze", intake.Order{}, 2, 2)
		b.losesItsDisk()
		b.has(numbered(0, 12)...)
		w.quiet()
		reach := a.must("rollback", intake.Order{To: first, Reason: "bad"}, 1, 2)
		if len(reach.Missing) != 1 || !strings.Contains(reach.Missing[0], "no revision with the content of the rollback was found") || !strings.Contains(reach.Missing[0], "nearest to it in time are 1 of") {
			t.Errorf("%+v", reach)
		}
		w.wantServed("one stays frozen", 10, 12)
		w.wantFrozen("bad")
		e, err := b.order("rollback", intake.Order{To: 1})
		if err != nil || e.Replicas == nil || !e.Replicas.Here {
			t.Errorf("%+v, %v", e, err)
		}
		w.quiet()
		if lines := strings.Join(b.m.OrderProblems(), "\n"); !strings.Contains(lines, "at revision 1 by an order here") {
			t.Error(lines)
		}
		b.end()
		b.start()
		w.quiet()
		w.wantServed("after a restart", 10, 12)
		a.must("unfreeze", intake.Order{}, 2, 2)
		w.wantFrozen("")
	})
}

// TestARollbackIsFoundWhateverTheAddresses: they are no config, and each replica hears of them when it does.
func TestARollbackIsFoundWhateverTheAddresses(t *testing.T) {
	inWorld(t, 2, func(w *world) {
		w.guard.Profile = config.ProfileRegistry
		for _, r := range w.replicas {
			r.end()
			r.start()
		}
		for _, version := range []string{"x", "y", "z"} {
			for i, r := range w.replicas {
				var names []string
				for _, name := range numbered(0, 10) {
					names = append(names, fmt.Sprintf("%s@%s#10.0.0.%d", name, version, 1+i))
				}
				r.has(names...)
			}
			w.quiet()
		}
		for to := range uint64(2) {
			e := w.replicas[0].must("rollback", intake.Order{To: 1 + to}, 2, 2)
			if f := w.replicas[1].status().Frozen; len(e.Missing) > 0 || f == nil || f.Revision != 1+to {
				t.Errorf("to %d: %+v, %+v", 1+to, e, f)
			}
			w.replicas[1].must("unfreeze", intake.Order{}, 2, 2)
		}
	})
}

// TestASearchForARollbackKeepsNoOrderWaiting: the revision nearest in time is looked at first, and not all.
func TestASearchForARollbackKeepsNoOrderWaiting(t *testing.T) {
	inWorld(t, 2, func(w *world) {
		a, b := w.replicas[0], w.replicas[1]
		for i := range 20 {
			a.has(numbered(i, 10+i)...)
			b.has(append(numbered(i, 9+i), fmt.Sprint("n", i))...) // but for the tenth, it has other content
			if i == 9 {
				b.has(numbered(i, 10+i)...)
			}
			w.quiet()
		}
		a.slow, b.slow = time.Second, time.Second
		a.must("rollback", intake.Order{To: 10}, 2, 2)
		if a.looks > 3 || b.looks > 2 {
			t.Errorf("looked at %d and %d revisions", a.looks, b.looks)
		}
		a.must("unfreeze", intake.Order{}, 2, 2)
		b.looks = 0
		a.must("rollback", intake.Order{To: 5}, 1, 2)
		if b.looks > 3 {
			t.Errorf("looked at %d revisions", b.looks)
		}
	})
}

func TestAReplicaWithoutTheContentOfAFrozenUpstreamHoldsItsClients(t *testing.T) {
	inWorld(t, 2, func(w *world) {
		a, b := w.replicas[0], w.replicas[1]
		w.has(numbered(0, 10)...)
		w.quiet()
		a.must("freeze", intake.Order{}, 2, 2)
		for _, end := range []string{"unfreeze", "serve-without"} {
			b.losesItsDisk()
			b.has(numbered(0, 10)...)
			await.Settle(10 * time.Minute)
			if f := b.status().FirstSync; !b.waits() || f == nil || !f.Awaited || !strings.Contains(f.Reason, "it is frozen") {
				t.Errorf("the sync of its source ends the wait: %+v", f)
			}
			if end == "unfreeze" {
				a.must("unfreeze", intake.Order{}, 2, 2)
				w.quiet()
				w.wantServed("unfrozen", 10, 10)
			} else if e, err := b.order(end, intake.Order{}); err != nil || e.Replicas != nil {
				t.Errorf("%+v, %v", e, err)
			}
			w.quiet()
			if b.waits() {
				t.Errorf("clients wait after %s", end)
			}
			if end == "unfreeze" {
				a.must("freeze", intake.Order{}, 2, 2)
			}
		}
	})
}

// TestAReplicaStaysWithoutContentUntilTheEndOfAFreeze: neither a restart nor the next freeze gives it what was frozen.
func TestAReplicaStaysWithoutContentUntilTheEndOfAFreeze(t *testing.T) {
	for _, next := range []string{"rollback", "unfreeze and freeze"} {
		inWorld(t, 2, func(w *world) {
			a, b := w.replicas[0], w.replicas[1]
			w.has(numbered(0, 10)...)
			w.quiet()
			a.must("freeze", intake.Order{}, 2, 2)
			b.losesItsDisk()
			b.has(numbered(0, 3)...)
			w.quiet()
			b.end()
			if next == "rollback" {
				b.start()
				w.quiet()
				a.must("rollback", intake.Order{To: 1}, 1, 2)
			} else {
				a.must("unfreeze", intake.Order{}, 1, 2)
				a.must("freeze", intake.Order{}, 1, 2)
				b.start()
			}
			await.Settle(10 * time.Minute)
			if f := b.status().Frozen; !b.waits() || f == nil || !f.Empty {
				t.Errorf("after %s: waits %v, %+v", next, b.waits(), f)
			}
			a.must("unfreeze", intake.Order{}, 2, 2)
			w.has(numbered(0, 10)...)
			w.quiet()
			if w.wantServed(next, 10, 10); b.waits() {
				t.Errorf("clients wait after the end of %s", next)
			}
		})
	}
}

func TestAReplicaThatHasHeardAnUpstreamHasItsContent(t *testing.T) {
	inWorld(t, 2, func(w *world) {
		a, b := w.replicas[0], w.replicas[1]
		w.has(numbered(0, 10)...)
		b.west = true
		b.losesItsDisk()
		b.has(numbered(0, 10)...)
		w.quiet()
		if !b.waits() {
			t.Fatal("clients do not wait for the other upstream")
		}
		a.must("freeze", intake.Order{}, 2, 2)
		if f := b.status().Frozen; f == nil || f.Empty {
			t.Errorf("%+v", f)
		}
	})
}

func TestAFreezeFromBeforeTheRelayWasOneOfSeveralIsAnOrder(t *testing.T) {
	inWorld(t, 2, func(w *world) {
		a, b := w.replicas[0], w.replicas[1]
		w.has(numbered(0, 10)...)
		w.quiet()
		b.end()
		a.must("freeze", intake.Order{Reason: "INC"}, 1, 2)
		w.store.set(func() { w.store.data = nil })
		a.forgets()
		b.start()
		w.quiet()
		w.wantFrozen("INC")
		w.has(numbered(0, 10)...)
		b.must("unfreeze", intake.Order{}, 2, 2)
		w.wantFrozen("")
	})
}

func TestOrdersThatAreNotOnDiskAreTold(t *testing.T) {
	inWorld(t, 1, func(w *world) {
		a := w.replicas[0]
		a.has(numbered(0, 10)...)
		w.quiet()
		path := filepath.Join(a.dir, upstreams.OrdersFile)
		if err := errors.Join(os.Remove(path), os.MkdirAll(filepath.Join(path, "full"), 0o700)); err != nil {
			t.Fatal(err)
		}
		a.must("freeze", intake.Order{Reason: "INC-1"}, 1, 1)
		if lines := strings.Join(a.m.OrderProblems(), "\n"); !strings.Contains(lines, "not on disk") {
			t.Error(lines)
		}
		a.must("unfreeze", intake.Order{}, 1, 1)
		w.store.set(func() { w.store.readOnly, a.full = true, true })
		if _, err := a.order("freeze", intake.Order{}); err == nil || !strings.Contains(err.Error(), "forgotten by a restart") {
			t.Errorf("neither written nor on disk: %v", err)
		}
	})
}

// TestAFullDiskRefusesNoFreeze: it is in force, and the answer tells that a restart forgets it.
func TestAFullDiskRefusesNoFreeze(t *testing.T) {
	inWorld(t, 2, func(w *world) {
		a := w.replicas[0]
		w.has(numbered(0, 10)...)
		w.quiet()
		a.full = true
		a.must("freeze", intake.Order{Reason: "INC-1"}, 2, 2)
		a.must("unfreeze", intake.Order{}, 2, 2)
		a.cut(true)
		if _, err := a.order("freeze", intake.Order{Reason: "INC-2"}); !errors.Is(err, errFull) || !strings.Contains(err.Error(), "is frozen, but that is not on disk yet") {
			t.Error(err)
		}
		if f := a.status().Frozen; f == nil || f.Reason != "INC-2" {
			t.Errorf("%+v", f)
		}
		a.cut(false)
		w.quiet()
		w.wantFrozen("INC-2")
	})
}

// TestAFreezeThatOthersCouldNotEndIsInForceForAll: what they have ordered meanwhile has higher counters, and did not know of it.
func TestAFreezeThatOthersCouldNotEndIsInForceForAll(t *testing.T) {
	inWorld(t, 2, func(w *world) {
		a, b := w.replicas[0], w.replicas[1]
		w.has(numbered(0, 10)...)
		w.quiet()
		a.cut(true)
		b.must("freeze", intake.Order{Reason: "INC-1"}, 1, 2)
		b.must("unfreeze", intake.Order{}, 1, 2)
		a.must("freeze", intake.Order{Reason: "INC-2"}, 1, 2)
		a.end()
		a.start()
		w.quiet()
		a.cut(false)
		w.quiet()
		w.wantFrozen("INC-2")
		b.must("unfreeze", intake.Order{}, 2, 2)
		w.quiet()
		w.wantFrozen("")
	})
}

// TestTheEndOfAFreezeThatOthersDoNotKnowEndsNoOther.
func TestTheEndOfAFreezeThatOthersDoNotKnowEndsNoOther(t *testing.T) {
	inWorld(t, 2, func(w *world) {
		a, b := w.replicas[0], w.replicas[1]
		w.has(numbered(0, 10)...)
		w.quiet()
		a.cut(true)
		b.must("freeze", intake.Order{Reason: "INC-1"}, 1, 2)
		a.must("freeze", intake.Order{Reason: "INC-2"}, 1, 2)
		a.must("unfreeze", intake.Order{}, 1, 2)
		a.cut(false)
		w.quiet()
		w.wantFrozen("INC-1")
	})
}

// TestTheEndOfAFreezeThatCouldNotBeWrittenEndsNoOther, though it has a higher counter.
func TestTheEndOfAFreezeThatCouldNotBeWrittenEndsNoOther(t *testing.T) {
	inWorld(t, 2, func(w *world) {
		a, b := w.replicas[0], w.replicas[1]
		w.has(numbered(0, 10)...)
		w.quiet()
		w.store.set(func() { a.readOnly = true })
		a.must("freeze", intake.Order{Reason: "INC-2"}, 1, 2)
		a.cut(true)
		b.must("freeze", intake.Order{Reason: "INC-1"}, 1, 2)
		a.must("unfreeze", intake.Order{}, 1, 2)
		a.end()
		a.start()
		w.store.set(func() { a.readOnly, a.isCut = false, false })
		w.quiet()
		w.wantFrozen("INC-1")
		b.must("unfreeze", intake.Order{}, 2, 2)
		w.quiet()
		w.wantFrozen("")
	})
}

// TestAnOrderNamesTheReplicasThatAreAway, also those that it forgets, and none after an outage that all have had.
func TestAnOrderNamesTheReplicasThatAreAway(t *testing.T) {
	inWorld(t, 3, func(w *world) {
		a, c := w.replicas[0], w.replicas[2]
		w.has(numbered(0, 10)...)
		w.quiet()
		c.cut(true)
		await.Settle(3 * time.Minute)
		if reach := a.must("freeze", intake.Order{}, 2, 2); len(reach.Away) != 1 || reach.Away[0] != "c" {
			t.Errorf("%+v", reach)
		}
		c.cut(false)
		w.quiet()
		a.must("unfreeze", intake.Order{}, 3, 3)
		w.store.setDown(true)
		await.Settle(5 * time.Minute)
		w.store.mu.Lock()
		w.store.down = false
		w.store.mu.Unlock()
		a.must("freeze", intake.Order{}, 3, 3)
	})
}

func TestAnotherProcessUnderTheNameOfAReplicaCounts(t *testing.T) {
	inWorld(t, 2, func(w *world) {
		a, b := w.replicas[0], w.replicas[1]
		b.end()
		b.name = "a"
		await.Settle(time.Second)
		b.start()
		w.has(numbered(0, 10)...)
		w.quiet()
		if _, err := a.order("freeze", intake.Order{}); err != nil {
			t.Error(err)
		}
		w.quiet()
		if all := a.m.Replicas(); len(all) < 2 || all[1].Name != "a (another process)" || all[1].Follows != all[0].Follows {
			t.Errorf("%+v", all)
		}
	})
}

// TestTheEndOfAFreezeThatWasNotWrittenIsTheEnd: the order about it has both.
func TestTheEndOfAFreezeThatWasNotWrittenIsTheEnd(t *testing.T) {
	inWorld(t, 2, func(w *world) {
		a := w.replicas[0]
		w.has(numbered(0, 10)...)
		w.quiet()
		w.store.setDown(true)
		a.must("freeze", intake.Order{Reason: "INC"}, 1, 2)
		w.store.setDown(false)
		a.must("unfreeze", intake.Order{}, 2, 2)
		w.wantFrozen("")
		w.quiet()
		w.wantFrozen("")
	})
}

// TestAReplicaThatCanNotWriteEndsNoFreezeThatOthersKnow, also if somebody has deleted the object.
func TestAReplicaThatCanNotWriteEndsNoFreezeThatOthersKnow(t *testing.T) {
	inWorld(t, 2, func(w *world) {
		a, b := w.replicas[0], w.replicas[1]
		w.has(numbered(0, 10)...)
		w.quiet()
		a.must("freeze", intake.Order{Reason: "INC"}, 2, 2)
		b.cut(true)
		w.store.set(func() { a.readOnly, w.store.data = true, nil })
		w.quiet()
		a.wantRefused("unfreeze", intake.Order{}, "the ConfigMap with the orders can not be used")
		w.wantFrozen("INC")
	})
}

// TestAFreezeWhoseAnswerWasLostDoesNotComeBack once another replica has ended it.
func TestAFreezeWhoseAnswerWasLostDoesNotComeBack(t *testing.T) {
	inWorld(t, 2, func(w *world) {
		a, b := w.replicas[0], w.replicas[1]
		w.has(numbered(0, 10)...)
		w.quiet()
		w.store.set(func() { w.store.lose = 1 })
		a.must("freeze", intake.Order{Reason: "INC"}, 1, 2)
		a.cut(true)
		w.quiet()
		b.must("unfreeze", intake.Order{}, 1, 2)
		a.cut(false)
		w.quiet()
		w.wantFrozen("")
	})
}

// TestReplicasThatHaveNothingToTellLeaveTheObjectAlone: each reads it when it has changed, and writes its report now and then.
func TestReplicasThatHaveNothingToTellLeaveTheObjectAlone(t *testing.T) {
	inWorld(t, 3, func(w *world) {
		w.has(numbered(0, 20)...)
		w.quiet()
		w.replicas[0].must("freeze", intake.Order{}, 3, 3)
		w.quiet()
		reads, changes := w.store.counts()
		await.Settle(5 * time.Minute)
		r, c := w.store.counts()
		if n := c - changes; n < 3*10 || n > 3*13 {
			t.Errorf("%d writes in 5 minutes", n)
		}
		if n := r - reads; n > 3*3*13+3*5+10 {
			t.Errorf("%d reads in 5 minutes", n)
		}
	})
}

// TestAnOldReleaseIsNotTakenOutAgainAndAgain: replicas whose clocks differ would write the object in turn.
func TestAnOldReleaseIsNotTakenOutAgainAndAgain(t *testing.T) {
	inWorld(t, 2, func(w *world) {
		w.has(numbered(0, 20)...)
		w.quiet()
		old := fmt.Sprintf(`{"version":1,"counter":9,"upstreams":{"scripted-east":{"released":[{"counter":9,"hold":"h","time":%q}]}}}`, time.Now().Add(-25*time.Hour).Format(time.RFC3339))
		_, before := w.store.counts()
		for range 100 { // another replica, whose clock is behind, writes it again
			w.store.set(func() { w.store.data["orders"] = old })
			await.Settle(100 * time.Millisecond)
		}
		if _, now := w.store.counts(); now-before-100 > 8 {
			t.Errorf("%d writes in 10 seconds", now-before-100)
		}
	})
}

func TestAHoldThatHasShrunkIsReleasedEverywhere(t *testing.T) {
	inWorld(t, 2, func(w *world) {
		a := w.replicas[0]
		w.has(numbered(0, 20)...)
		await.Settle(2 * time.Minute)
		w.has(numbered(0, 5)...)
		w.quiet()
		id := a.held()
		a.has(numbered(0, 6)...)
		w.replicas[1].has(numbered(0, 6)...)
		w.quiet()
		if a.held() == id {
			t.Fatal("the hold has not shrunk")
		}
		a.must("release", intake.Order{Hold: id}, 2, 2)
		w.wantServed("by its former ID", 6, 6)
	})
}

// TestOrdersOfANewerVersionAreLeftAsTheyAre: the replica says what to do, and a freeze is in force there meanwhile.
func TestOrdersOfANewerVersionAreLeftAsTheyAre(t *testing.T) {
	inWorld(t, 1, func(w *world) {
		const newer, cure = `{"version":2,"upstreams":[]}`, "update this replica"
		a := w.replicas[0]
		a.has(numbered(0, 3)...)
		w.quiet()
		w.store.set(func() { w.store.data["orders"] = newer })
		w.quiet()
		e, err := a.order("freeze", intake.Order{Reason: "r"})
		if err != nil || e.Replicas == nil || !strings.Contains(e.Replicas.Unwritten, cure) {
			t.Errorf("%+v, %v", e.Replicas, err)
		}
		a.wantRefused("rollback", intake.Order{To: 1}, cure)
		w.quiet()
		w.wantFrozen("r")
		if problems := strings.Join(a.m.OrderProblems(), " "); !strings.Contains(problems, cure) || w.store.text() != newer {
			t.Errorf("problems %q, orders %q", problems, w.store.text())
		}

		path := filepath.Join(a.dir, upstreams.OrdersFile)
		a.end()
		w.store.set(func() { w.store.data = nil })
		if err := os.WriteFile(path, []byte(newer), 0o600); err != nil {
			t.Fatal(err)
		}
		a.start()
		w.quiet()
		text, err := os.ReadFile(path)
		if problems := strings.Join(a.m.OrderProblems(), " "); err != nil || string(text) != newer || !strings.Contains(problems, cure) {
			t.Errorf("on disk %q, %v, problems %q", text, err, problems)
		}
		w.wantFrozen("r")
	})
}

// TestReplicasAgreeOnceTheyMeet, whatever was ordered, cut off, lost and restarted before.
func TestReplicasAgreeOnceTheyMeet(t *testing.T) {
	for seed := range uint64(40) {
		inWorld(t, 2, func(w *world) {
			random := rand.New(rand.NewPCG(seed, 0))
			w.has(numbered(0, 10)...)
			w.quiet()
			var did []string
			for i := range 14 {
				r, what := w.replicas[random.IntN(2)], random.IntN(9)
				switch what {
				case 0, 1:
					_, _ = r.order("freeze", intake.Order{Reason: fmt.Sprint(i)}) // it may be refused
				case 2, 3:
					_, _ = r.order("unfreeze", intake.Order{})
				case 4:
					r.cut(!r.isCut)
				case 5:
					w.store.set(func() { r.readOnly = !r.readOnly })
				case 6:
					w.store.set(func() { w.store.lose = 1 })
				case 7:
					w.store.set(func() { w.store.data = nil })
				case 8:
					r.end()
					r.start()
				}
				did = append(did, fmt.Sprint(r.name, what))
				await.Settle(time.Duration(random.IntN(3)) * time.Second)
			}
			w.store.set(func() { w.store.lose = 0 })
			for _, r := range w.replicas {
				w.store.set(func() { r.isCut, r.readOnly = false, false })
			}
			w.quiet()
			w.quiet()
			reason := ""
			if f := w.replicas[0].status().Frozen; f != nil {
				reason = f.Reason
			}
			w.wantFrozen(reason)
			if f := w.store.orders().Frozen; (f != nil) != (reason != "") || f != nil && f.Reason != reason {
				t.Errorf("seed %d, %v: the object has %+v, and the replicas %q", seed, did, f, reason)
			}
		})
	}
}
