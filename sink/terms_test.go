package sink

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"meshrelay/internal/testing/await"
	"meshrelay/internal/testing/fakekube"
	"meshrelay/mirror"
	"meshrelay/sink/lease"
	"meshrelay/upstreams/kubernetes/apiserver"
)

const leases = "coordination.k8s.io/leases"

// leased returns a world with real Leases.
func leased(t *testing.T, adjust ...func(*world)) *world {
	return newWorld(t, append([]func(*world){func(w *world) {
		w.deps.Lease = realLease
		w.Namespace("istio-system", `{}`)
	}}, adjust...)...)
}

// terms changes those of the Lease, as another relay or a command does.
func (w *world) terms(f func(*lease.Terms)) {
	w.t.Helper()
	conn := apiserver.NewConn("https://kube", w.Server)
	if err := lease.Edit(w.t.Context(), conn, "istio-system", "meshrelay-sink-dr", false, func(t *lease.Terms, _ bool) error { f(t); return nil }); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) holder() any {
	w.Lock()
	defer w.Unlock()
	return at(w.Objects[leases]["istio-system/meshrelay-sink-dr"], "spec", "holderIdentity")
}

func promote(t *lease.Terms) { t.Number, t.Promoted = t.Number+1, lease.Note{By: "me", Reason: "fire"} }

func adopt(t *lease.Terms) { t.Promoted, t.Frozen, t.Hold = lease.Note{}, lease.Note{By: "me"}, true }

// TestAPromotionIsToldByARelayThatDoesNotServeYet: it may wait for a person who has frozen an upstream.
func TestAPromotionIsToldByARelayThatDoesNotServeYet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := leased(t, func(w *world) { w.deps.Released = make(chan struct{}) })
		w.start().until("it holds the Lease", func() bool { return w.status().Leader })
		if s := w.status(); s.State != "starting" {
			t.Errorf("its state is %s", s.State)
		}
		w.terms(promote)
		w.until("it is promoted", func() bool { return w.status().State == "promoted" })
	})
}

// TestAPromotedSinkWritesNothingUntilItIsAdopted: then it is frozen, and then it holds every deletion.
func TestAPromotedSinkWritesNothingUntilItIsAdopted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := leased(t, func(w *world) { w.spec.Prune, w.spec.Conflicts = true, "take" })
		w.many(20)
		w.put("east", "db", "one.x")
		w.put("east", "gone", "one.x")
		w.start().settled()
		w.terms(promote)
		w.until("it is promoted", func() bool {
			s := w.status()
			return s.State == "promoted" && s.Promoted.By == "me" && s.Promoted.Reason == "fire" && len(s.Problems) == 0
		})
		writes := w.wrote()
		w.put("east", "db", "two.x")
		w.remove("east", "gone")
		w.edit("PATCH", "kubectl", "n01", func(o map[string]any) {
			delete(o["metadata"].(map[string]any), "managedFields")
			o["spec"] = map[string]any{"hosts": []any{"edited.x"}}
		})
		await.Settle(5 * time.Minute)
		if n := w.wrote() - writes; n != 1 { // the edit
			t.Fatalf("a promoted sink has written %q", w.writes[writes:])
		}
		w.terms(adopt)
		w.until("it is frozen", func() bool {
			s := w.status()
			return s.State == "frozen" && s.Todo["left"] == 2 && s.Todo["held"] == 1 && s.Promoted == nil
		})
		if host(w.object("n01")) != "edited.x" || host(w.object("db")) != "one.x" || w.object("gone") == nil {
			t.Error("an adopted sink has written")
		}
		if _, err := w.order("unfreeze", ""); err != nil {
			t.Fatal(err)
		}
		w.until("edits are put right, and the deletion is held", func() bool {
			s := w.status()
			return host(w.object("n01")) == "a.x" && host(w.object("db")) == "two.x" && s.Held != nil && s.Held.Removals == 1
		})
		if w.object("gone") == nil {
			t.Fatal("it is gone without a person")
		}
		if n, err := w.order("release", w.status().Held.ID); n != 1 || err != nil {
			t.Fatal(n, err)
		}
		w.until("it is gone", func() bool { return w.object("gone") == nil })
		w.remove("east", "n02")
		w.until("others go without a person", func() bool { return w.object("n02") == nil })
	})
}

