package upstreams_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

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
