// Package sink writes what a view shows into clusters, by server-side apply with a field manager and a label of its
// own.
//
// It owns the desired objects, the requests, their pace, and what is told of both; package plan decides. The package
// must not know upstreams, clients or the command line.
package sink

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/util/workqueue"

	"meshrelay/config"
	"meshrelay/events"
	"meshrelay/internal/buildinfo"
	"meshrelay/internal/loglimit"
	"meshrelay/internal/panics"
	"meshrelay/mirror"
	"meshrelay/sink/lease"
	"meshrelay/sink/plan"
	"meshrelay/upstreams/kubernetes/apiserver"
	"meshrelay/upstreams/kubernetes/discovery"
	"meshrelay/upstreams/kubernetes/object"
)

const (
	workers = 4
	// maxListed bounds each list of a Status.
	maxListed = 100
	judgeEach = time.Second
	// unwrittenAfter is how long nobody may write what is to be written, before it is a problem.
	unwrittenAfter = time.Minute
	// quiet is how long no deletion may come before the guard judges those that came, in one or in many parts; patience
	// bounds the wait.
	quiet, patience = 2 * time.Second, 15 * time.Second
)

// Resources are the merged resources of all upstreams.
type Resources interface {
	Select(key mirror.Key, cluster string, accept func(*mirror.Resource) bool) *mirror.Resource
	Keys(kind mirror.Kind) []mirror.Key
	SourceKinds() []mirror.Kind
	// CaughtUp waits until the resources have all that the upstreams have told.
	CaughtUp(ctx context.Context) error
}

// Writer is the right to write. A lease.Lease is one.
type Writer interface {
	Run(ctx context.Context) error
	Writable(now time.Time) bool
	Status() lease.Status
}

// Deps are what sinks need of the relay. All are required.
type Deps struct {
	Resources Resources
	// Released is closed when the relay serves clients: then it has what upstreams had before a restart.
	Released <-chan struct{}
	// Blocked returns a function for the present state of the upstreams: why one may still have a resource that is not
	// served, empty if it has not.
	Blocked func() func(upstream string, key mirror.Key) string
	// Clusters returns the UID of the cluster of each upstream, empty while it is not known.
	Clusters func() map[string]string
	// Record records an event in the journal.
	Record func(events.Event)
	// Relay is the name of the relay in the provenance. Identity is the holder in Leases.
	Relay, Identity string
	Dir             string // of the state, empty for none
	Build           buildinfo.Info
	Logger          *slog.Logger
	// Lease makes the right to write.
	Lease func(lease.Options) Writer

	dial func(ctx context.Context, network, address string) (net.Conn, error) // nil, but for tests without a network
}

// Spec is a sink of the config. Sinks of equal Specs, without Accepts, do the same.
type Spec struct {
	config.Sink
	Show config.View // the view
	// Accepts reports whether the view shows a copy of a resource.
	Accepts func(*mirror.Resource) bool
	// Same are upstreams that are visibly the cluster of the sink: it writes only if their UIDs differ.
	Same []string
}

// engine is a running sink.
type engine struct {
	spec     Spec
	deps     *Deps
	log      *slog.Logger
	warnings *loglimit.Limit
	client   *apiserver.Client
	cluster  *apiserver.Cluster
	lease    Writer
	limiter  *rate.Limiter
	queue    workqueue.TypedDelayingInterface[mirror.Key]
	lists    *object.Budget
	tracker  *discovery.Tracker // only discover uses it
	ended    chan struct{}
	cancel   context.CancelFunc

	followers sync.WaitGroup
	failure   atomic.Pointer[panics.Panic]

	marks struct {
		sync.Mutex // guards all below
		keys       sets.Set[mirror.Key]
		all        bool // everything is to be read, keys has nothing
		wake       chan struct{}
	}
	reading sync.Mutex // held while marks are read
	saving  sync.Mutex // held while the state is written; guards saved
	saved   *kept      // nil before the first time

	mu         sync.Mutex // guards all below
	core       *plan.Core
	kinds      map[mirror.Kind]*follower
	discovered bool
	read       bool      // everything was read once
	uid        string    // of the cluster, empty while unknown
	bound      string    // UID of the cluster that it has written into, empty for none
	other      error     // the server is that of another cluster
	same       string    // why the sink must not write into it
	calm       bool      // nothing was to be done, and no object was touched since
	idle       time.Time // when this process or another one last could write, or nothing was to be written
	done       uint64    // requests that the cluster has answered
	seenDone   uint64    // done at idle
	excluded   map[mirror.Key]string
	doubted    map[mirror.Key]struct{}
	flying     map[mirror.Key]*flight
	troubles   map[mirror.Key]*Trouble
	drifts     map[mirror.Key]*Drift
	errs       map[string]error
	terms      lease.Terms // of the Lease, as last seen
	pending    lease.Note  // freeze that the Lease does not have yet
	paused     time.Time   // until then no request is sent: Retry-After
	firstGone  time.Time   // of the departures that were not judged yet
	lastGone   time.Time
	complete   time.Time
	heldID     string
	drift      uint64
}