// TestARelayRemembersAPromotion whose Lease is lost or older, also over a restart. Without what it remembers, it is blocked where
// it has objects.
func TestARelayRemembersAPromotion(t *testing.T) {
	for name, lose := range map[string]func(*world){
		"deleted": func(w *world) { w.Remove(leases, "istio-system/meshrelay-sink-dr") },
		"older":   func(w *world) { w.terms(func(t *lease.Terms) { *t = lease.Terms{} }) },
	} {
		for _, remembers := range []bool{true, false} {
			synctest.Test(t, func(t *testing.T) {
				w := leased(t)
				w.put("east", "db", "one.x")
				w.start().settled()
				w.terms(promote)
				w.until("it is promoted", func() bool { return w.status().State == "promoted" })
				w.stop()
				if lose(w); !remembers {
					w.deps.Dir = t.TempDir()
				}
				w.put("east", "db", "two.x")
				w.start()
				switch {
				case remembers:
					w.until("it is promoted again", func() bool { return w.holder() == lease.Promoted && w.status().State == "promoted" })
				case name == "deleted":
					w.until("it is blocked", func() bool {
						p := strings.Join(w.status().Problems, " ")
						return w.status().State == "blocked" && strings.Contains(p, "run relay sink promote dr") && strings.Contains(p, "run relay sink adopt dr")
					})
					await.Settle(5 * time.Minute)
				default: // an older Lease is no reason
					w.until("it writes", func() bool { return host(w.object("db")) == "two.x" })
					return
				}
				if host(w.object("db")) != "one.x" {
					t.Errorf("%s, remembers %t: it has written", name, remembers)
				}
			})
		}
	}
}

// TestALeaseThatIsRestoredAtOnceIsFollowed: a release was not in the copy of etcd, and no deletion goes by it any more.
func TestALeaseThatIsRestoredAtOnceIsFollowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := leased(t, func(w *world) { w.spec.Prune = true })
		w.many(20)
		w.start().settled()
		hold := func(t *lease.Terms) { t.Hold = true }
		w.terms(hold)
		w.remove("east", "n01")
		w.until("it is held", func() bool { return w.status().Held != nil })
		if _, err := w.order("release", w.status().Held.ID); err != nil {
			t.Fatal(err)
		}
		w.terms(hold)
		w.until("it is gone", func() bool { return w.object("n01") == nil })
		await.Settle(time.Minute)
		w.remove("east", "n02")
		await.Settle(time.Minute)
		if w.status().Held == nil || w.object("n02") == nil {
			t.Error("the Lease tells that deletions are held, and one is not")
		}
	})
}

// TestAFreezeIsForAllRelaysOfTheSink, also of one that does not write, and over restarts without a disk.
func TestAFreezeIsForAllRelaysOfTheSink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := leased(t)
		w.deps.Dir = ""
		w.put("east", "db", "one.x")
		w.start().settled()
		w.terms(func(t *lease.Terms) { t.Frozen = lease.Note{By: "the standby", Reason: "audit"} })
		w.until("it is frozen", func() bool { s := w.status(); return s.State == "frozen" && s.Frozen.Reason == "audit" })
		w.stop()
		w.put("east", "db", "two.x")
		w.start().until("it is frozen after a restart", func() bool { return w.status().State == "frozen" })
		await.Settle(time.Minute)
		if host(w.object("db")) != "one.x" {
			t.Error("it has written")
		}
		if _, err := w.order("unfreeze", ""); err != nil {
			t.Fatal(err)
		}
		w.until("it writes", func() bool { return host(w.object("db")) == "two.x" })
	})
}

