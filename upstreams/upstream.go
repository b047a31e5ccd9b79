package upstreams

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/zeebo/xxh3"

	"meshrelay/config"
	"meshrelay/events"
	"meshrelay/internal/loglimit"
	"meshrelay/internal/panics"
	"meshrelay/mirror"
	"meshrelay/state"
	"meshrelay/upstreams/intake"
	"meshrelay/upstreams/intake/records"
)

// setup is the config of an upstream, with the source and the rules made from it.
type setup struct {
	cfg    config.Upstream
	kind   Kind
	env    Env
	source Source
	rules  *records.Rules
	log    *slog.Logger
	// failed is why the former source of the same config has ended, at failedAt. It is nil for none.
	failed   error
	failedAt time.Time
}

// newSetup makes the source and the rules of an upstream. Neither has an effect yet.
func newSetup(cfg config.Upstream, all *config.Config, kinds []Kind, log *slog.Logger) (s setup, err error) {
	s.cfg, s.log = cfg, log.With("upstream", cfg.Name)
	if s.kind, err = KindOf(kinds, cfg); err != nil {
		return s, err
	}
	if s.rules, err = records.NewRules(cfg, all.Provenance, cfg.Source.Relayed()); err != nil {
		return s, err
	}
	s.env = Env{Node: all.Node, Relay: all.Provenance.Relay, Log: s.log}
	if s.source, err = s.kind.New(cfg, s.env); err != nil {
		return s, fmt.Errorf("upstream %s: %w", cfg.Name, err)
	}
	return s, nil
}

// upstream drives the intake of one upstream. It is the Feed of the source, and the state.Source of the Keeper.
//
// It holds its lock for one step of the intake and for the journal, and never while it calls anything else.
type upstream struct {
	name   string
	store  *mirror.Store
	log    *slog.Logger
	limit  *loglimit.Limit // for log lines of the intake, whose rate the upstream decides
	events *events.Journal // nil: nobody keeps them
	since  time.Time
	look   chan<- struct{} // gets an element when the hold may have changed
	moved  chan<- struct{} // gets an element when the status may have changed
	// identified is called when the identity of the cluster may have changed. runSource sets it.
	identified func()
	wake       chan struct{} // has an element when turn must run before armed
	onDisk     bool          // when the relay started; Restore sets it

	// The Manager's mu guards setup, added and the functions.
	setup
	added bool // by a reload, while clients were held
	// stop ends the source. stopAll ends the upstream, with its timer. Both wait for the end.
	stop, stopAll func()

	logging sync.Mutex // held, before mu, by who logs notes

	mu     sync.Mutex // guards all below
	intake *intake.Intake
	// due is the time of the next Tick. armed is the time at which the timer fires.
	due, armed time.Time
	asks       bool // makes turn call asked.Repeat
	asked      Source
	end        context.CancelCauseFunc // ends the run of the source, nil while none runs
	notes      []intake.Note           // for the log, in the order of the steps
}

// maxNotes bounds the notes that wait for the log. It is more than limit lets through at once.
const maxNotes = 1000

func newUpstream(s setup, keeps bool, look, moved chan<- struct{}) *upstream {
	store := mirror.NewStore()
	return &upstream{
		name: s.cfg.Name, setup: s, store: store, log: s.log, limit: loglimit.New(200, time.Second), since: time.Now(), wake: make(chan struct{}, 1),
		look: look, moved: moved, asked: s.source, intake: intake.New(s.cfg, store, s.rules, keeps),
	}
}

// succeed replaces the source by that of another setup. The former source has ended.
func (u *upstream) succeed(s setup) {
	u.mu.Lock()
	u.asked, u.asks = s.source, false
	u.mu.Unlock()
	u.Tell(intake.Succeeded{Rules: s.rules})
}

// Tell implements Feed.
func (u *upstream) Tell(e intake.Event) records.Result {
	out, _ := u.stepOver(e)
	return out.Result
}