// flight is a request for an object. next is what the cluster has told of the object in the meantime.
type flight struct {
	next *plan.Live
	gone bool
}

func newEngine(spec Spec, deps *Deps, k kept) *engine {
	if spec.ClusterUID != "" && k.Cluster != "" && spec.ClusterUID != k.Cluster {
		k = kept{} // it is about another cluster
	}
	e := &engine{
		spec: spec, deps: deps, log: deps.Logger.With("sink", spec.Name), warnings: loglimit.New(10, time.Second), queue: workqueue.NewTypedDelayingQueue[mirror.Key](),
		limiter: rate.NewLimiter(rate.Limit(spec.WritesPerSecond), max(1, min(workers, spec.WritesPerSecond))),
		lists:   object.NewBudget(maxObjects), tracker: discovery.NewTracker(rediscover), ended: make(chan struct{}),
		kinds: map[mirror.Kind]*follower{}, excluded: map[mirror.Key]string{}, doubted: map[mirror.Key]struct{}{},
		flying: map[mirror.Key]*flight{}, troubles: map[mirror.Key]*Trouble{}, drifts: map[mirror.Key]*Drift{}, terms: k.Lease, pending: k.Pending, bound: k.Cluster,
		errs: map[string]error{}, idle: time.Now(), same: "the cluster is not compared with those of the upstreams yet",
	}
	e.client = apiserver.NewClient(&apiserver.Credentials{Cluster: spec.Cluster}, "meshrelay/"+deps.Build.Version)
	e.client.Dial = deps.dial
	e.cluster = apiserver.NewCluster(e.client, cmp.Or(spec.ClusterUID, k.Cluster), apiserver.Hooks{Identified: e.identified, Judged: e.judged})
	e.core = plan.New(plan.Settings{
		Name: spec.Name, Prune: spec.Prune, Adopt: spec.Adopt, Take: spec.Conflicts == config.ConflictsTake,
		Percent: spec.Guard.Percent, Count: spec.Guard.Count, Frozen: e.frozen() != (lease.Note{}), HoldAll: k.Lease.Hold,
	}, k.Kept, time.Now())
	e.marks.keys, e.marks.all, e.marks.wake = sets.Set[mirror.Key]{}, true, make(chan struct{}, 1)
	e.lease = deps.Lease(lease.Options{
		Conn: e.client.Current, Namespace: spec.Namespace, Name: managerOf(spec.Name), Identity: deps.Identity, Relay: deps.Relay, Check: e.check, Logger: e.log,
		Terms: e.knownTerms, Keep: e.keepTerms, Begin: e.begin,
	})
	return e
}

func (e *engine) identified(uid string) {
	e.mu.Lock()
	e.uid = uid
	e.mu.Unlock()
	e.compare()
}

// judged notes whether the server is that of the cluster. In another one nothing of the sink was written.
func (e *engine) judged(uid string, err error) {
	e.mu.Lock()
	known := e.uid
	if e.other = err; err != nil {
		e.complete = time.Time{}
	}
	e.mu.Unlock()
	if known == "" && uid != "" {
		e.identified(uid)
	}
}

