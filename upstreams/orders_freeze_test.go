package upstreams_test

import (
	"strings"
	"testing"
	"time"

	"meshrelay/internal/testing/await"
	"meshrelay/upstreams/intake"
)

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