// stepOver passes an event to the intake, and logs. Its events are then in the journal.
func (u *upstream) stepOver(e intake.Event) (intake.Output, error) {
	out, err := u.stepLocked(e)
	mirror.Signal(u.moved)
	if _, is := e.(intake.Identified); is && u.identified != nil {
		u.identified()
	}
	if p := (*panics.Panic)(nil); errors.As(err, &p) {
		u.fail(p)
	}
	for locked(u, func(*intake.Intake) bool { return len(u.notes) > 0 }) && u.logging.TryLock() {
		u.logNotes() // otherwise the goroutine that logs looks again
	}
	return out, err
}

func (u *upstream) logNotes() {
	defer u.logging.Unlock()
	take := func(*intake.Intake) (notes []intake.Note) { notes, u.notes = u.notes, nil; return notes }
	for _, n := range locked(u, take) {
		u.limit.Log(u.log, n.Level, n.Message, n.Args...)
	}
}

// stepLocked steps the intake. After a panic another intake begins with what it held.
func (u *upstream) stepLocked(e intake.Event) (out intake.Output, err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	holds := u.intake.Holding()
	if p := panics.Try(func() { out, err = u.intake.Step(time.Now(), e) }); p != nil {
		u.due, u.intake = time.Now().Add(time.Minute), u.intake.Renewed(time.Now())
		return out, p
	}
	u.notes = append(u.notes, out.Notes[:min(len(out.Notes), maxNotes-len(u.notes))]...)
	for _, event := range out.Events {
		event.Upstream = u.name
		u.events.Record(event)
	}
	u.due = out.Wake
	if holds || u.intake.Holding() {
		mirror.Signal(u.look)
	}
	if out.Repeat {
		u.asks = true
	}
	if u.asks || u.due.Before(u.armed) {
		mirror.Signal(u.wake)
	}
	return out, err
}

// locked calls f with the locked intake of an upstream, and returns the result.
func locked[T any](u *upstream, f func(*intake.Intake) T) T {
	u.mu.Lock()
	defer u.mu.Unlock()
	return f(u.intake)
}

func (u *upstream) run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-u.wake:
		case <-timer.C:
		}
		timer.Reset(u.turn())
	}
}

// turn passes a Tick to the intake, and returns the time until the next one. After a panic that is a minute.
func (u *upstream) turn() (wait time.Duration) {
	u.Tell(intake.Tick{})
	u.mu.Lock()
	asks, source := u.asks, u.asked
	u.asks, u.armed = false, u.due
	wait = max(time.Until(u.due), 0)
	u.mu.Unlock()
	if !asks {
		return wait
	}
	repeats := false
	if p := panics.Try(func() { repeats = source.Repeat() }); p != nil {
		u.fail(p)
		return time.Minute
	}
	if !repeats {
		u.Tell(intake.Repeated{})
	}
	return wait
}

// fail ends the run of the source with a panic, or logs it where none runs.
func (u *upstream) fail(p *panics.Panic) {
	if end := locked(u, func(*intake.Intake) context.CancelCauseFunc { return u.end }); end != nil {
		end(p)
		return
	}
	u.log.Error("panic in the intake of an upstream", "panic", p.Value, "stack", p.Stack)
}

// runSource runs the source of an upstream until ctx ends. When it fails, a new one begins with what the intake holds.
func (m *Manager) runSource(u *upstream) func(context.Context) error {
	return func(ctx context.Context) error {
		u.identified = m.unite
		defer u.Tell(intake.Closed{Planned: true}) // the disk then has the time of the last contact
		restart(ctx, u.log, m.pause, func(ctx context.Context) error { return u.runOnce(ctx, m.setupOf(u, nil).source) }, func(err error) {
			u.Tell(intake.Closed{Reason: err.Error(), Failed: true})
			u.succeed(m.setupOf(u, err))
		})
		return nil
	}
}