// check returns an error while the sink must not write: its cluster can not be told from others.
func (e *engine) check(ctx context.Context) error {
	if _, err := e.cluster.Verify(ctx); err != nil {
		return e.client.Explain(err)
	}
	return nil
}

// begin reports whether the sink may make its Lease. If what it has written is there, nobody knows whether it was promoted.
func (e *engine) begin() (bool, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if _, listed := e.kindProblems(); !listed {
		return false, nil
	}
	if _, owned := e.core.Counts(); owned > 0 {
		return false, fmt.Errorf("the cluster has %d objects of sink %s, and not its Lease %s/%s: it was deleted, or the cluster was restored, and nobody knows whether the sink was promoted. If the site is the primary now, run relay sink promote %[2]s; if not, run relay sink adopt %[2]s",
			owned, e.spec.Name, e.spec.Namespace, managerOf(e.spec.Name))
	}
	return true, nil
}

func (e *engine) knownTerms() lease.Terms {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.terms
}

// keepTerms follows the terms of the Lease, and has them outlive a restart.
func (e *engine) keepTerms(former, t lease.Terms) error {
	e.mu.Lock()
	changed := e.terms != former
	if !changed {
		e.setTerms(t, e.pending)
	}
	e.mu.Unlock()
	if changed {
		return lease.ErrChanged
	}
	return e.save()
}

// setTerms sets what freezes the sink and holds its deletions. The caller holds mu.
func (e *engine) setTerms(t lease.Terms, pending lease.Note) {
	if pending == t.Frozen {
		pending = lease.Note{}
	}
	if t.Number != e.terms.Number {
		e.core.Unrelease() // a person has looked at what was there before the promotion
	}
	e.terms, e.pending = t, pending
	e.core.Set(e.frozen() != (lease.Note{}), t.Hold)
	e.core.Keys(e.touch)
}

// frozen returns who has frozen the sink, the zero value for nobody. A dry run writes nothing anyway. The caller holds mu.
func (e *engine) frozen() lease.Note {
	if !e.applies() {
		return lease.Note{}
	}
	return cmp.Or(e.terms.Frozen, e.pending)
}

// promoted returns who has promoted the sink, the zero value for nobody. A dry run does not know. The caller holds mu.
func (e *engine) promoted() lease.Note {
	if !e.applies() {
		return lease.Note{}
	}
	return e.terms.Promoted
}

// applies reports whether the mode lets the sink write.
func (e *engine) applies() bool { return e.spec.Mode == config.SinkApply }

// run runs the sink until ctx ends.
func (e *engine) run(ctx context.Context) {
	defer close(e.ended)
	defer e.client.Close()
	var wg sync.WaitGroup
	start := func(f func(context.Context)) {
		wg.Add(1)
		go func() {
			defer wg.Done()
			e.contain(func() { f(ctx) })
		}()
	}
	defer context.AfterFunc(ctx, e.queue.ShutDown)()
	start(e.connect)
	start(e.readMarks)
	start(e.judgeAlways)
	if e.applies() {
		start(func(ctx context.Context) {
			if err := e.lease.Run(ctx); err != nil && ctx.Err() == nil {
				e.log.Error("lease ended", "err", err)
			}
		})
	}
	for range workers {
		start(e.work)
	}
	wg.Wait()
	e.readAll() // nobody reads any more, and one mark stands for all
}

// contain calls f. A panic ends the sink, and no other part of the relay.
func (e *engine) contain(f func()) {
	if p := panics.Try(f); p != nil {
		if e.failure.CompareAndSwap(nil, p) {
			e.log.Error("sink failed", "err", p)
		}
		e.cancel()
	}
}

func (e *engine) trouble(what string, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	was := e.errs[what]
	if e.errs[what] = err; err != nil && (was == nil || was.Error() != err.Error()) {
		e.warnings.Warn(e.log, "sink has a problem", "err", err)
	}
}