// TestAFreezeHoldsHereWhileItCanNotBeWritten, and is written later.
func TestAFreezeHoldsHereWhileItCanNotBeWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := leased(t)
		w.put("east", "db", "one.x")
		w.start().settled()
		w.Set(func() {
			w.Fault = func(rw http.ResponseWriter, _ *http.Request) bool {
				fakekube.Fail(rw, http.StatusServiceUnavailable, "ServiceUnavailable")
				return true
			}
		})
		if _, err := w.order("freeze", ""); err != nil {
			t.Fatal(err)
		}
		w.until("it tells so", func() bool {
			s := w.status()
			return s.Frozen != nil && strings.Contains(strings.Join(s.Problems, " "), "it is frozen here, and not yet for other relays")
		})
		if _, err := w.order("release", "x"); err == nil {
			t.Error("a release without the Lease")
		}
		w.Set(func() { w.Fault = nil })
		w.until("the Lease has it", func() bool {
			w.Lock()
			defer w.Unlock()
			return at(w.Objects[leases]["istio-system/meshrelay-sink-dr"], "metadata", "annotations", "meshrelay.io/frozen-reason") == "test"
		})
		w.until("no problem is left", func() bool { s := w.status(); return s.State == "frozen" && len(s.Problems) == 0 })
	})
}

// TestASinkWritesIntoNoOtherCluster under the same kubeconfig, also after a restart, and tells that nothing is written.
func TestASinkWritesIntoNoOtherCluster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := leased(t, func(w *world) { w.UID = "one" })
		w.put("east", "db", "one.x")
		w.start().settled()
		w.Set(func() {
			w.UID = "two"
			w.Objects[entries], w.Objects[leases] = nil, nil
			w.Stops++
		})
		writes := w.wrote()
		refused := func() {
			t.Helper()
			w.until("it is refused", func() bool {
				s := w.status()
				return s.State == "blocked" && s.Objects == 0 && s.Complete.IsZero() && strings.Contains(strings.Join(s.Problems, " "), "clusterUID: two")
			})
			await.Settle(time.Minute)
			if a := w.set.Applied(key("db")); w.wrote() != writes || len(a) != 1 || a[0].State != "failed" {
				t.Fatalf("%q, %+v", w.writes[writes:], a)
			}
			if _, err := w.set.Diff(t.Context(), "dr", Wanted{}); !errors.Is(err, ErrNotPossible) {
				t.Errorf("the difference: %v", err)
			}
		}
		refused()
		w.stop()
		w.start()
		refused()
		w.stop()
		w.spec.ClusterUID = "two"
		w.start().until("it writes", func() bool { return w.object("db") != nil })
		w.stop()
		w.spec.ClusterUID = ""
		w.start().settled()
	})
}

