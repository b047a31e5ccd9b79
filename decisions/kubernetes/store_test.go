package kubernetes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"meshrelay/decisions"
	"meshrelay/internal/testing/await"
	"meshrelay/internal/testing/fakekube"
	"meshrelay/upstreams/kubernetes/apiserver"
)

const (
	configMaps = "/configmaps" // of the group of the core
	key        = "mesh/log"
)

const quick = 5 * time.Millisecond

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// server is an API server in memory, and a kubeconfig for it.
type server struct {
	*fakekube.Server
	t          *testing.T
	kubeconfig string
}

func newServer(t *testing.T) *server {
	t.Helper()
	s := &server{fakekube.New(), t, filepath.Join(t.TempDir(), "kubeconfig")}
	s.Define("", "ConfigMap", "configmaps", "v1")
	fakekube.WriteKubeconfig(t, s.kubeconfig, s.StartInMemory(t), "")
	return s
}

// replica returns a store of one replica.
func (s *server) replica() *Store {
	return s.storeOf("mesh", "log")
}

// storeOf returns a store with an object of its own.
func (s *server) storeOf(namespace, name string) *Store {
	store := New(&apiserver.Credentials{Kubeconfig: s.kubeconfig}, "test", namespace, name, quick)
	store.client.Dial = fakekube.Dial
	s.t.Cleanup(store.client.Close)
	return store
}

// fault has requests of a method fail with a code, before or after the server has carried them out.
func (s *server) fault(f func(w http.ResponseWriter, r *http.Request) bool) {
	s.Set(func() { s.Fault = f })
}

func freeze(id, upstream string) decisions.Record {
	return decisions.Record{ID: id, Kind: decisions.Freeze, Upstream: upstream, Replica: "a"}
}

func (s *Store) add(r decisions.Record) (decisions.Log, error) {
	return s.Append(context.Background(), r)
}

// watched is what a watch has told.
type watched struct {
	mu  sync.Mutex
	log decisions.Log
	err error
}

// watch watches until the test ends.
func (s *server) watch(store *Store) *watched {
	w := &watched{}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		store.Watch(ctx, func(log decisions.Log, err error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			if w.err = err; err == nil {
				w.log = log
			}
		})
	}()
	s.t.Cleanup(func() { cancel(); <-done })
	return w
}

// await waits until the watch has told this.
func (w *watched) await(t *testing.T, what string, ok func(w *watched) bool) {
	t.Helper()
	locked := func(f func()) { w.mu.Lock(); defer w.mu.Unlock(); f() }
	await.Until(t, what, func() (is bool) { locked(func() { is = ok(w) }); return is },
		func() (now any) { locked(func() { now = fmt.Sprintf("%+v, %v", w.log, w.err) }); return now })
}

func (w *watched) awaitSequence(t *testing.T, sequence uint64) {
	t.Helper()
	w.await(t, fmt.Sprint("sequence ", sequence), func(w *watched) bool { return w.err == nil && w.log.State().Sequence == sequence })
}

// text returns a text in the data of the object.
func (s *server) text(key string) string {
	s.Lock()
	defer s.Unlock()
	o := s.Objects[configMaps]["mesh/log"]
	if o == nil {
		return ""
	}
	data, _ := o["data"].(map[string]any)
	text, _ := data[key].(string)
	return text
}

// edit sets the data of the object, as kubectl edit does.
func (s *server) edit(data map[string]any) {
	s.Put(configMaps, map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "log", "namespace": "mesh", "labels": map[string]any{"team": "x"}}, "data": data,
	})
}

func TestReplicasThatAppendAtOnceLoseNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		var appended sync.WaitGroup
		watches := []*watched{}
		for n := range 3 {
			store := s.replica()
			watches = append(watches, s.watch(store))
			appended.Go(func() {
				for i := range 8 {
					id := fmt.Sprint(n, "-", i)
					if _, err := store.add(freeze(id, "u"+id)); err != nil {
						t.Error(err)
					}
				}
			})
		}
		appended.Wait()
		for _, w := range watches {
			w.awaitSequence(t, 24)
			w.await(t, "24 upstreams are frozen", func(w *watched) bool { return len(w.log.State().Upstreams) == 24 })
		}
		if _, err := s.replica().add(freeze("again", "u0-0")); !errors.Is(err, decisions.ErrRefused) {
			t.Errorf("a second freeze: %v", err)
		}
	})
}

func TestAnAppendWhoseAnswerWasLostIsRecognised(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		lost := atomic.Int32{}
		s.fault(func(w http.ResponseWriter, r *http.Request) bool {
			if (r.Method == http.MethodPost || r.Method == http.MethodPut) && lost.Add(1) <= 2 {
				s.fault(nil)
				rec := &discard{}
				s.ServeHTTP(rec, r)
				w.WriteHeader(http.StatusBadGateway)
				return true
			}
			return false
		})
		log, err := s.replica().add(freeze("1", "east"))
		if err != nil || len(log.Records()) != 1 || strings.Count(s.text(logKey), "\n") != 2 {
			t.Errorf("%v, %+v, %q", err, log.Records(), s.text(logKey))
		}
	})
}

// discard is an answer that nobody gets.
type discard struct{ h http.Header }

