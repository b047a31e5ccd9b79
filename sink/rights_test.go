package sink

import (
	"strings"
	"testing"
	"testing/synctest"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"meshrelay/internal/testing/fakekube"
	"meshrelay/sink/lease"
)

func realLease(o lease.Options) Writer { return lease.New(o) }

// TestTheRoleOfASinkIsWhatItAsks: a sink that creates, changes, deletes and looks again at objects, and has a Lease,
// needs the rights of deploy/kubernetes/rbac-sink.yaml, and no others.
func TestTheRoleOfASinkIsWhatItAsks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rights := fakekube.ReadRights(t, "../deploy/kubernetes/rbac-sink.yaml", "relay-sink")
		w := newWorld(t, func(w *world) {
			w.spec.Prune, w.deps.Lease = true, realLease
			w.UID, w.NoStreams = "site", true // servers before 1.32 are asked for lists
			w.Namespace("istio-system", `{}`)
			w.Fault = rights.Refuse
		})
		w.Put(entries, fakekube.Object("shop", "theirs", `{"hosts":["theirs.x"]}`))
		w.many(20)
		w.put("east", "theirs", "a.x")
		w.start().until("objects are created", func() bool { return w.objects() == 21 && w.status().TroublesByState["foreign"] == 1 })
		w.put("east", "n01", "changed.x")
		w.remove("east", "n02")
		w.until("one is changed, one deleted", func() bool { return host(w.object("n01")) == "changed.x" && w.object("n02") == nil })
		w.stop()
		w.start().until("the Lease is taken again", func() bool { return w.status().Leader })
		if lacks := rights.Lacks(); len(lacks) > 0 {
			t.Errorf("the role lacks %q", lacks)
		}
		for _, of := range []string{"/serviceentries", "/leases", "/namespaces"} {
			if unused := rights.Unused(of); len(unused) > 0 {
				t.Errorf("the role grants what is not asked: %q", unused)
			}
		}
	})
}

// TestASinkThatIsNotToWriteIsSuspended, so that no alert takes it for one that can not.
func TestASinkThatIsNotToWriteIsSuspended(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		suspended := func(w *world, want string) {
			t.Helper()
			w.until("relay_sink_suspended is "+want, func() bool {
				return testutil.CollectAndCompare(w.set, strings.NewReader(`
# HELP relay_sink_suspended 1 while the sink is not to write: it is frozen, was promoted, or only tells the difference.
# TYPE relay_sink_suspended gauge
relay_sink_suspended{sink="dr"} `+want+"\n"), "relay_sink_suspended") == nil
			})
		}
		w := newWorld(t, func(w *world) {
			w.deps.Lease = realLease
			w.Namespace("istio-system", `{}`)
		})
		w.start().until("it writes", func() bool { return w.status().Leader })
		suspended(w, "0")
		if _, err := w.order("freeze", ""); err != nil {
			t.Fatal(err)
		}
		suspended(w, "1")
		if _, err := w.order("unfreeze", ""); err != nil {
			t.Fatal(err)
		}
		suspended(w, "0")
		w.terms(func(t *lease.Terms) { t.Number, t.Promoted = 1, lease.Note{By: "me"} })
		suspended(w, "1")
		w.terms(func(t *lease.Terms) { t.Promoted = lease.Note{} })
		suspended(w, "0")
		w.stop()
		w.spec.Mode = "dryRun"
		w.start()
		suspended(w, "1")
	})
}
