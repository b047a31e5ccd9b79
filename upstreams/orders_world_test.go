package upstreams_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"meshrelay/config"
	"meshrelay/events"
	"meshrelay/internal/testing/await"
	"meshrelay/mirror"
	"meshrelay/orders"
	"meshrelay/state"
	"meshrelay/state/local"
	"meshrelay/upstreams"
	"meshrelay/upstreams/intake"
	"meshrelay/upstreams/intake/records"
)

// sharedMap is the ConfigMap of all replicas of a test.
type sharedMap struct {
	mu      sync.Mutex
	data    map[string]string // nil: there is none
	version int
	down    bool
	// readOnly has all writes fail. reads counts the answered reads.
	readOnly bool
	reads    int
	lose     int           // answers of the next writes that are lost
	changed  chan struct{} // closed by each change
}

var errMapDown = errors.New("connection refused")

// set changes it, and tells those who wait.
func (s *sharedMap) set(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.change(change)
}

// change is set for those who hold mu.
func (s *sharedMap) change(change func()) {
	change()
	s.version++
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *sharedMap) setDown(down bool) { s.set(func() { s.down = down }) }

// Read implements upstreams.Orders.
func (s *sharedMap) Read(context.Context) (*orders.Object, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.down {
		return nil, errMapDown
	}
	s.reads++
	o := &orders.Object{Data: map[string]string{}}
	maps.Copy(o.Data, s.data)
	o.Metadata.ResourceVersion = strconv.Itoa(s.version)
	return o, nil
}

// Write implements upstreams.Orders.
func (s *sharedMap) Write(_ context.Context, o *orders.Object) (err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.down || s.readOnly:
		return errMapDown
	case strconv.Itoa(s.version) != o.Metadata.ResourceVersion:
		return apierrors.NewConflict(schema.GroupResource{Resource: "configmaps"}, "orders", errors.New("it has changed"))
	}
	s.change(func() {
		s.data = maps.Clone(o.Data)
		if s.lose > 0 {
			s.lose--
			err = errMapDown
		}
	})
	o.Metadata.ResourceVersion = strconv.Itoa(s.version)
	return err
}

// text returns the orders as they are written there.
func (s *sharedMap) text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.data["orders"]
}

// counts returns how often it was read, and how often it has changed.
func (s *sharedMap) counts() (reads, changes int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reads, s.version
}

// Await implements upstreams.Orders.
func (s *sharedMap) Await(ctx context.Context, o *orders.Object) error {
	s.mu.Lock()
	changed, is := s.changed, strconv.Itoa(s.version) == o.Metadata.ResourceVersion
	s.mu.Unlock()
	if is {
		select {
		case <-ctx.Done():
		case <-changed:
		}
	}
	return nil
}

func (*sharedMap) Close() {}

// orders returns what it has.
func (s *sharedMap) orders() orders.Entry {
	s.mu.Lock()
	defer s.mu.Unlock()
	got, err := orders.Decode(s.data[orders.Key])
	if err != nil {
		return orders.Entry{}
	}
	return got.Upstreams["scripted-east"]
}

// link is the way of a replica to the ConfigMap.
type link struct {
	*sharedMap
	r *replicaRun
}

// Read implements upstreams.Orders.
func (l link) Read(ctx context.Context) (*orders.Object, error) {
	l.mu.Lock()
	cut := l.r.isCut
	l.mu.Unlock()
	if cut {
		return nil, errMapDown
	}
	return l.sharedMap.Read(ctx)
}

// Write implements upstreams.Orders.
func (l link) Write(ctx context.Context, o *orders.Object) error {
	l.mu.Lock()
	readOnly := l.r.readOnly
	l.mu.Unlock()
	if readOnly {
		return errMapDown
	}
	return l.sharedMap.Write(ctx, o)
}

// cut has a replica lose the ConfigMap, or find it again.
func (r *replicaRun) cut(cut bool) { r.w.store.set(func() { r.isCut = cut }) }

// world has the replicas of a test, all in one bubble.
type world struct {
	t        *testing.T
	store    *sharedMap
	guard    config.Guard
	replicas []*replicaRun
}

