package upstreams_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"meshrelay/config"
	"meshrelay/upstreams/intake"
)

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