// TestWhatNobodyWritesIsAProblemAfterAMinute, unless nothing is to be written, or another process can.
func TestWhatNobodyWritesIsAProblemAfterAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := leased(t)
		w.put("east", "db", "one.x")
		w.start().settled()
		noLease := func(rw http.ResponseWriter, r *http.Request) bool {
			if strings.Contains(r.URL.Path, "leases") {
				fakekube.Fail(rw, http.StatusForbidden, "Forbidden")
				return true
			}
			return false
		}
		w.Set(func() { w.Fault = noLease })
		await.Settle(5 * time.Minute)
		if p := w.set.Problems(); len(p) > 0 {
			t.Fatal("nothing is to be written: ", p)
		}
		w.put("east", "db", "two.x")
		began := time.Now()
		w.until("it is a problem", func() bool { return len(w.set.Problems()) > 0 })
		p := w.set.Problems()[0]
		if after := time.Since(began); after < unwrittenAfter-2*judgeEach || !strings.Contains(p, "sink dr: nobody has written since") || !strings.Contains(p, "with 1 to be written") {
			t.Errorf("after %v: %s", after, p)
		}
		if st := w.status(); st.Unwritten != 1 || !strings.Contains(strings.Join(st.Problems, " "), "leases") {
			t.Errorf("%+v", st)
		}
		other := apiserver.NewConn("https://kube", w.Server)
		w.Set(func() { w.Fault = nil })
		w.until("it is written", func() bool { return host(w.object("db")) == "two.x" })
		if p := w.set.Problems(); len(p) > 0 {
			t.Error(p)
		}
		w.stop()

		another := lease.New(lease.Options{Conn: func() *apiserver.Conn { return other }, Namespace: "istio-system", Name: "meshrelay-sink-dr", Identity: "r2", Relay: "r1",
			Terms: func() (t lease.Terms) { return t }, Keep: func(_, _ lease.Terms) error { return nil }, Begin: func() (bool, error) { return true, nil }, Check: func(context.Context) error { return nil }, Logger: w.deps.Logger})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- another.Run(ctx) }()
		await.Settle(30 * time.Second)
		w.put("east", "db", "three.x")
		w.start()
		await.Settle(5 * time.Minute)
		if st := w.status(); st.State != "standby" || st.Unwritten > 0 || len(st.Problems) > 0 {
			t.Errorf("another process can write: %+v", st)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// TestTwoRelaysWithASinkOfOneNameLearnOfEachOther, with one Lease or with two.
func TestTwoRelaysWithASinkOfOneNameLearnOfEachOther(t *testing.T) {
	for _, namespace := range []string{"istio-system", "other"} {
		synctest.Test(t, func(t *testing.T) {
			var set *Set
			w := leased(t, func(w *world) {
				deps := w.deps
				deps.Dir, deps.Relay = t.TempDir(), "r2"
				set = New(deps)
				w.Namespace("other", `{}`)
				w.aggregate.RegisterHandler(func(c mirror.Change) { set.Changed(c.Key) })
			})
			w.start().settled()
			spec := w.spec
			spec.Namespace = namespace
			set.Apply([]Spec{spec})
			ctx, cancel := context.WithCancel(context.Background())
			done := make(chan struct{})
			go func() { defer close(done); _ = set.Run(ctx) }()
			t.Cleanup(func() { cancel(); <-done })
			names := func(s *Set, relay string) bool {
				for _, st := range s.Status("dr") {
					if strings.Contains(strings.Join(st.Problems, " "), "the relay "+relay+" has a sink of this name") {
						return true
					}
				}
				return false
			}
			w.until("the second one has read the cluster", func() bool { all := set.Status("dr"); return len(all) == 1 && all[0].Holder != "" })
			w.put("east", "db", "one.x")
			w.until("the second one learns of the first", func() bool { return names(set, "r1") })
			w.until("the first one learns of the second", func() bool { return names(w.set, "r2") })
			cancel()
			<-done
			w.put("east", "db", "two.x")
			w.until("it is over", func() bool { return !names(w.set, "r2") })
		})
	}
}

// TestAnUnfreezeRightAfterAnAdoptionEndsItsFreeze, of which the relay does not know yet.
func TestAnUnfreezeRightAfterAnAdoptionEndsItsFreeze(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := leased(t)
		w.put("east", "db", "one.x")
		w.start().settled()
		w.terms(promote)
		w.until("it is promoted", func() bool { return w.status().State == "promoted" })
		w.put("east", "db", "two.x")
		w.terms(adopt)
		if w.status().Frozen != nil {
			t.Fatal("it knows already")
		}
		if _, err := w.order("unfreeze", ""); err != nil {
			t.Error(err)
		}
		w.until("it writes", func() bool { return host(w.object("db")) == "two.x" })
		if _, err := w.order("unfreeze", ""); err == nil || !strings.Contains(err.Error(), "it is not frozen") {
			t.Error(err)
		}
	})
}

// TestARelayWithAnotherNameWritesEachObjectOnce, and that is no drift.
func TestARelayWithAnotherNameWritesEachObjectOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := leased(t)
		w.many(5)
		w.start().settled()
		w.stop()
		w.deps.Relay = "r2"
		before := w.sent("PATCH")
		w.start().settled()
		if st := w.status(); st.Drifted > 0 || len(st.Drifts) > 0 || w.sent("PATCH")-before != 5 || len(st.Problems) > 0 {
			t.Errorf("%+v", st)
		}
	})
}