// replicaRun is a replica that runs, and its disk.
type replicaRun struct {
	upstreams.Plain
	w         *world
	name, dir string
	tell      chan intake.Event
	repeats   []string // what the source has, when it is asked to repeat
	m         *upstreams.Manager
	aggregate *mirror.Aggregate
	journal   *events.Journal
	isCut     bool          // from the ConfigMap
	readOnly  bool          // its way to the ConfigMap
	full      bool          // its disk
	slow      time.Duration // how long its disk takes to read a revision
	looks     int           // at revisions
	west      bool          // it has another upstream, for which clients wait
	stop      func()        // nil: it does not run
	released  chan error
}

// Run implements upstreams.Source.
func (r *replicaRun) Run(ctx context.Context, feed upstreams.Feed) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case e := <-r.tell:
			feed.Tell(e)
		}
	}
}

// disk is what a replica keeps.
type disk struct {
	upstreams.Keeper
	r *replicaRun
}

var errFull = errors.New("no space left on device")

// Flush implements upstreams.Keeper.
func (d disk) Flush(ctx context.Context) error {
	if d.r.full {
		return errFull
	}
	return d.Keeper.Flush(ctx)
}

// At implements upstreams.Keeper.
func (d disk) At(source string, revision uint64) ([]state.Record, error) {
	ctx, cancel := context.WithTimeout(context.Background(), d.r.slow)
	defer cancel()
	<-ctx.Done()
	d.r.looks++
	return d.Keeper.At(source, revision)
}

// silent is a source that tells nothing.
type silent struct{ upstreams.Plain }

func (silent) Run(ctx context.Context, _ upstreams.Feed) error { <-ctx.Done(); return nil }

// Repeat implements upstreams.Source.
func (r *replicaRun) Repeat() (repeats bool) {
	go func() {
		r.tell <- r.content(r.repeats)
		r.tell <- intake.Repeated{}
	}()
	return true
}

// inWorld runs a test with replicas named a, b, c... in a bubble.
func inWorld(t *testing.T, n int, f func(w *world)) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{t: t, store: &sharedMap{changed: make(chan struct{})}, guard: config.Guard{Percent: 30, Count: 3, HoldFor: config.OpenEnded(0)}}
		for i := range n {
			r := &replicaRun{w: w, name: string(rune('a' + i)), dir: t.TempDir(), tell: make(chan intake.Event)}
			w.replicas = append(w.replicas, r)
			r.start()
		}
		defer func() {
			for _, r := range w.replicas {
				r.end()
			}
		}()
		f(w)
	})
}

