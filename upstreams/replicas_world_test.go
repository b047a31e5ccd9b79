package upstreams_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"meshrelay/config"
	"meshrelay/decisions"
	"meshrelay/events"
	"meshrelay/internal/testing/await"
	"meshrelay/mirror"
	"meshrelay/state"
	"meshrelay/state/local"
	"meshrelay/upstreams"
	"meshrelay/upstreams/intake"
)

// sharedStore is the store of decisions of all replicas of a test. It can be down, slow, and in conflict.
type sharedStore struct {
	mu        sync.Mutex
	log       decisions.Log
	down      bool
	conflicts int           // of the next appends
	lose      int           // answers of the next appends that are lost
	delay     time.Duration // of what watches tell
	appends   time.Duration // how long an append lasts
	meanwhile func()        // what happens during the next append
	changed   chan struct{} // closed by each change
}

var errStoreDown = errors.New("connection refused")

func newSharedStore() *sharedStore { return &sharedStore{changed: make(chan struct{})} }

// set changes the store, and tells the watches.
func (s *sharedStore) set(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *sharedStore) setDown(down bool) { s.set(func() { s.down = down }) }

func (s *sharedStore) read() (log decisions.Log, down bool, changed chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.log, s.down, s.changed
}

// pass lets time pass in a bubble, unless ctx ends before.
func pass(ctx context.Context, d time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	<-ctx.Done()
}

// Append implements upstreams.Decisions.
func (s *sharedStore) Append(ctx context.Context, r decisions.Record) (decisions.Log, error) {
	s.mu.Lock()
	meanwhile, lasts := s.meanwhile, s.appends
	s.meanwhile = nil
	s.mu.Unlock()
	if pass(ctx, lasts); ctx.Err() != nil {
		return decisions.Log{}, ctx.Err()
	}
	if meanwhile != nil {
		meanwhile()
	}
	for {
		log, down, _ := s.read()
		if down {
			pass(ctx, time.Second)
			return log, errStoreDown
		}
		next, err := log.Append(r)
		if err != nil {
			return log, err
		}
		written := false
		s.set(func() {
			switch {
			case s.conflicts > 0 || s.log.State().Sequence != log.State().Sequence:
				s.conflicts = max(0, s.conflicts-1)
			default:
				s.log = next
				if written = s.lose == 0; !written {
					s.lose--
				}
			}
		})
		if written {
			return next, nil
		}
		if pass(ctx, 10*time.Millisecond); ctx.Err() != nil {
			return log, ctx.Err()
		}
	}
}

// Watch implements upstreams.Decisions.
func (s *sharedStore) Watch(ctx context.Context, took func(decisions.Log, error)) {
	for ctx.Err() == nil {
		log, down, changed := s.read()
		s.mu.Lock()
		delay := s.delay
		s.mu.Unlock()
		await.Pass(delay)
		if down {
			took(decisions.Log{}, errStoreDown)
		} else {
			took(log, nil)
		}
		select {
		case <-ctx.Done():
		case <-changed:
		}
	}
}

// world has the replicas of a test, all in one bubble.
type world struct {
	t        *testing.T
	store    *sharedStore
	guard    config.Guard
	replicas []*replicaRun
	noPeers  bool
	asks     time.Duration // how long a question to peers lasts
}

// replicaRun is a replica that runs, and its disk.
type replicaRun struct {
	w         *world
	name, dir string
	tell      chan intake.Event
	repeats   []string // what the source has, when it is asked to repeat
	m         *upstreams.Manager
	aggregate *mirror.Aggregate
	journal   *events.Journal
	keeper    *state.Keeper
	stop      func() // nil: it does not run
	gone      bool   // a reload has removed the upstream
	cfg       *config.Config
	checks    time.Duration // how long a check of the config lasts

	mu    sync.Mutex // guards live and asked
	live  *upstreams.Manager
	asked []string // upstreams about which it has asked peers
}

// reached returns the manager of a replica that runs, else nil.
func (r *replicaRun) reached() *upstreams.Manager {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.live
}

func (r *replicaRun) setReached(m *upstreams.Manager) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.live = m
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

// Repeat implements upstreams.Repeater.
func (r *replicaRun) Repeat(bool) {
	go func() {
		r.tell <- r.content(r.repeats)
		r.tell <- intake.Repeated{}
	}()
}

// inWorld runs a test with replicas named a, b, c... in a bubble.
func inWorld(t *testing.T, n int, f func(w *world)) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{t: t, store: newSharedStore(), guard: config.Guard{Percent: 30, Count: 3, HoldFor: config.OpenEnded(10 * time.Minute)}}
		w.add(n)
		defer func() {
			for _, r := range w.replicas {
				r.end()
			}
		}()
		f(w)
	})
}

func (w *world) add(n int) {
	for i := range n {
		r := &replicaRun{w: w, name: string(rune('a' + i)), dir: w.t.TempDir(), tell: make(chan intake.Event)}
		w.replicas = append(w.replicas, r)
		r.start()
	}
}

