package upstreams

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"meshrelay/internal/owner"
	"meshrelay/orders"
	"meshrelay/state"
	"meshrelay/upstreams/intake"
)

const (
	exchangeTimeout = 3 * time.Second // less than an operator's command waits for its answer, with followedTimeout
	startPatience   = 5 * time.Second // of the clients of a starting relay
	leastRest       = 50 * time.Millisecond
	unwatchedRest   = time.Second // between two reads of a ConfigMap that can not be watched, or read
	maxConflicts    = 20
	releaseWindow   = 10 * time.Minute // how long after a release a hold may begin that it is for
	maxHolds        = 16               // of a report
	maxReason       = 300              // bytes of why an order is not in force
	maxReasons      = 16 << 10         // of all of a report
	// OrdersFile is the file in state.dir with what is known of the orders.
	OrdersFile = "orders.json"
	maxOrders  = 4 << 20 // bytes of it
)

// Orders is where all replicas have what people have ordered.
type Orders interface {
	Read(ctx context.Context) (*orders.Object, error)
	Write(ctx context.Context, o *orders.Object) error
	Await(ctx context.Context, o *orders.Object) error
	Close()
}

// replicas has the orders that all replicas of the relay follow.
type replicas struct {
	store Orders
	path  string        // of the file with what is known; empty: a restart forgets it
	ready chan struct{} // closed when the orders were read once, and are in force
	turn  chan struct{} // has an element while the ConfigMap is read and written, or orders are applied; guards all below

	object  *orders.Object // the ConfigMap, as last read or written; nil until its orders are in force here
	roster  orders.Roster
	known   knownOrders
	saved   []byte            // what the disk was given of it
	unsaved error             // why it is not on disk
	lacks   map[string]string // why the order about an upstream is not in force here; it is replaced, never changed
	problem string            // why the ConfigMap can not be read or written; empty if it can
	used    time.Time         // when it last could
}

// shownOrders is what is told of the orders. It is immutable.
type shownOrders struct {
	replicas  []orders.Replica
	problems  []string
	reachable bool
	due       time.Time // when the report is to be written, if nothing changes
}

// knownOrders is what a replica knows, also from before a restart.
type knownOrders struct {
	orders.State
	Read time.Time `json:"read"` // when the ConfigMap was last read, or up to a minute before
	// Tried has the freezes that were given here and may be written, by upstream, while nobody knows whether they are.
	Tried map[string]orders.Entry `json:"tried,omitempty"`
	// Until has the end of the time in which a hold may begin that a release is for, zero once it was carried out here.
	Until map[string]time.Time `json:"until,omitempty"`
}

// Follow makes the relay one of several replicas, with a name of its own. dir keeps what is known of the orders. It is called
// before Restore.
func (m *Manager) Follow(name, process string, store Orders, dir string) {
	r := &replicas{
		store: store, ready: make(chan struct{}), turn: make(chan struct{}, 1),
		known:  knownOrders{Tried: map[string]orders.Entry{}},
		roster: orders.Roster{Name: name, Process: process}, problem: "it was not read yet", used: time.Now(),
	}
	if dir != "" {
		r.path = filepath.Join(dir, OrdersFile)
		known := r.known
		err := owner.ReadJSON(r.path, maxOrders, &known)
		if known.Version > orders.Version {
			r.path, r.unsaved, err = "", orders.ErrNewer, orders.ErrNewer // the file stays
		}
		if err == nil {
			r.known = known
		} else if !errors.Is(err, fs.ErrNotExist) {
			m.log.Warn("orders on disk not read", "err", err, "effect", "only those of the ConfigMap are known")
		}
	}
	m.replicas = r
	m.inTurn(func() {})
}

// inTurn calls f while nobody else uses the orders, and shows what has changed.
func (m *Manager) inTurn(f func()) {
	r := m.replicas
	r.turn <- struct{}{}
	defer func() {
		now, own := time.Now(), m.report()
		m.shown.Store(&shownOrders{r.roster.Replicas(now, own), r.problems(now), r.problem == "", r.roster.Due(own)})
		<-r.turn
	}()
	f()
}

// save writes what is known to disk, if that has something else.
func (r *replicas) save() {
	text, _ := json.Marshal(r.known) // it can not fail
	if r.path != "" && r.known.Version > 0 && (r.unsaved != nil || !bytes.Equal(text, r.saved)) {
		r.saved, r.unsaved = text, owner.ReplaceJSON(r.path, r.known)
	}
}

// runOrders follows the orders until ctx ends.
func (m *Manager) runOrders(ctx context.Context) error {
	r := m.replicas
	defer r.store.Close()
	ready := sync.OnceFunc(func() { close(r.ready) })
	for ctx.Err() == nil {
		var o *orders.Object
		var err error
		m.inTurn(func() {
			m.applyOrders(ctx) // those of the disk, also without the ConfigMap
			err = m.exchange(ctx, nil)
			o = r.object
		})
		if err == nil {
			ready()
			err = m.await(ctx, o)
		}
		if err != nil {
			pause(ctx, unwatchedRest, nil)
		}
		pause(ctx, leastRest, nil)
	}
	return nil
}

