package upstreams

import (
	"context"
	"log/slog"
	"reflect"
	"slices"
	"sync"
	"time"

	"meshrelay/decisions"
	"meshrelay/events"
	"meshrelay/mirror"
	"meshrelay/state"
	"meshrelay/upstreams/intake"
)

const (
	foldPatience = 10 * time.Second // bounds how long clients of a starting relay wait for the decisions
	// These two together are less than an operator's command waits for its answer.
	appendTimeout  = 5 * time.Second
	appliedTimeout = 3 * time.Second
	heldTimeout    = 10 * time.Second      // of a question to peers for what they hold
	proposeRest    = 50 * time.Millisecond // between two looks at what the upstreams propose
	leastRetry     = time.Second           // between two such questions, at first and at most
	mostRetry      = 30 * time.Second
	maxUnagreed    = 100 // local decisions that wait for the store
	unread         = "it was not read yet"
)

// Decisions keeps the log of decisions where all replicas find it. Its methods must be safe for concurrent use.
type Decisions interface {
	// Append appends a record, and returns the log with it. A record without ID only tries whether it could. An error that wraps decisions.ErrRefused is about the newest
	// log, which it returns, too. After any other error it is unknown whether the log has the record.
	Append(ctx context.Context, r decisions.Record) (decisions.Log, error)
	// Watch reads the log again and again. It calls took with each one, and with an error while it can not read. It returns
	// when ctx ends.
	Watch(ctx context.Context, took func(log decisions.Log, err error))
}

// Peers asks the other replicas. Its methods must be safe for concurrent use.
type Peers interface {
	// Applied waits until the reachable replicas have applied the decisions about an upstream up to a sequence number, or
	// until ctx ends. It returns how many of how many have, without this one, and the names of those that have not answered.
	Applied(ctx context.Context, upstream string, sequence uint64) (did, of int, unreachable []string)
	// Held returns the resources that other replicas serve although the upstream has deleted them, under a hold. The first,
	// begun, come from the replica that has begun it. Those that have not applied the decisions up to a sequence number are
	// not asked: they may have what was released.
	Held(ctx context.Context, hold *decisions.Record, sequence uint64) (all []*mirror.Resource, begun int)
	// Content returns the content of a freeze or rollback from a replica that serves it, nil if no other one does.
	Content(ctx context.Context, want *decisions.Record) []state.Record
}

// Replicas makes the relay one of several that agree on decisions.
type Replicas struct {
	Name  string // of this replica, unique
	Store Decisions
	Peers Peers // nil: only this replica is known
	// Dir has the decisions of this replica alone, empty: a restart forgets them.
	Dir string
}

// replicas is the part of a Manager that agrees with other replicas.
type replicas struct {
	Replicas
	log   *slog.Logger
	wake  chan struct{} // an upstream may propose something, or there is a newer log
	ready chan struct{} // closed when the decisions were applied once, and peers were asked for what they hold
	taken chan struct{} // the decisions were applied

	applying sync.Mutex // is held while a log is applied
	keeping  sync.Mutex // is held while local decisions are written
	unkept   bool       // they were not written; keeping guards it

	givers sync.Map // of the orders that are given here now: *events.Operator by upstream

	mu       sync.Mutex     // guards all below
	st       ReplicasStatus // without Local
	newest   decisions.Log
	known    bool // newest was read
	stale    bool // something is not applied yet
	readOnly bool // the log was read, but the last append has failed
	locals   []local
}

// Agree makes the relay one of several replicas. It is called before Restore, and after Record.
func (m *Manager) Agree(r Replicas) {
	m.replicas = &replicas{
		Replicas: r, log: m.log, wake: make(chan struct{}, 1), ready: make(chan struct{}), taken: make(chan struct{}, 1),
		st: ReplicasStatus{Since: time.Now(), Problem: unread},
	}
	m.readLocals()
	for _, u := range m.upstreams {
		m.joins(u)
	}
}

// joins makes an upstream follow what the replicas decide.
func (m *Manager) joins(u *upstream) {
	if m.replicas != nil {
		u.concerned = func() { mirror.Signal(m.replicas.wake) }
		u.Tell(intake.Agreed{Replica: m.replicas.Name})
	}
}

// changed has everything applied again.
func (r *replicas) changed() {
	r.mu.Lock()
	r.stale = true
	r.mu.Unlock()
	mirror.Signal(r.wake)
}

// took takes a log that the store has, unless it is older than the newest one, or why the store can not be reached. It comes
// from an append, or from the watch.
func (r *replicas) took(log decisions.Log, err error, appends bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		if r.st.Reachable || r.st.Problem == unread {
			r.st.Since = time.Now()
			r.log.Warn("store of decisions not reached", "err", err, "effect", "nothing that is held goes, and orders need --local")
		}
		r.st.Reachable, r.st.Problem, r.readOnly = false, err.Error(), appends
		return
	}
	if r.readOnly = r.readOnly && !appends; r.readOnly {
		mirror.Signal(r.wake) // what waits is tried again
	} else if !r.st.Reachable {
		r.st.Reachable, r.st.Since, r.st.Problem = true, time.Now(), ""
		r.log.Info("store of decisions reached", "sequence", log.State().Sequence)
		mirror.Signal(r.wake)
	}
	now, then := log.State(), r.newest.State()
	if !r.known || now.Sequence > then.Sequence || now.Sequence == then.Sequence && !reflect.DeepEqual(now, then) { // it was edited
		r.newest, r.known, r.stale = log, true, true
		mirror.Signal(r.wake)
	}
}