// changed notes that the resources of a key may have changed. It does not wait.
func (e *engine) changed(key mirror.Key) {
	e.marks.Lock()
	if !e.marks.all {
		e.marks.keys.Insert(key)
	}
	e.marks.Unlock()
	e.wakeReader()
}

// readAll has all resources read again.
func (e *engine) readAll() {
	e.marks.Lock()
	e.marks.keys, e.marks.all = sets.Set[mirror.Key]{}, true
	e.marks.Unlock()
	e.wakeReader()
}

func (e *engine) wakeReader() { mirror.Signal(e.marks.wake) }

// readMarks brings what is desired up to date, until ctx ends.
func (e *engine) readMarks(ctx context.Context) {
	select {
	case <-ctx.Done():
		return
	case <-e.deps.Released:
	}
	for {
		e.readMarked()
		select {
		case <-ctx.Done():
			return
		case <-e.marks.wake:
		}
	}
}

// readMarked reads all that was marked before the call, unless the relay starts.
func (e *engine) readMarked() {
	e.reading.Lock()
	defer e.reading.Unlock()
	select {
	case <-e.deps.Released:
	default:
		return
	}
	e.marks.Lock()
	keys, all := e.marks.keys, e.marks.all
	e.marks.keys, e.marks.all = sets.Set[mirror.Key]{}, false
	e.marks.Unlock()
	if all {
		e.mu.Lock()
		e.core.Keys(func(key mirror.Key) { keys.Insert(key) }) // the resources may have lost some
		keys.Insert(slices.Collect(maps.Keys(e.excluded))...)
		e.mu.Unlock()
		for _, kind := range e.deps.Resources.SourceKinds() {
			keys.Insert(e.deps.Resources.Keys(kind)...)
		}
	}
	for key := range keys {
		e.readKey(key)
	}
	e.mu.Lock()
	e.read = true
	e.mu.Unlock()
}

// want returns what is to be written of a key in an API version, and the upstreams that have it: also where the merge
// policy serves none of their copies.
func (e *engine) want(key mirror.Key, version string) (w wanted) {
	w.Resource = e.deps.Resources.Select(key, "", func(r *mirror.Resource) bool {
		ok := e.spec.Accepts(r)
		if ok && r.Key() == key && !slices.Contains(w.sources, r.Source()) {
			w.sources = append(w.sources, r.Source())
		}
		return ok
	})
	slices.Sort(w.sources)
	if w.Resource == nil {
		return w
	}
	if w.excluded = excluded(w.Resource); w.excluded != "" {
		w.Resource = nil
		return w
	}
	w.sources = e.withSilent(key, w.sources)
	w.body, w.digest, w.err = e.bodyOf(w, version)
	return w
}

// withSilent returns the upstreams with those that the object in the cluster came from and that may still have it. A
// deletion of the object waits for them.
func (e *engine) withSilent(key mirror.Key, has []string) []string {
	e.mu.Lock()
	l := e.core.Live(key)
	e.mu.Unlock()
	if l == nil || l.Sources == "" {
		return has
	}
	var why func(string, mirror.Key) string
	for upstream := range strings.SplitSeq(l.Sources, ",") {
		if upstream == "" || slices.Contains(has, upstream) {
			continue
		}
		if why == nil {
			why = e.deps.Blocked()
		}
		if why(upstream, key) != "" {
			has = append(has, upstream)
		}
	}
	slices.Sort(has)
	return has
}

// readKey reads what is desired of a key.
func (e *engine) readKey(key mirror.Key) {
	version := ""
	e.mu.Lock()
	if f := e.kinds[key.Kind]; f != nil {
		version = f.Version
	}
	e.mu.Unlock()
	w := e.want(key, version) // the worker reports its error
	var d *plan.Digest
	if w.Resource != nil {
		d = &w.digest
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if delete(e.excluded, key); w.excluded != "" {
		e.excluded[key] = w.excluded
	}
	was := e.core.Wanted(key)
	if e.core.Want(key, d); was != nil && d == nil && e.core.Live(key) != nil {
		e.lastGone = time.Now()
		e.firstGone = cmp.Or(e.firstGone, e.lastGone)
	}
	e.touch(key)
}
