package upstreams_test

import (
	"strings"
	"testing"
	"time"

	"meshrelay/internal/testing/await"
	"meshrelay/upstreams/intake"
)

func TestARollbackIsToOneContentOnAllReplicas(t *testing.T) {
	inWorld(t, 3, func(w *world) {
		a, c := w.replicas[0], w.replicas[2]
		c.has(numbered(0, 2)...) // its revisions have other numbers
		w.quiet()
		w.has(numbered(0, 20)...)
		w.quiet()
		w.has(numbered(0, 22)...)
		w.quiet()
		to := uint64(0)
		revisions, err := a.m.History("scripted-east")
		if err != nil {
			t.Fatal(err)
		}
		for _, rev := range revisions {
			if rev.Resources == 20 {
				to = rev.ID
			}
		}
		a.mustOrder("rollback", intake.Order{To: to})
		w.wantServed("rolled back", numbered(0, 20))
		if ra, rc := a.status().Frozen.Revision, c.status().Frozen.Revision; ra == rc {
			t.Errorf("revisions %d and %d: the test needs different ones", ra, rc)
		}
		c.end()
		c.start()
		w.after(time.Second)
		w.wantServed("after a restart", numbered(0, 20))
		w.replicas[1].mustOrder("unfreeze", intake.Order{Force: true})
		w.has(numbered(0, 22)...)
		w.quiet()
		w.wantServed("unfrozen", numbered(0, 22))
	})
}

func TestARollbackToAContentThatAReplicaLacksIsTakenFromOneThatHasIt(t *testing.T) {
	inWorld(t, 3, func(w *world) {
		a, b := w.replicas[0], w.replicas[1]
		a.has(numbered(0, 20)...)
		w.quiet()
		w.has(numbered(0, 22)...)
		w.quiet()
		a.mustOrder("rollback", intake.Order{To: 1})
		w.quiet()
		w.wantServed("rolled back", numbered(0, 20))
		w.want("nothing is missing, and it is frozen by the decision", func(r *replicaRun) bool {
			return len(r.m.Replicas().Problems()) == 0 && r.status().Frozen != nil && r.status().Frozen.Decision == a.status().Frozen.Decision
		})
		b.end()
		b.start()
		w.quiet()
		w.wantServed("after a restart", numbered(0, 20))
		b.mustOrder("unfreeze", intake.Order{Force: true})
		w.has(numbered(0, 22)...)
		w.quiet()
		w.wantServed("unfrozen", numbered(0, 22))
	})
}

func TestAFreezeIsAtOneContentOnAllReplicas(t *testing.T) {
	inWorld(t, 3, func(w *world) {
		a, b, c := w.replicas[0], w.replicas[1], w.replicas[2]
		w.has(numbered(0, 20)...)
		w.quiet()
		a.has(append(numbered(1, 20), "n00@2")...) // the others have not heard of it
		c.has(numbered(0, 21)...)
		a.mustOrder("freeze", intake.Order{Reason: "INC-1"})
		w.quiet()
		w.wantSame("frozen")
		w.wantServed("frozen", numbered(0, 20))
		w.has(append(numbered(1, 25), "n00@3")...)
		b.end()
		b.start()
		w.quiet()
		w.wantSame("after a restart, and a change of the source")
		w.wantServed("still frozen", numbered(0, 20))
		b.mustOrder("unfreeze", intake.Order{Force: true})
		w.has(append(numbered(1, 25), "n00@3")...)
		w.quiet()
		w.wantSame("unfrozen")
		w.wantServed("unfrozen", numbered(0, 25))
	})
}

func TestWhatComesWhileAFreezeIsRecordedComesAfterIt(t *testing.T) {
	inWorld(t, 2, func(w *world) {
		a := w.replicas[0]
		w.has(numbered(0, 20)...)
		w.quiet()
		w.store.set(func() {
			w.store.meanwhile = func() {
				a.tell <- a.content(numbered(0, 25))
				await.Pass(time.Second)
				if len(a.serves()) != 20 || a.status().Frozen != nil {
					t.Errorf("while it is recorded: %d served, frozen %+v", len(a.serves()), a.status().Frozen)
				}
			}
		})
		a.mustOrder("freeze", intake.Order{})
		w.quiet()
		w.wantServed("frozen", numbered(0, 20))
		w.wantSame("frozen")
	})
}

func TestWhatComesWhileAFreezeIsRefusedIsServed(t *testing.T) {
	inWorld(t, 2, func(w *world) {
		a, c := w.replicas[0], w.replicas[1]
		a.end()
		w.noPeers = true // it can not ask for the content of the rollback
		a.start()
		c.has(numbered(0, 10)...)
		w.quiet()
		w.has(numbered(0, 20)...)
		w.quiet()
		w.store.set(func() {
			w.store.meanwhile = func() {
				a.tell <- a.content(numbered(0, 25))
				c.mustOrder("rollback", intake.Order{To: 1})
				await.Pass(time.Second)
			}
		})
		a.wantRefused("freeze", intake.Order{}, "is frozen already")
		w.quiet()
		if got := a.serves(); len(got) != 25 || a.status().Frozen != nil {
			t.Errorf("%d served, frozen %+v", len(got), a.status().Frozen)
		}
	})
}

func TestAFreezeThatIsNotRecordedLeavesNoFreeze(t *testing.T) {
	inWorld(t, 2, func(w *world) {
		a := w.replicas[0]
		w.has(numbered(0, 20)...)
		w.quiet()
		w.store.setDown(true)
		a.wantRefused("freeze", intake.Order{}, "can not be reached")
		w.has(numbered(0, 22)...)
		w.quiet()
		w.want("not frozen", func(r *replicaRun) bool { return r.status().Frozen == nil })
		w.wantServed("it follows its source", numbered(0, 22))
		w.store.setDown(false)
		w.quiet()
		w.wantLog()
	})
}

func TestWhatIsHeldHasTheContentOfTheReplicaThatHasBegunTheHold(t *testing.T) {
	inWorld(t, 3, func(w *world) {
		a, c := w.replicas[0], w.replicas[2]
		w.has(numbered(0, 40)...)
		w.after(2 * time.Minute)
		a.has(append(numbered(1, 40), "n00@2")...) // the others have not heard of it
		a.has()
		w.has()
		w.quiet()
		w.wantServed("held", numbered(0, 40))
		w.wantSame("held")
		e := c.mustOrder("release", intake.Order{All: true})
		if e.Replicas.Did != 3 {
			t.Errorf("release: %+v", e.Replicas)
		}
		w.quiet()
		w.wantServed("released on all", nil)
		w.wantLog("hold/a", "release/c")
	})
}

func TestARollbackToAContentThatNoOtherReplicaHasIsShown(t *testing.T) {
	inWorld(t, 2, func(w *world) {
		a, b := w.replicas[0], w.replicas[1]
		b.end()
		w.noPeers = true
		b.start()
		a.has(numbered(0, 20)...)
		w.quiet()
		w.has(numbered(0, 22)...)
		w.quiet()
		a.mustOrder("rollback", intake.Order{To: 1})
		w.quiet()
		if lines := strings.Join(b.m.Replicas().Problems(), "\n"); b.status().Frozen != nil || !strings.Contains(lines, "no revision on disk has that content") {
			t.Errorf("%s", lines)
		}
	})
}
