package upstreams

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"meshrelay/events"
	"meshrelay/internal/owner"
	"meshrelay/internal/text"
	"meshrelay/mirror"
	"meshrelay/orders"
	"meshrelay/upstreams/intake"
)

const (
	exchangeTimeout = 3 * time.Second // less than an operator's command waits for its answer, with followedTimeout
	startPatience   = 5 * time.Second // of the clients of a starting relay
	leastRest       = 50 * time.Millisecond
	unwatchedRest   = time.Second // between two reads of a ConfigMap that can not be watched, or read
	maxConflicts    = 20
	releaseWindow   = 10 * time.Minute // how long after a release a hold may begin that it is for
	maxReason       = 300              // bytes of why an order is not in force
	// OrdersFile is the file in state.dir with what is known of the orders.
	OrdersFile   = "orders.json"
	maxOrders    = 4 << 20 // bytes of it
	ordersFormat = 1
)

// Orders is where all replicas have what people have ordered.
type Orders interface {
	Read(ctx context.Context) (*orders.Object, error)
	Write(ctx context.Context, o *orders.Object) error
	Await(ctx context.Context, o *orders.Object, most time.Duration) error
	Close()
}

// replicas has the orders that all replicas of the relay follow.
type replicas struct {
	store Orders
	dir   string // empty: a restart forgets what is known
	log   *slog.Logger
	look  chan struct{} // an upstream may have to follow an order, or its hold has changed
	poke  chan struct{} // the report may have changed
	ready chan struct{} // closed when the orders were read once, and are in force

	exchanging, applying sync.Mutex // are held while the ConfigMap is read and written, and while orders are applied

	mu      sync.Mutex // guards all below
	roster  orders.Roster
	known   knownOrders
	unsaved error             // why known is not on disk
	lacks   map[string]string // why the order about an upstream is not in force here
	problem string            // why the ConfigMap can not be read or written, since a time; empty if it can
	since   time.Time
	given   string // the upstream about which an order is given here now
	giver   *events.Operator
}

// knownOrders is what a replica knows, also from before a restart.
type knownOrders struct {
	Version int `json:"version"`
	orders.State
	Written orders.State `json:"written"` // what the ConfigMap had when it was last read or written
	Began   bool         `json:"began"`   // it was read once
	// Until has the end of the time in which a hold may begin that a release is for, zero once it was carried out here.
	Until map[string]time.Time `json:"until,omitempty"`
}

// Follow makes the relay one of several replicas, with a name of its own. dir keeps what is known of the orders. It is called
// before Restore.
func (m *Manager) Follow(name, process string, store Orders, dir string) {
	m.replicas = &replicas{
		store: store, dir: dir, log: m.log, look: make(chan struct{}, 1), poke: make(chan struct{}, 1), ready: make(chan struct{}),
		roster: orders.Roster{Name: name, Process: process}, problem: "it was not read yet", since: time.Now(),
	}
	m.replicas.load()
	for _, u := range m.upstreams {
		m.joins(u)
	}
}

// joins has an upstream follow the orders.
func (m *Manager) joins(u *upstream) {
	if m.replicas != nil {
		u.concerned = func() { mirror.Signal(m.replicas.look) }
	}
}

func (r *replicas) load() {
	if r.dir == "" {
		return
	}
	var k knownOrders
	f, _, err := owner.Open(filepath.Join(r.dir, OrdersFile), os.O_RDONLY, 0)
	if err == nil {
		defer f.Close()
		if err = json.NewDecoder(io.LimitReader(f, maxOrders)).Decode(&k); err == nil && k.Version != ordersFormat {
			err = orders.ErrNewer
		}
	}
	if err == nil {
		r.known = k
	} else if !errors.Is(err, fs.ErrNotExist) {
		r.log.Warn("orders on disk not read", "err", err, "effect", "only those of the ConfigMap are known")
	}
}

// save writes what is known to disk. The caller holds mu.
func (r *replicas) save() {
	if r.known.Version = ordersFormat; r.dir != "" {
		r.unsaved = owner.Replace(filepath.Join(r.dir, OrdersFile), func(f *os.File) error { return json.NewEncoder(f).Encode(r.known) })
	}
}

// runOrders follows the orders until ctx ends.
func (m *Manager) runOrders(ctx context.Context) error {
	r := m.replicas
	defer r.store.Close()
	var wait sync.WaitGroup
	defer wait.Wait()
	wait.Go(func() {
		for ctx.Err() == nil {
			m.applyOrders(ctx)
			pause(ctx, leastRest, nil) // what comes together is looked at once
			pause(ctx, time.Minute, r.look)
		}
	})
	ready := sync.OnceFunc(func() { close(r.ready) })
	for ctx.Err() == nil {
		o, _, err := m.exchange(ctx, nil)
		if err == nil {
			ready()
			err = m.await(ctx, o)
		}
		if err != nil {
			pause(ctx, unwatchedRest, r.poke)
		}
		pause(ctx, leastRest, nil)
	}
	return nil
}

// await waits until the ConfigMap changes, or something is to be written.
func (m *Manager) await(ctx context.Context, o *orders.Object) (err error) {
	r, own := m.replicas, m.report()
	r.mu.Lock()
	due := time.Until(r.roster.Due(own))
	r.mu.Unlock()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- r.store.Await(ctx, o, max(due, leastRest)) }()
	select {
	case err = <-ended:
	case <-r.poke:
		cancel()
		_ = <-ended // it ended because it was told to
	}
	return err
}

