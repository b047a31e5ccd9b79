package sink

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"meshrelay/internal/testing/await"
	"meshrelay/internal/testing/fakekube"
	"meshrelay/sink/lease"
)

const theLeaseOfDR = "istio-system/meshrelay-sink-dr"

// away has the API server not answer until the function that it returns is called.
func (w *world) away() (back func()) {
	down := true
	w.Set(func() {
		w.Stops++
		w.Fault = func(rw http.ResponseWriter, r *http.Request) bool {
			w.note(rw, r)
			if down {
				fakekube.Fail(rw, http.StatusServiceUnavailable, "InternalError")
			}
			return down
		}
	})
	return func() { w.Set(func() { down = false }) }
}

// TestAReleaseEndsWithAPromotion: what was released before it and not carried out is looked at again.
func TestAReleaseEndsWithAPromotion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := leased(t, func(w *world) { w.spec.Prune = true })
		w.many(20)
		w.start().settled()
		w.fault(func(rw http.ResponseWriter, r *http.Request) bool {
			if r.Method == http.MethodDelete {
				fakekube.Fail(rw, http.StatusForbidden, "Forbidden")
			}
			return r.Method == http.MethodDelete
		})
		for i := range 10 {
			w.remove("east", fmt.Sprintf("n%02d", i))
		}
		w.until("they are held", func() bool { return w.status().Held != nil && w.status().Held.Removals == 10 })
		if _, err := w.order("release", w.status().Held.ID); err != nil {
			t.Fatal(err)
		}
		w.until("they are refused", func() bool { return w.status().TroublesByState["refused"] == 10 })
		w.terms(promote)
		w.until("it is promoted", func() bool { return w.status().State == "promoted" })
		w.fault(nil)
		w.terms(adopt)
		if _, err := w.order("unfreeze", ""); err != nil {
			t.Fatal(err)
		}
		w.until("they are held again", func() bool { return w.status().Held != nil && w.status().Held.Removals == 10 })
		await.Settle(time.Minute)
		if n := w.objects(); n != 20 {
			t.Errorf("%d objects are left", n)
		}
	})
}

// TestWhatAListFindsShowsWhileNothingIsWritten, so that who looks before an unfreeze sees all.
func TestWhatAListFindsShowsWhileNothingIsWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := leased(t)
		w.put("east", "db", "one.x")
		w.put("east", "gone", "one.x")
		w.start().settled()
		w.terms(promote)
		w.until("it is promoted", func() bool { return w.status().State == "promoted" })
		back := w.away()
		w.Remove(entries, "shop/gone")
		await.Settle(time.Minute)
		back()
		w.until("it shows", func() bool { return w.status().Todo["create"] == 1 && w.status().Objects == 1 })
	})
}

// TestASinkBeginsAnewInAClusterThatIsRestoredToBeforeIt, with neither its Lease nor its objects.
func TestASinkBeginsAnewInAClusterThatIsRestoredToBeforeIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := leased(t)
		w.put("east", "db", "one.x")
		restore := w.Backup()
		w.start().settled()
		back := w.away()
		await.Settle(30 * time.Second)
		restore()
		back()
		w.until("it is written again", func() bool { return w.object("db") != nil && w.status().State == "writing" })
	})
}

// TestAnOrderDoesNotMakeARelayForgetAPromotion that a restored Lease lacks.
func TestAnOrderDoesNotMakeARelayForgetAPromotion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := leased(t)
		w.put("east", "db", "one.x")
		w.start().settled()
		w.terms(promote)
		w.until("it is promoted", func() bool { return w.status().State == "promoted" })
		w.put("east", "db", "two.x")
		w.terms(func(t *lease.Terms) { *t = lease.Terms{Frozen: lease.Note{By: "me"}} })
		if _, err := w.order("unfreeze", ""); err == nil || !strings.Contains(err.Error(), "has lost the promotion") {
			t.Error(err)
		}
		w.until("it is promoted again", func() bool { return w.holder() == lease.Promoted })
		await.Settle(time.Minute)
		if host(w.object("db")) != "one.x" {
			t.Error("it has written")
		}
	})
}

// TestOrdersOutliveTheLease that somebody deletes with all objects of the sink, or that is restored to before an adoption.
func TestOrdersOutliveTheLease(t *testing.T) {
	for name, lose := range map[string]func(*world){
		"deleted":  func(w *world) { w.Remove(leases, theLeaseOfDR); w.Remove(entries, "shop/db") },
		"restored": func(w *world) { w.terms(func(t *lease.Terms) { *t = lease.Terms{} }) },
	} {
		synctest.Test(t, func(t *testing.T) {
			w := leased(t)
			w.put("east", "db", "one.x")
			w.start().settled()
			w.terms(promote)
			w.terms(adopt)
			w.until("it is frozen", func() bool { return w.status().State == "frozen" })
			w.put("east", "db", "two.x")
			lose(w)
			w.until("the Lease has the orders again", func() bool {
				w.Lock()
				defer w.Unlock()
				a, _ := at(w.Objects[leases][theLeaseOfDR], "metadata", "annotations").(map[string]any)
				return a["meshrelay.io/frozen-by"] == "me" && a["meshrelay.io/deletions"] == "held" && a["meshrelay.io/promotion"] == "1"
			})
			await.Settle(time.Minute)
			if h := host(w.object("db")); h == "two.x" || w.status().State != "frozen" {
				t.Errorf("%s: it has written %s", name, h)
			}
		})
	}
}

// TestAnUnfreezeEndsAFreezeThatTheLeaseWasNotTold, and its problem.
func TestAnUnfreezeEndsAFreezeThatTheLeaseWasNotTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := leased(t)
		w.put("east", "db", "one.x")
		w.start().settled()
		back := w.away()
		if _, err := w.order("freeze", ""); err != nil {
			t.Fatal(err)
		}
		w.until("it is told", func() bool {
			return strings.Contains(strings.Join(w.status().Problems, " "), "not yet for other relays")
		})
		if _, err := w.order("unfreeze", ""); err != nil {
			t.Fatal(err)
		}
		await.Settle(time.Minute)
		back()
		w.put("east", "db", "two.x")
		w.until("it writes", func() bool {
			return host(w.object("db")) == "two.x" && !strings.Contains(strings.Join(w.status().Problems, " "), "not yet for other relays")
		})
	})
}

// TestADriftThatWaitsIsNoOutage: who fights with the sink makes it wait, and not be away.
func TestADriftThatWaitsIsNoOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := leased(t, func(w *world) { w.spec.Conflicts = "take" })
		w.put("east", "db", "one.x")
		w.start().settled()
		for range 8 {
			w.edit(http.MethodPut, "other", "db", setHost("other.x"))
			for range 40 { // each pause is twice as long
				if await.Settle(2 * time.Second); host(w.object("db")) == "one.x" {
					break
				}
				if p := w.set.Problems(); len(p) > 0 {
					t.Fatal(p)
				}
			}
		}
	})
}

// TestAFrozenSinkThatBecomesADryRunTellsItsTroubles: a dry run writes nothing anyway.
func TestAFrozenSinkThatBecomesADryRunTellsItsTroubles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := leased(t)
		w.put("east", "db", "one.x")
		w.start().settled()
		if _, err := w.order("freeze", ""); err != nil {
			t.Fatal(err)
		}
		w.stop()
		w.spec.Mode = "dryRun"
		w.stores["east"].Put(entry(t, "east", "nowhere", "db", "db.x", nil))
		w.start().until("it follows", func() bool {
			s := w.status()
			return s.State == "following" && s.TroublesByState["namespaceMissing"] == 1
		})
	})
}