// effective returns what is in effect here: what is agreed, and the local decisions. Until the log was read once, it
// is what the disk has.
func (m *Manager) effective() decisions.State {
	r := m.replicas
	r.mu.Lock()
	s, known := r.newest.State(), r.known
	locals := slices.Clone(r.locals)
	r.mu.Unlock()
	if !known {
		s.Upstreams = map[string]decisions.Upstream{}
		for _, u := range m.all() {
			if id := locked(u.upstream, (*intake.Intake).Decision); id != "" && id != "-" {
				s.Upstreams[u.cfg.Name] = decisions.Upstream{Frozen: &decisions.Record{ID: id, Kind: decisions.Freeze, Sequence: 1}}
			}
		}
	}
	for _, l := range locals {
		s = s.With(l.Record)
	}
	return s
}

// runReplicas agrees with the other replicas until ctx ends.
func (m *Manager) runReplicas(ctx context.Context) error {
	var wait sync.WaitGroup
	defer wait.Wait()
	wait.Go(func() {
		m.replicas.Store.Watch(ctx, func(log decisions.Log, err error) {
			m.replicas.took(log, err, false)
			m.applyDecisions(ctx) // here: an append may last
			m.replicas.keepAgain()
		})
	})
	wait.Go(func() { m.takeBack(ctx) })
	for {
		m.applyDecisions(ctx)
		m.propose(ctx)
		rest := time.After(proposeRest)
		select {
		case <-ctx.Done():
			return nil
		case <-m.replicas.wake:
		}
		select { // what comes together is looked at once
		case <-ctx.Done():
			return nil
		case <-rest:
		}
	}
}

// applyDecisions brings all upstreams to what is decided, if that has changed.
func (m *Manager) applyDecisions(ctx context.Context) {
	r := m.replicas
	r.applying.Lock()
	defer r.applying.Unlock()
	r.mu.Lock()
	known, locals := r.known, slices.Clone(r.locals)
	ready := r.stale && !m.reading() && (known || len(locals) > 0)
	r.stale = r.stale && !ready
	r.mu.Unlock()
	if !ready {
		return
	}
	s := m.effective()
	missing, changed := map[string]string{}, false
	for _, u := range m.all() {
		alone, unfrozen := false, false
		for _, l := range locals {
			if l.Upstream == u.cfg.Name {
				alone, unfrozen = true, l.Kind == decisions.Unfreeze || unfrozen && !l.Kind.Freezes()
			}
		}
		if !known && !alone {
			continue // what others have decided about it is not known
		}
		e := intake.Agreed{Replica: r.Name, Known: known, Sequence: s.Sequence, Alone: alone, Unfrozen: unfrozen, Upstream: s.Upstreams[u.cfg.Name]}
		if who, given := r.givers.Load(u.cfg.Name); given {
			e.Operator, _ = who.(*events.Operator)
		}
		before := locked(u.upstream, (*intake.Intake).Decision)
		if locked(u.upstream, func(in *intake.Intake) bool { return in.NeedsRevision(e.Frozen) }) {
			if e.Revision, e.Records = m.revisionOf(ctx, u.cfg.Name, e.Frozen); e.Records == nil {
				missing[u.cfg.Name] = "the rollback of replica " + e.Frozen.Replica + " is not in effect here, because no revision on disk has that content: relay unfreeze " + u.cfg.Name + " ends it everywhere"
			}
		}
		out, _ := u.stepOver(e)
		changed = changed || out.Deleted > 0 || before != locked(u.upstream, (*intake.Intake).Decision)
	}
	if changed {
		if err := m.flush(ctx); err != nil && ctx.Err() == nil {
			m.log.Warn("decisions not on disk yet", "err", err)
		}
	}
	r.mu.Lock()
	r.st.Sequence, r.st.Missing, r.st.Applied = s.Sequence, missing, known
	r.mu.Unlock()
	mirror.Signal(r.taken)
}

// revisionOf returns the revision of an upstream that has the content of a rollback, and its records; nil if there is
// none.
func (m *Manager) revisionOf(ctx context.Context, upstream string, want *decisions.Record) (uint64, []state.Record) {
	if m.keeper == nil {
		return 0, nil
	}
	if err := m.keeper.Flush(ctx); err != nil { // first write what is served
		m.log.Warn("revisions not on disk yet", "upstream", upstream, "err", err)
	}
	revisions, err := m.keeper.History(upstream)
	if err != nil {
		return 0, nil
	}
	for _, rev := range revisions {
		if rev.Resources != want.Number {
			continue
		}
		if records, err := m.keeper.At(upstream, rev.ID); err == nil && ContentOf(records) == want.Content {
			return rev.ID, append([]state.Record{}, records...) // not nil
		}
	}
	return 0, nil
}

// ContentOf identifies the resources of records as decisions do.
func ContentOf(records []state.Record) string {
	var all []*mirror.Resource
	for _, r := range records {
		all = append(all, r.Resource)
	}
	return intake.ContentOf(all)
}
