package sink

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	networking "istio.io/api/networking/v1alpha3"

	"meshrelay/config"
	"meshrelay/events"
	"meshrelay/federation"
	"meshrelay/internal/testing/await"
	"meshrelay/internal/testing/fakekube"
	"meshrelay/mirror"
	"meshrelay/sink/lease"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const entries = "networking.istio.io/serviceentries"

// theLease is the right to write of a test.
type theLease struct{ held atomic.Bool }

func (l *theLease) Run(ctx context.Context) error { <-ctx.Done(); return nil }
func (l *theLease) Writable(time.Time) bool       { return l.held.Load() }
func (l *theLease) Status() lease.Status          { return lease.Status{Held: l.held.Load()} }

// world is a cluster with a sink, and upstreams.
type world struct {
	*fakekube.Server
	t         *testing.T
	spec      Spec
	aggregate *mirror.Aggregate
	stores    map[string]*mirror.Store
	deps      Deps
	lease     *theLease
	set       *Set
	stop      func()

	mu       sync.Mutex // guards all below
	blocked  string
	clusters map[string]string
	gate     *gate // where the sink stops when it reads a resource next, nil for nowhere
	happened []events.Event
	log      bytes.Buffer
	writes   []string // method, path and query of each request that may change something
}

// newWorld returns a world whose sink has mode apply. adjust may change what the sink is made of.
func newWorld(t *testing.T, adjust ...func(*world)) *world {
	t.Helper()
	w := &world{t: t, Server: fakekube.New(), stores: map[string]*mirror.Store{}, lease: &theLease{}}
	w.Selects, w.NeedNamespaces = true, true
	w.Namespace("shop", `{}`)
	w.lease.held.Store(true)
	path := t.TempDir() + "/kubeconfig"
	fakekube.WriteKubeconfig(t, path, w.StartInMemory(t), "secret")
	w.Fault = w.note
	w.spec = Spec{Accepts: func(*mirror.Resource) bool { return true }, Sink: config.Sink{
		Name: "dr", View: "dr", Mode: config.SinkApply, Namespace: "istio-system", WritesPerSecond: 10000, Conflicts: "skip",
		Cluster: config.Cluster{Kubeconfig: path}, Guard: config.SinkGuard{Count: 5, Percent: 10},
	}}
	w.aggregate = mirror.NewAggregate()
	var sources []mirror.Source
	for _, name := range []string{"east", "west"} {
		w.stores[name] = mirror.NewStore()
		sources = append(sources, mirror.Source{Name: name, Store: w.stores[name]})
	}
	w.aggregate.SetSources(sources)
	released := make(chan struct{})
	close(released)
	w.deps = Deps{
		Resources: w.aggregate, Released: released, Relay: "r1", Identity: "r1", Dir: t.TempDir(), Logger: slog.New(slog.NewTextHandler(w, nil)),
		Blocked: func() func(string, mirror.Key) string {
			return func(string, mirror.Key) string {
				w.mu.Lock()
				defer w.mu.Unlock()
				return w.blocked
			}
		},
		Clusters: func() map[string]string {
			w.mu.Lock()
			defer w.mu.Unlock()
			return w.clusters
		},
		Record: func(e events.Event) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.happened = append(w.happened, e)
		},
		Lease: func(lease.Options) Writer { return w.lease },
		dial:  fakekube.Dial,
	}
	for _, f := range adjust {
		f(w)
	}
	w.aggregate.RegisterHandler(func(c mirror.Change) {
		w.mu.Lock()
		set := w.set
		w.mu.Unlock()
		if set != nil {
			set.Changed(c.Key)
		}
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = w.aggregate.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	return w
}

// gate is where a sink stops.
type gate struct{ stopped, opens chan struct{} }

// stopReading has the sink stop when it reads a resource next, which closes stopped, until open is closed. What changes
// meanwhile is read together after it.
func (w *world) stopReading() *gate {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.gate = &gate{make(chan struct{}), make(chan struct{})}
	return w.gate
}

// gated are resources with the gate of a world.
type gated struct {
	Resources
	w *world
}

func (r gated) Select(key mirror.Key, cluster string, accept func(*mirror.Resource) bool) *mirror.Resource {
	r.w.mu.Lock()
	g := r.w.gate
	r.w.gate = nil
	r.w.mu.Unlock()
	if g != nil {
		close(g.stopped)
		<-g.opens
	}
	return r.Resources.Select(key, cluster, accept)
}

// letRun lets other goroutines run, until done is closed, or they had their turns. One that waits for a mutex stops the
// clock of its bubble.
func letRun(done <-chan struct{}) {
	for range 10_000 {
		select {
		case <-done:
			return
		default:
			runtime.Gosched()
		}
	}
}

// Write takes the log.
func (w *world) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.log.Write(p)
}

func (w *world) note(_ http.ResponseWriter, r *http.Request) bool {
	if r.Method != http.MethodGet {
		w.mu.Lock()
		w.writes = append(w.writes, r.Method+" "+r.URL.String())
		w.mu.Unlock()
	}
	return false
}