func (d *discard) Header() http.Header {
	if d.h == nil {
		d.h = http.Header{}
	}
	return d.h
}
func (*discard) Write(b []byte) (int, error) { return len(b), nil }
func (*discard) WriteHeader(int)             {}

func TestMissingRightsAreNamedByTheirVerb(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for method, verb := range map[string]string{http.MethodGet: "get", http.MethodPost: "create", http.MethodPut: "update"} {
			s := newServer(t)
			if method == http.MethodPut {
				s.edit(nil)
			}
			s.fault(func(w http.ResponseWriter, r *http.Request) bool {
				is := r.Method == method && r.URL.RawQuery == ""
				if is {
					w.WriteHeader(http.StatusForbidden)
					_, _ = w.Write([]byte(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403,"message":"no"}`))
				}
				return is
			})
			want := "allow the identity to " + verb + " configmaps"
			store := s.replica()
			if _, err := store.add(freeze("1", "east")); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "mesh/log") {
				t.Errorf("%s: %v", method, err)
			}
			if verb == "get" {
				s.watch(store).await(t, want, func(w *watched) bool { return w.err != nil && strings.Contains(w.err.Error(), want) })
			}
		}
	})
}

func TestAStoreThatIsDownIsAnErrorAndIsReadAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		store := s.replica()
		w := s.watch(store)
		w.awaitSequence(t, 0)
		s.fault(func(w http.ResponseWriter, _ *http.Request) bool {
			w.WriteHeader(http.StatusServiceUnavailable)
			return true
		})
		w.await(t, "an error", func(w *watched) bool { return w.err != nil })
		ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
		defer cancel()
		if _, err := store.Append(ctx, freeze("1", "east")); err == nil {
			t.Error("an append without the server is acknowledged")
		}
		s.fault(nil)
		if _, err := s.replica().add(freeze("2", "east")); err != nil {
			t.Fatal(err)
		}
		w.awaitSequence(t, 1)
	})
}

func TestDecisionsThatTheObjectHasLostAreWrittenAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		a, b := s.replica(), s.replica()
		w := s.watch(a)
		for _, id := range []string{"1", "2", "3"} {
			if _, err := a.add(freeze(id, "u"+id)); err != nil {
				t.Fatal(err)
			}
		}
		w.awaitSequence(t, 3)
		s.Remove(configMaps, key)
		if _, err := b.add(freeze("4", "u4")); err != nil { // it has never read the first three
			t.Fatal(err)
		}
		w.await(t, "all four", func(w *watched) bool { return len(w.log.State().Upstreams) == 4 })
		if log, err := decisions.Decode(s.text(logKey)); err != nil || len(log.State().Upstreams) != 4 {
			t.Errorf("%v: %+v", err, log)
		}
	})
}

func TestWhatOthersHaveInTheObjectStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		s.edit(map[string]any{"note": "by hand", logKey: "{\"seq\":6}\n{\"seq\":7,\"id\":\"x\",\"kind\":\"freeze\",\"upstream\":\"east\",\"replica\":\"r\"}\n"})
		store := s.replica()
		w := s.watch(store)
		w.awaitSequence(t, 7)
		if _, err := store.add(freeze("y", "west")); err != nil {
			t.Fatal(err)
		}
		w.awaitSequence(t, 8)
		s.Lock()
		labels, _ := json.Marshal(s.Objects[configMaps][key]["metadata"].(map[string]any)["labels"])
		s.Unlock()
		if s.text("note") != "by hand" || string(labels) != `{"team":"x"}` {
			t.Errorf("note %q, labels %s", s.text("note"), labels)
		}
	})
}

func TestAnObjectThatIsNoLogIsAnErrorAndNotOverwritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for what, data := range map[string]map[string]any{
			"broken":                      {logKey: "{"},
			"too large":                   {logKey: strings.Repeat("x", decisions.MaxBytes+1)},
			"an answer that is too large": {"other": strings.Repeat("x", 4<<20)},
		} {
			s := newServer(t)
			s.edit(data)
			store := s.replica()
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond) // of the bubble: some attempts
			defer cancel()
			if _, err := store.Append(ctx, freeze("1", "east")); err == nil || !strings.Contains(err.Error(), "mesh/log") {
				t.Errorf("%s: %v", what, err)
			}
			s.watch(store).await(t, what, func(w *watched) bool { return w.err != nil })
			if data[logKey] != nil && s.text(logKey) != data[logKey] {
				t.Errorf("%s: it was overwritten", what)
			}
		}
	})
}

// TestTheRoleOfReplicasIsWhatTheStoreAsks, and no more.
func TestTheRoleOfReplicasIsWhatTheStoreAsks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rights := fakekube.ReadRights(t, "../../deploy/kubernetes/rbac-replicas.yaml", "relay-replicas")
		s := newServer(t)
		s.fault(rights.Refuse)
		store := s.storeOf("istio-system", "relay-decisions")
		w := s.watch(store)
		for _, id := range []string{"1", "2"} {
			if _, err := store.add(freeze(id, "u"+id)); err != nil {
				t.Fatal(err)
			}
		}
		w.awaitSequence(t, 2)
		if lacks, unused := rights.Lacks(), rights.Unused(""); len(lacks)+len(unused) > 0 {
			t.Errorf("the role lacks %q, and grants what is not asked: %q", lacks, unused)
		}
	})
}