// setupOf returns the setup of an upstream, after a failure with a new source.
func (m *Manager) setupOf(u *upstream, failed error) setup {
	m.mu.Lock()
	defer m.mu.Unlock()
	if failed != nil {
		u.failed, u.failedAt = failed, time.Now()
		if source, err := u.kind.New(u.cfg, u.env); err == nil { // the config was good before
			u.source = source
		}
	}
	return u.setup
}

// runOnce runs a source until ctx ends, or until the source or the intake fails. The error is why.
func (u *upstream) runOnce(ctx context.Context, source Source) error {
	run, end := context.WithCancelCause(ctx)
	set := func(end context.CancelCauseFunc) { u.mu.Lock(); defer u.mu.Unlock(); u.end = end }
	set(end)
	defer set(nil)
	defer end(nil)
	err := source.Run(run, u)
	if err == nil && ctx.Err() == nil {
		err = context.Cause(run)
	}
	return err
}

// Versions implements Feed.
func (u *upstream) Versions(scope records.Scope) map[string]string {
	return locked(u, func(in *intake.Intake) map[string]string { return in.Records().Versions(scope) })
}

// Holds implements Feed.
func (u *upstream) Holds(scope records.Scope, name string, digest xxh3.Uint128, size int) bool {
	return locked(u, func(in *intake.Intake) bool { return in.Records().Holds(scope, name, digest, size) })
}

// Keep implements Feed.
func (u *upstream) Keep(n int) (fits bool) {
	return locked(u, func(in *intake.Intake) bool { return in.Records().Keep(n) })
}

// Identity implements Feed.
func (u *upstream) Identity() string { return locked(u, (*intake.Intake).Identity) }

// Synced implements Feed.
func (u *upstream) Synced() bool { return locked(u, (*intake.Intake).Synced) }

// TakeChanges implements state.Source.
func (u *upstream) TakeChanges() ([]state.Change, state.Meta) {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.intake.TakeChanges(time.Now())
}

// GiveBack implements state.Source.
func (u *upstream) GiveBack(changes []state.Change) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.intake.GiveBack(changes)
}

// MarkAll implements state.Source.
func (u *upstream) MarkAll() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.intake.MarkAll()
}

// frozenEmpty reports whether the upstream is frozen, and nothing of it was known then.
func (u *upstream) frozenEmpty() bool {
	f := locked(u, (*intake.Intake).Frozen)
	return f != nil && f.Empty
}

func (u current) status() Status {
	st := Status{
		Name: u.cfg.Name, ClusterID: u.cfg.ClusterID, Type: u.cfg.Source.Kind(), Required: u.cfg.Required,
		State: StateConnecting, Since: u.since, Resources: map[string]int{},
		Status: locked(u.upstream, func(in *intake.Intake) intake.Status { return in.Status(time.Now()) }),
	}
	for kind, n := range u.store.Counts() {
		st.Resources[kind.String()] = n
	}
	switch {
	case st.InContact:
		st.State = StateSynced
	case st.Synced:
		st.State = StateDisconnected
	}
	u.source.Describe(&st)
	if st.State == StateSyncing && st.Complete {
		st.State = StateSynced
		if st.CompleteAt.After(st.Since) {
			st.Since = st.CompleteAt
		}
	}
	// A new source is shown as failed until it has synced, or has an error of its own.
	if u.failed != nil && !st.Complete && st.LastError == "" && (st.State == StateConnecting || st.State == StateSyncing) {
		st.State, st.Since = StateFailed, u.failedAt
		st.LastError = u.failed.Error() + "; a new source starts after a growing pause: report the stack, and leave out with import what causes it"
	}
	if st.State != StateSynced && st.State != StateSyncing {
		st.ContactLost = cmp.Or(st.LastContact, st.Since)
	}
	return st
}

// mayWait returns why the source may itself be waiting for this relay, or "".
func (u current) mayWait() string {
	var st Status
	u.source.Describe(&st)
	return st.MayWait
}