// fault answers requests that write with f, where it returns true.
func (w *world) fault(f func(http.ResponseWriter, *http.Request) bool) {
	w.Set(func() {
		w.Fault = func(rw http.ResponseWriter, r *http.Request) bool {
			w.note(rw, r)
			return r.Method != http.MethodGet && f != nil && f(rw, r)
		}
	})
}

// start runs the sink, and ends it with the test or with stop.
func (w *world) start() *world {
	w.t.Helper()
	deps := w.deps
	deps.Resources = gated{deps.Resources, w}
	set := New(deps)
	w.mu.Lock()
	w.set = set
	w.mu.Unlock()
	set.Apply([]Spec{w.spec})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = set.Run(ctx) }()
	w.stop = sync.OnceFunc(func() { cancel(); <-done })
	w.t.Cleanup(w.stop)
	return w
}

// wrote returns how many requests that may change something there were.
func (w *world) wrote() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.writes)
}

// sent returns how many requests of a method there were.
func (w *world) sent(method string) (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, one := range w.writes {
		if strings.HasPrefix(one, method) {
			n++
		}
	}
	return n
}

func entry(t *testing.T, source, namespace, name, host string, labels map[string]string) *mirror.Resource {
	t.Helper()
	body := &anypb.Any{}
	if err := anypb.MarshalFrom(body, &networking.ServiceEntry{Hosts: []string{host}, Resolution: networking.ServiceEntry_DNS}, proto.MarshalOptions{}); err != nil {
		t.Fatal(err)
	}
	r, err := mirror.New(mirror.Spec{Key: mirror.Key{Kind: federation.ServiceEntry, Namespace: namespace, Name: name}, Source: source, Cluster: source, Labels: labels, Body: body})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func key(name string) mirror.Key {
	return mirror.Key{Kind: federation.ServiceEntry, Namespace: "shop", Name: name}
}

// put has an upstream have an entry of the namespace shop.
func (w *world) put(source, name, host string) {
	w.t.Helper()
	w.stores[source].Put(entry(w.t, source, "shop", name, host, nil))
}

func (w *world) many(n int) {
	w.t.Helper()
	for i := range n {
		w.put("east", fmt.Sprintf("n%02d", i), "a.x")
	}
}

func (w *world) remove(source, name string) { w.stores[source].Remove(key(name)) }

// order gives an order.
func (w *world) order(verb, hold string) (int, error) {
	return w.set.Order(w.t.Context(), "dr", Order{Verb: verb, Hold: hold, By: "me", Reason: "test"})
}

// object returns an object of the cluster as it is now, nil for none.
func (w *world) object(name string) (o map[string]any) {
	w.Lock()
	defer w.Unlock()
	text, _ := json.Marshal(w.Objects[entries]["shop/"+name])
	_ = json.Unmarshal(text, &o)
	return o
}

func at(o map[string]any, path ...string) any {
	var v any = o
	for _, p := range path {
		m, _ := v.(map[string]any)
		v = m[p]
	}
	return v
}

func host(o map[string]any) string { return strings.Trim(fmt.Sprint(at(o, "spec", "hosts")), "[]") }

// objects returns how many objects the cluster has.
func (w *world) objects() int {
	w.Lock()
	defer w.Unlock()
	return len(w.Objects[entries])
}

func (w *world) status() Status {
	all := w.set.Status("dr")
	if len(all) == 0 {
		return Status{}
	}
	return all[0]
}

// settled waits until the sink has nothing to do, and everything was read.
func (w *world) settled() {
	w.t.Helper()
	began := time.Now()
	w.until("nothing is to be done", func() bool {
		s := w.status()
		return len(s.Todo)+len(s.TroublesByState) == 0 && s.State == "writing" && s.Complete.After(began)
	})
}

// until waits until it is so. A failure shows the status, the log and what was written.
func (w *world) until(what string, is func() bool) {
	w.t.Helper()
	await.Until(w.t, what, is, func() any {
		text, _ := json.MarshalIndent(w.status(), "", " ")
		w.mu.Lock()
		defer w.mu.Unlock()
		return string(text) + "\n" + w.log.String() + strings.Join(w.writes, "\n")
	})
}

// edit changes an object as another manager, by a server-side apply or a PUT.
func (w *world) edit(method, manager, name string, change func(o map[string]any)) {
	w.t.Helper()
	o := w.object(name)
	change(o)
	text, _ := json.Marshal(o)
	r, _ := http.NewRequestWithContext(w.t.Context(), method, "/apis/networking.istio.io/v1/namespaces/shop/serviceentries/"+name+"?force=true&fieldManager="+manager, bytes.NewReader(text))
	r.Header.Set("Content-Type", "application/json")
	if method == http.MethodPatch {
		r.Header.Set("Content-Type", "application/apply-patch+yaml")
	}
	rec := &discard{}
	w.ServeHTTP(rec, r)
	if rec.code >= 300 {
		w.t.Fatalf("%d %s", rec.code, rec.body.String())
	}
}

type discard struct {
	code int
	body bytes.Buffer
}

func (d *discard) Header() http.Header { return http.Header{} }
func (d *discard) WriteHeader(c int)   { d.code = c }
func (d *discard) Write(p []byte) (int, error) {
	return io.Writer(&d.body).Write(p)
}