func (r *replicaRun) start() {
	t := r.w.t
	t.Helper()
	keeper, err := state.Open(local.New(r.dir, nil), state.Options{History: state.History{Revisions: 50, MaxBytes: 1 << 20}, FlushInterval: 3 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	r.journal = events.New()
	kind := upstreams.Kind{Config: &scriptedConfig{}, New: func(u config.Upstream, _ upstreams.Env) (upstreams.Source, error) {
		if u.ClusterID == "west" {
			return silent{}, nil
		}
		return r, nil
	}}
	_, node := xdsConfig()
	cfg := &config.Config{Node: node, Upstreams: []config.Upstream{
		{Name: "scripted-east", ClusterID: "east", Guard: r.w.guard, Source: &scriptedConfig{}},
	}}
	if r.west {
		cfg.Upstreams = append(cfg.Upstreams, config.Upstream{Name: "scripted-west", ClusterID: "west", Source: &scriptedConfig{}, FirstSync: config.FirstSyncWait})
	}
	cfg.Downstream.StartupTimeout = config.Duration(30 * time.Second)
	r.aggregate = mirror.NewAggregate()
	if r.m, err = upstreams.NewManager(cfg, []upstreams.Kind{kind}, r.aggregate, disk{keeper, r}, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	r.m.Record(r.journal)
	r.m.Follow(r.name, r.name+time.Now().String(), link{r.w.store, r}, r.dir)
	r.m.Restore(t.Context())
	var ends []func()
	r.released = make(chan error, 1)
	serve := func(ctx context.Context) error {
		r.released <- r.m.AwaitFirstSync(ctx, func() []string { return nil })
		return nil
	}
	for _, run := range []func(context.Context) error{r.aggregate.Run, r.m.Run, serve, r.journal.Run, keeper.Run} {
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() { ended <- run(ctx) }()
		ends = append(ends, func() {
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
	}
	r.stop = func() {
		for _, end := range slices.Backward(ends[:3]) {
			end()
		}
		for _, end := range ends[3:] {
			end()
		}
	}
}

func (r *replicaRun) end() {
	if r.stop != nil {
		r.stop()
		r.stop = nil
	}
}

// losesItsDisk has a replica start without what it has written.
func (r *replicaRun) losesItsDisk() {
	r.end()
	r.dir = r.w.t.TempDir()
	r.start()
}

// forgets has a replica restart without the orders that it knew, while the others can not write them.
func (r *replicaRun) forgets() {
	r.w.t.Helper()
	r.end()
	if err := os.Remove(filepath.Join(r.dir, upstreams.OrdersFile)); err != nil {
		r.w.t.Fatal(err)
	}
	r.w.store.set(func() { r.w.store.data = nil })
	r.start()
}

func (r *replicaRun) content(names []string) intake.Event {
	return intake.Received{Live: true, Updates: []records.Update{{Scope: records.KindScope(xdsEntryKind), Complete: true, Elements: records.Resources(entriesNamed(names)...)}}}
}

// has has the source of a replica tell that it has these.
func (r *replicaRun) has(names ...string) {
	r.repeats = names
	r.tell <- r.content(names)
	synctest.Wait()
}

// has has the sources of all replicas tell that they have these.
func (w *world) has(names ...string) {
	for _, r := range w.replicas {
		r.has(names...)
	}
}

// quiet waits until all replicas have read and done what there is, and have reported it.
func (w *world) quiet() { await.Settle(12 * time.Second) }

func numbered(from, to int) (out []string) {
	for i := from; i < to; i++ {
		out = append(out, fmt.Sprintf("n%02d", i))
	}
	return out
}

func (r *replicaRun) serves() int { return len(r.aggregate.List(xdsEntryKind, "")) }

func (r *replicaRun) status() upstreams.Status { return r.m.Status()[0] }

// wantServed fails unless the replicas serve so many.
func (w *world) wantServed(what string, want ...int) {
	w.t.Helper()
	for i, r := range w.replicas {
		if got := r.serves(); r.stop != nil && got != want[i] {
			w.t.Errorf("%s: replica %s serves %d, want %d: %+v, orders %+v", what, r.name, got, want[i], r.status().Status, w.store.orders())
		}
	}
}

// wantFrozen fails unless each replica that runs is frozen for a reason, or not frozen for an empty one.
func (w *world) wantFrozen(reason string) {
	w.t.Helper()
	for _, r := range w.replicas {
		if f := r.status().Frozen; r.stop != nil && ((f != nil) != (reason != "") || f != nil && f.Reason != reason) {
			w.t.Errorf("replica %s: %+v, want %q; orders %+v, %v", r.name, f, reason, w.store.orders(), r.m.OrderProblems())
		}
	}
}

func (r *replicaRun) order(verb string, o intake.Order) (intake.Effect, error) {
	defer synctest.Wait()
	return r.m.Order(context.Background(), "scripted-east", verb, o)
}

// must gives an order, which is in force on so many of so many replicas.
func (r *replicaRun) must(verb string, o intake.Order, did, of int) *intake.Reach {
	r.w.t.Helper()
	e, err := r.order(verb, o)
	if err != nil {
		r.w.t.Fatalf("%s at %s: %v", verb, r.name, err)
	}
	if e.Replicas == nil || e.Replicas.Did != did || e.Replicas.Of != of {
		r.w.t.Fatalf("%s at %s is in force on %+v, want %d of %d", verb, r.name, e.Replicas, did, of)
	}
	return e.Replicas
}

// wantRefused fails unless an order is refused, for this reason.
func (r *replicaRun) wantRefused(verb string, o intake.Order, because string) {
	r.w.t.Helper()
	if _, err := r.order(verb, o); !errors.Is(err, intake.ErrNotPossible) || !strings.Contains(err.Error(), because) {
		r.w.t.Errorf("%s at %s: %v, want %q", verb, r.name, err, because)
	}
}

func (r *replicaRun) held() (id string) {
	if h := r.status().Held; h != nil {
		return h.ID
	}
	return ""
}

// waits reports whether clients wait.
func (r *replicaRun) waits() bool { return len(r.released) == 0 }