func (r *replicaRun) start() {
	t := r.w.t
	t.Helper()
	var err error
	if r.keeper, err = state.Open(local.New(r.dir, nil), state.Options{History: state.History{Revisions: 50, MaxBytes: 1 << 20, MaxAge: time.Hour * 1000}, FlushInterval: 3 * time.Second}); err != nil {
		t.Fatal(err)
	}
	r.journal = events.New(events.Limits{})
	kind := upstreams.Kind{Config: &scriptedConfig{}, New: func(config.Upstream, upstreams.Env) (upstreams.Source, error) { return r, nil }, Check: func(config.Upstream) error {
		await.Pass(r.checks)
		return nil
	}}
	_, node := xdsConfig()
	cfg := &config.Config{Node: node, Upstreams: []config.Upstream{
		{Name: "scripted-east", ClusterID: "east", Guard: r.w.guard, Source: &scriptedConfig{}},
	}}
	cfg.Downstream.StartupTimeout = config.Duration(30 * time.Second)
	r.cfg = cfg
	r.aggregate = mirror.NewAggregate()
	if r.m, err = upstreams.NewManager(cfg, []upstreams.Kind{kind}, r.aggregate, r.keeper, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	r.m.Record(r.journal)
	replicas := upstreams.Replicas{Name: r.name, Store: r.w.store, Peers: peersOf{r}, Dir: r.dir}
	if r.w.noPeers {
		replicas.Peers = nil
	}
	r.m.Agree(replicas)
	r.m.Restore(t.Context())
	var ends []func()
	for _, run := range []func(context.Context) error{r.aggregate.Run, r.m.Run, r.journal.Run, r.keeper.Run} {
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
	r.gone = false
	r.setReached(r.m)
	r.stop = func() {
		r.setReached(nil)
		for _, end := range slices.Backward(ends[:2]) {
			end()
		}
		for _, end := range ends[2:] {
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

// reload removes the upstream from the config, or adds it again.
func (r *replicaRun) reload(there bool) {
	r.w.t.Helper()
	next := *r.cfg
	if r.gone = !there; r.gone {
		next.Upstreams = nil
	}
	if err := r.m.Apply(&next); err != nil {
		r.w.t.Fatal(err)
	}
	synctest.Wait()
}

func (r *replicaRun) content(names []string) intake.Event {
	return intake.Received{Live: true, Updates: []intake.Update{{Scope: intake.KindScope(xdsEntryKind), Complete: true, Elements: intake.Resources(entriesNamed(names)...)}}}
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

func (w *world) after(d time.Duration) {
	await.Settle(d)
}

// quiet waits until all replicas have read and done what there is.
func (w *world) quiet() { w.after(4 * time.Second) }

func numbered(from, to int) (out []string) {
	for i := from; i < to; i++ {
		out = append(out, fmt.Sprintf("n%02d", i))
	}
	return out
}

// serves returns the names that a replica serves.
func (r *replicaRun) serves() (out []string) {
	for _, one := range r.aggregate.List(xdsEntryKind, "") {
		out = append(out, one.Key().Name)
	}
	slices.Sort(out)
	return out
}

func (r *replicaRun) status() upstreams.Status { return r.m.Status()[0] }

// restartsWithAHoldAndNoStore has the guard of a hold 40 deletions, b join with two that no guard would hold, and b start again
// while the store is down.
func (w *world) restartsWithAHoldAndNoStore(a, b *replicaRun) {
	w.t.Helper()
	w.has(numbered(0, 40)...)
	w.after(2 * time.Minute)
	a.has()
	w.quiet()
	b.has(numbered(2, 40)...)
	w.quiet()
	w.store.setDown(true)
	w.after(time.Minute)
	b.end()
	b.start()
}

// wantSame fails unless all replicas serve the same contents.
func (w *world) wantSame(what string) {
	w.t.Helper()
	content := func(r *replicaRun) string { return intake.ContentOf(r.aggregate.List(xdsEntryKind, "")) }
	for _, r := range w.replicas[1:] {
		if content(r) != content(w.replicas[0]) {
			w.t.Errorf("%s: replicas %s and %s serve different contents", what, r.name, w.replicas[0].name)
		}
	}
}

// wantOneContent fails if one replica serves the content of a freeze or rollback, and another one does not.
func (w *world) wantOneContent(frozen *decisions.Record) {
	w.t.Helper()
	has := func(r *replicaRun) bool {
		return intake.ContentOf(r.aggregate.List(xdsEntryKind, "")) == frozen.Content
	}
	if frozen != nil && frozen.Number > 0 && slices.ContainsFunc(w.replicas, has) {
		w.want("serves the content of the decision", has)
	}
}

// wantServed fails unless all replicas serve these.
func (w *world) wantServed(what string, want []string) {
	w.t.Helper()
	for _, r := range w.replicas {
		if got := r.serves(); r.stop != nil && !slices.Equal(got, want) {
			w.t.Errorf("%s: replica %s serves %d: %v, want %d; status %+v, log %v", what, r.name, len(got), got, len(want), r.status().Status, w.kinds())
		}
	}
}

func (w *world) want(what string, ok func(r *replicaRun) bool) {
	w.t.Helper()
	for _, r := range w.replicas {
		if r.stop != nil && !ok(r) {
			w.t.Errorf("replica %s: not so: %s: %+v, %+v, log %v", r.name, what, r.status().Status, r.m.Replicas(), w.kinds())
		}
	}
}

// kinds returns the records of the log, as "kind/replica".
func (w *world) kinds() (out []string) {
	log, _, _ := w.store.read()
	for _, r := range log.Records() {
		out = append(out, string(r.Kind)+"/"+r.Replica)
	}
	return out
}

func (w *world) wantLog(want ...string) {
	w.t.Helper()
	if got := w.kinds(); !slices.Equal(got, want) {
		w.t.Errorf("the log is %v, want %v", got, want)
	}
}

func (r *replicaRun) order(verb string, o intake.Order) (intake.Effect, error) {
	o.Operator = &events.Operator{UID: 7, User: "ann"}
	defer synctest.Wait()
	return r.m.Order(context.Background(), "scripted-east", verb, o)
}

func (r *replicaRun) mustOrder(verb string, o intake.Order) intake.Effect {
	r.w.t.Helper()
	e, err := r.order(verb, o)
	if err != nil {
		r.w.t.Fatalf("%s at %s: %v", verb, r.name, err)
	}
	return e
}

// wantRefused fails unless an order is refused, for this reason.
func (r *replicaRun) wantRefused(verb string, o intake.Order, because string) {
	r.w.t.Helper()
	if _, err := r.order(verb, o); !errors.Is(err, intake.ErrNotPossible) || !strings.Contains(err.Error(), because) {
		r.w.t.Errorf("%s at %s: %v, want %q", verb, r.name, err, because)
	}
}

func (r *replicaRun) holds() int {
	if h := r.status().Held; h != nil {
		return h.Removals
	}
	return 0
}

// peersOf are the other replicas of one.
type peersOf struct{ r *replicaRun }

// Applied implements upstreams.Peers.
func (p peersOf) Applied(ctx context.Context, upstream string, sequence uint64) (did, of int, unreachable []string) {
	for ctx.Err() == nil {
		did, of, unreachable = 0, 0, nil
		for _, other := range p.r.w.replicas {
			m := other.reached()
			switch {
			case other == p.r:
				continue
			case m == nil:
				unreachable = append(unreachable, other.name)
			case m.Replicas().Sequence >= sequence && m.Replicas().Missing[upstream] == "":
				did++
			}
			of++
		}
		if did+len(unreachable) == of {
			return did, of, unreachable
		}
		pass(ctx, 20*time.Millisecond)
	}
	return did, of, unreachable
}

// others calls f with the other replicas that have applied a sequence number, and that run.
func (p peersOf) others(sequence uint64, f func(name string, m *upstreams.Manager)) {
	for _, other := range p.r.w.replicas {
		if m := other.reached(); other != p.r && m != nil && m.Replicas().Sequence >= sequence {
			f(other.name, m)
		}
	}
}

// Held implements upstreams.Peers.
func (p peersOf) Held(_ context.Context, hold *decisions.Record, sequence uint64) (out []*mirror.Resource, begun int) {
	await.Pass(p.r.w.asks)
	p.r.mu.Lock()
	p.r.asked = append(p.r.asked, hold.Upstream)
	p.r.mu.Unlock()
	p.others(sequence, func(name string, m *upstreams.Manager) {
		all, _ := m.HeldContent(hold.Upstream) // none of an upstream that is not there
		if name == hold.Replica {
			out, begun = append(all, out...), len(all)
		} else {
			out = append(out, all...)
		}
	})
	return out, begun
}

// Content implements upstreams.Peers.
func (p peersOf) Content(_ context.Context, want *decisions.Record) (found []state.Record) {
	p.others(want.Sequence, func(_ string, m *upstreams.Manager) {
		if saved, err := m.Saved(want.Upstream); err == nil && upstreams.ContentOf(saved.Records) == want.Content {
			found = saved.Records
		}
	})
	return found
}

// stillFresh is the staleness of an upstream that never becomes stale.
var stillFresh = config.Staleness{}

// recordOf returns a record of another replica about the upstream.
func recordOf(kind decisions.Kind, ends, replica string) decisions.Record {
	return decisions.Record{ID: string(kind) + "-" + replica, Kind: kind, Upstream: "scripted-east", Replica: replica, Ends: ends}
}

// textOf returns the events in the journal of a replica.
func textOf(r *replicaRun) string {
	var out strings.Builder
	for _, e := range r.journal.Read(events.Query{}).Events {
		out.WriteString(e.Text + " " + e.Reason + "\n")
	}
	return out.String()
}