// await waits until the ConfigMap changes, or the report is due. It applies orders to what changes meanwhile.
func (m *Manager) await(ctx context.Context, o *orders.Object) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- m.replicas.store.Await(ctx, o) }()
	for {
		select {
		case err := <-ended:
			return err
		case <-time.After(time.Until(m.shown.Load().due)):
			cancel()
			return <-ended
		case <-m.look:
			m.inTurn(func() { m.applyOrders(ctx) })
			pause(ctx, leastRest, nil) // what comes together is looked at once
		}
	}
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
// an order, unless it is nil: it is taken once it is written. It is called in turn.
func (m *Manager) exchange(ctx context.Context, change func(orders.State) orders.State) (err error) {
	r := m.replicas
	bounded, cancel := context.WithTimeout(ctx, exchangeTimeout)
	defer cancel()
	for range maxConflicts {
		if err = m.attempt(bounded, change); !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) {
			break
		}
		pause(bounded, rand.N(2*leastRest), nil) // another replica was faster
	}
	switch {
	case ctx.Err() != nil:
	case err == nil:
		r.problem, r.used = "", time.Now()
	case err.Error() != r.problem:
		m.log.Warn("orders of the replicas not read or written", "err", err, "effect", "only freeze is taken")
		r.problem = err.Error()
	}
	return err
}

func (m *Manager) attempt(ctx context.Context, change func(orders.State) orders.State) error {
	r := m.replicas
	o, err := r.store.Read(ctx)
	if err != nil {
		return err
	}
	there, unreadable := orders.Decode(o.Data[orders.Key])
	if errors.Is(unreadable, orders.ErrNewer) {
		return unreadable
	}
	m.take(ctx, m.withoutEnded(there.Join(r.known.State)))
	r.object = o
	now, own := time.Now(), m.report()
	r.known.Read = now.Truncate(time.Minute)
	r.roster.Read(now, o.Data)
	due, next := !now.Before(r.roster.Due(own)), m.withGiven(r.known.State)
	if change != nil {
		next = change(next)
		r.roster.Forget(now, o.Data)
	}
	if due {
		r.roster.Write(o.Data, own)
	}
	if o.Data[orders.Key], err = next.Encode(); err != nil {
		return err
	}
	// What is only too old is not written: replicas whose clocks differ would do that in turn.
	if was, _ := there.Aged(now).Encode(); !due && unreadable == nil && was == o.Data[orders.Key] {
		return nil
	}
	r.save() // first what is tried: its answer may be lost
	if err = r.store.Write(ctx, o); err == nil {
		r.roster.Read(now, o.Data)
		m.take(ctx, next)
		clear(r.known.Tried) // what was under way had another version
	}
	return err
}

// isAlone reports whether an upstream is frozen here, and no order that is known freezes it or could have ended that.
func (r *replicas) isAlone(name string, have *state.Frozen) bool {
	e, tried := r.known.Upstreams[name], r.known.Tried[name].Counter
	return have != nil && e.Frozen == nil && (have.Order == "" || e.Counter == 0) && (tried == 0 || tried >= e.Counter)
}

// withGiven returns orders with the freezes that were given here alone: without the ConfigMap, or before the relay was one
// of several. Their counters are higher than all that was ordered meanwhile, which could not end them.
func (m *Manager) withGiven(s orders.State) orders.State {
	for _, u := range m.all() {
		name := u.cfg.Name
		if have := locked(u.upstream, (*intake.Intake).Frozen); m.replicas.isAlone(name, have) {
			s = s.Freeze(name, &orders.Frozen{Since: have.Since.Truncate(time.Second), Reason: have.Reason})
			m.replicas.known.Tried[name] = s.Upstreams[name]
		}
	}
	return s
}

// withoutEnded returns orders without the freezes that have ended here before it was known that they were written.
func (m *Manager) withoutEnded(s orders.State) orders.State {
	for name, mine := range m.replicas.known.Tried {
		u, err := m.upstream(name)
		if err == nil && locked(u, (*intake.Intake).Frozen) == nil && s.Upstreams[name].ID() == mine.ID() {
			s = s.Freeze(name, nil)
		}
	}
	return s
}

// take joins orders with what is known, and has them in force here.
func (m *Manager) take(ctx context.Context, s orders.State) {
	r, now, until := m.replicas, time.Now(), map[string]time.Time{}
	end := now.Add(releaseWindow)
	if now.Sub(r.known.Read) > releaseWindow { // what was released meanwhile is no answer to what this replica sees later
		end = now
	}
	r.known.State = r.known.Join(s).Aged(now)
	for name, e := range r.known.Upstreams {
		for _, one := range e.Released {
			until[name+one.ID()] = end
			if known, is := r.known.Until[name+one.ID()]; is {
				until[name+one.ID()] = known
			}
		}
	}
	r.known.Until = until
	r.save() // first: what is frozen by an order that is not known would be followed after a restart
	m.applyOrders(ctx)
}

// Replicas returns all replicas, this one first. There are none for a relay that is alone.
func (m *Manager) Replicas() []orders.Replica { return m.shown.Load().replicas }

// OrderProblems returns one line for each problem with the orders of the replicas.
func (m *Manager) OrderProblems() []string { return m.shown.Load().problems }

// report returns what this replica tells the others.
func (m *Manager) report() orders.Report {
	var holds []orders.Hold
	for _, u := range m.all() {
		for i, id := range locked(u.upstream, (*intake.Intake).HoldIDs) {
			holds = slices.Insert(holds, min(i, 1)*len(holds), orders.Hold{Upstream: u.cfg.Name, ID: id}) // first the newest of each
		}
	}
	return orders.Report{Follows: m.replicas.known.Counter, Lacks: m.replicas.lacks, Holds: holds[:min(len(holds), maxHolds)]}
}

// problems returns one line for each problem with the orders.
func (r *replicas) problems(now time.Time) (lines []string) {
	add := func(format string, args ...any) { lines = append(lines, "orders: "+fmt.Sprintf(format, args...)) }
	if r.problem != "" {
		add("the ConfigMap can not be used since %s: only freeze is taken, and written later: %s", r.used.UTC().Format(time.RFC3339), r.problem)
	}
	if r.roster.Twin(now) {
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
