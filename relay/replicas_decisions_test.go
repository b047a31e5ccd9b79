package relay

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"meshrelay/admin"
	"meshrelay/admin/view"
	"meshrelay/internal/testing/await"
	"meshrelay/internal/testing/fakekube"
	"meshrelay/upstreams/intake"
)

// agreeing is a site whose replicas keep their decisions in one ConfigMap.
func agreeing(t *testing.T) (*site, *fakekube.Server) {
	decisionsEvery = 10 * time.Millisecond // for all relays here: no test looks at the pace
	s, server := newSite(t), fakekube.New()
	server.Define("", "ConfigMap", "configmaps", "v1")
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	fakekube.WriteKubeconfig(t, kubeconfig, server.Start(t), "")
	s.store = "kubernetes: {kubeconfig: " + kubeconfig + ", namespace: mesh}, "
	dir, err := os.MkdirTemp("", "relay") // a short path
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	s.sockets = dir
	return s, server
}

// order gives an order as the command does, and returns what that prints.
func (m *member) order(verb string, o intake.Order) string {
	m.t.Helper()
	c := admin.Client{Socket: m.socket, HTTP: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}}
	done, err := c.Order(m.t.Context(), "east", verb, o)
	if err != nil {
		m.t.Fatal(err)
	}
	return view.Ordered(done, verb, o) + view.Reached(done.Effect.Replicas)
}

// decided returns what it has of the decisions.
func (m *member) decided() any { return m.manager.Replicas() }

// reads waits until it has read the store.
func (m *member) reads() {
	m.t.Helper()
	await.Until(m.t, "the store is read", func() bool { return m.manager.Replicas().Applied }, m.decided)
}

// agrees waits until nothing is decided by it alone.
func (m *member) agrees() {
	m.t.Helper()
	await.Until(m.t, "it is agreed", func() bool { st := m.manager.Replicas(); return st.Reachable && len(st.Local) == 0 }, m.decided)
}

func (m *member) wantOrdered(verb string, o intake.Order, want string) {
	m.t.Helper()
	if got := m.order(verb, o); !strings.Contains(got, want) {
		m.t.Errorf("%s tells %q, want %q", verb, got, want)
	}
}

// TestAnOrderToOneRelayIsCarriedOutOnAllAndTheCommandTellsOnHowMany with relays that ask each other, and a shared store.
func TestAnOrderToOneRelayIsCarriedOutOnAllAndTheCommandTellsOnHowMany(t *testing.T) {
	s, server := agreeing(t)
	a, b := s.start("relay-0", "", names(20)...), s.start("relay-1", "", names(20)...)
	for _, m := range []*member{a, b} {
		m.serves()
		m.has(20)
	}
	a.wantOrdered("freeze", intake.Order{Reason: "INC-1"}, "carried out on 2 of 2 known replicas")
	if f := b.manager.Status()[0].Frozen; f == nil || f.Reason != "INC-1" {
		t.Errorf("the other one: %+v", f)
	}
	b.wantOrdered("unfreeze", intake.Order{}, "carried out on 2 of 2 known replicas")
	if a.manager.Status()[0].Frozen != nil {
		t.Error("the first one is frozen")
	}

	// A hold of one holds on the other, which serves again what it has let go.
	b.remove(names(2)...)
	b.has(18)
	a.remove(names(20)...)
	a.holds(20)
	b.has(20)
	b.remove(names(20)[2:]...)
	b.holds(20)
	b.wantOrdered("release", intake.Order{All: true}, "carried out on 2 of 2 known replicas")
	if a.east().Resources != 0 || b.east().Resources != 0 {
		t.Errorf("after the release: %+v, %+v", a.east(), b.east())
	}

	a.replicas.poll(t.Context()) // it knows the name
	b.stop()
	a.wantOrdered("freeze", intake.Order{}, "carried out on 1 of 2 known replicas. Not reached: relay-1 127.0.0.1:")
	server.Set(func() {
		server.Fault = func(w http.ResponseWriter, _ *http.Request) bool {
			fakekube.Fail(w, http.StatusForbidden, "Forbidden") // which is not tried again
			return true
		}
	})
	if _, err := a.manager.Order(t.Context(), "east", "unfreeze", intake.Order{Force: true}); err == nil || !strings.Contains(err.Error(), "--local") {
		t.Errorf("without the store: %v", err)
	}
	a.wantOrdered("unfreeze", intake.Order{Force: true, Local: true}, "a decision of this replica alone")
	server.Set(func() { server.Fault = nil })
	a.agrees()
}

// TestALocalOrderIsTakenWhenTheStoreCanOnlyBeRead, and it is shown that nothing can be recorded, although each read tells
// that the store is there.
func TestALocalOrderIsTakenWhenTheStoreCanOnlyBeRead(t *testing.T) {
	s, server := agreeing(t)
	a := s.start("relay-0", "", names(3)...)
	a.serves()
	a.reads()
	var reads, writes atomic.Int32
	server.Set(func() {
		server.Fault = func(w http.ResponseWriter, r *http.Request) bool {
			if r.Method == http.MethodGet {
				reads.Add(1)
				return false
			}
			writes.Add(1)
			fakekube.Fail(w, http.StatusForbidden, "Forbidden")
			return true
		}
	})
	if _, err := a.manager.Order(t.Context(), "east", "freeze", intake.Order{}); err == nil || !strings.Contains(err.Error(), "allow the identity to create configmaps") {
		t.Errorf("%v", err)
	}
	since := a.manager.Replicas().Since
	reads.Store(0)
	await.Until(t, "it is read again", func() bool {
		if st := a.manager.Replicas(); st.Reachable || !strings.Contains(strings.Join(st.Problems(), ""), "allow the identity to create configmaps") || !st.Since.Equal(since) {
			t.Fatalf("%+v", st)
		}
		return reads.Load() > 3
	})
	a.wantOrdered("freeze", intake.Order{Local: true, For: time.Hour}, "a decision of this replica alone")
	server.Set(func() { server.Fault = nil })
	a.agrees()
}

// TestAStoreThatCanBeWrittenAgainIsReachable, although nothing waits to be recorded.
func TestAStoreThatCanBeWrittenAgainIsReachable(t *testing.T) {
	s, server := agreeing(t)
	a := s.start("relay-0", "", names(3)...)
	a.serves()
	a.reads()
	server.Set(func() {
		server.Fault = func(w http.ResponseWriter, r *http.Request) bool {
			if r.Method != http.MethodGet {
				fakekube.Fail(w, http.StatusForbidden, "Forbidden")
			}
			return r.Method != http.MethodGet
		}
	})
	if _, err := a.manager.Order(t.Context(), "east", "freeze", intake.Order{}); err == nil {
		t.Error("it is acknowledged")
	}
	server.Set(func() { server.Fault = nil })
	await.Until(t, "the store is reachable", func() bool { return a.manager.Replicas().Reachable }, a.decided)
	if a.manager.Status()[0].Frozen != nil {
		t.Error("an order that was refused is carried out")
	}
}
