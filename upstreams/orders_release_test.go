package upstreams_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"meshrelay/internal/testing/await"
	"meshrelay/upstreams/intake"
)

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