// pause waits for a time, until ctx ends, or for a signal.
func pause(ctx context.Context, d time.Duration, signal <-chan struct{}) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	case <-signal:
	}
}

// exchange reads the ConfigMap, takes what it has, and writes what it lacks, and the own report if that is due. change gives
// an order, unless it is nil: it is taken once it is written. next is what was written, or would be.
func (m *Manager) exchange(ctx context.Context, change func(orders.State) orders.State) (o *orders.Object, next orders.State, err error) {
	r := m.replicas
	r.exchanging.Lock()
	defer r.exchanging.Unlock()
	bounded, cancel := context.WithTimeout(ctx, exchangeTimeout)
	defer cancel()
	for range maxConflicts {
		if o, next, err = m.attempt(bounded, change); !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) {
			break
		}
		pause(bounded, rand.N(2*leastRest), nil) // another replica was faster
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	before := r.problem
	switch {
	case ctx.Err() != nil:
	case err == nil:
		r.problem = ""
	case err.Error() != before:
		r.log.Warn("orders of the replicas not read or written", "err", err, "effect", "only freeze is taken")
		if r.problem = err.Error(); before == "" {
			r.since = time.Now()
		}
	}
	return o, next, err
}

func (m *Manager) attempt(ctx context.Context, change func(orders.State) orders.State) (o *orders.Object, next orders.State, err error) {
	r := m.replicas
	if o, err = r.store.Read(ctx); err != nil {
		return o, next, err
	}
	there, unreadable := o.Orders()
	if errors.Is(unreadable, orders.ErrNewer) {
		return o, next, unreadable
	}
	now := time.Now()
	m.take(ctx, there, there)
	own := m.report()
	r.mu.Lock()
	r.roster.Read(now, o.Data)
	due, wrote := !now.Before(r.roster.Due(own)), func(time.Time) {}
	if next = r.known.State; change != nil {
		next = change(next)
		r.roster.Forget(now, o.Data)
	}
	if due {
		wrote = r.roster.Write(o.Data, own)
	}
	r.mu.Unlock()
	if !due && unreadable == nil && next.Equal(there) {
		return o, next, nil
	}
	if err = o.Set(next); err == nil {
		err = r.store.Write(ctx, o)
	}
	if err == nil {
		r.mu.Lock()
		wrote(now)
		r.mu.Unlock()
		m.take(ctx, next, next)
	}
	return o, next, err
}

// take joins orders with what is known, and has them in force here. written is what the ConfigMap has.
func (m *Manager) take(ctx context.Context, s, written orders.State) {
	r := m.replicas
	r.mu.Lock()
	now, before, until := time.Now(), r.known, map[string]time.Time{}
	r.known.State = before.Join(s).Aged(now)
	for name, e := range r.known.Upstreams {
		for _, one := range e.Released {
			end, is := before.Until[name+one.ID()]
			if !is && before.Began {
				end = now.Add(releaseWindow)
			} else if !is { // what was released before this replica was there is no answer to what it sees later
				end = now
			}
			until[name+one.ID()] = end
		}
	}
	r.known.Until, r.known.Written, r.known.Began = until, written, true
	if r.unsaved != nil || !before.Began || !r.known.Equal(before.State) || !written.Equal(before.Written) {
		r.save()
	}
	r.mu.Unlock()
	m.applyOrders(ctx)
}

// awaitOrders waits until the orders are in force, so that no client is served what is frozen elsewhere.
func (m *Manager) awaitOrders(ctx context.Context) {
	if m.replicas != nil {
		pause(ctx, startPatience, m.replicas.ready)
	}
}

// Replicas returns all replicas, this one first. There are none for a relay that is alone.
func (m *Manager) Replicas() []orders.Replica {
	r := m.replicas
	if r == nil {
		return nil
	}
	own := m.report()
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.roster.Replicas(time.Now(), own)
}

// report returns what this replica tells the others.
func (m *Manager) report() orders.Report {
	var newest, older []orders.Hold
	for _, u := range m.all() {
		for i, id := range locked(u.upstream, (*intake.Intake).HoldIDs) {
			if hold := (orders.Hold{Upstream: u.cfg.Name, ID: id}); i == 0 {
				newest = append(newest, hold)
			} else {
				older = append(older, hold)
			}
		}
	}
	r := m.replicas
	r.mu.Lock()
	defer r.mu.Unlock()
	own := orders.Report{Follows: r.known.Counter(), Lacks: maps.Clone(r.lacks), Holds: append(newest, older...)}
	for name, why := range own.Lacks {
		own.Lacks[name] = text.Shorten(why, maxReason)
	}
	return own
}

// OrderProblems returns one line for each problem with the orders of the replicas.
func (m *Manager) OrderProblems() (lines []string) {
	r := m.replicas
	if r == nil {
		return nil
	}
	add := func(format string, args ...any) { lines = append(lines, "orders: "+fmt.Sprintf(format, args...)) }
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.problem != "" {
		add("the ConfigMap can not be used since %s: only freeze is taken, and written later: %s", r.since.UTC().Format(time.RFC3339), r.problem)
	}
	if r.roster.Twin(time.Now()) {
		add("another process uses the name %s: give each replica a node.id of its own", r.roster.Name)
	}
	if r.unsaved != nil {
		add("not on disk, and a restart may forget them: %v", r.unsaved)
	}
	for _, name := range slices.Sorted(maps.Keys(r.lacks)) {
		add("upstream %s: %s", name, r.lacks[name])
	}
	return lines
}
