package upstreams

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"runtime"
	"slices"
	"sync"

	"github.com/hashicorp/go-multierror"
	"golang.org/x/sync/errgroup"

	"meshrelay/config"
	"meshrelay/events"
	"meshrelay/mirror"
	"meshrelay/state"
	"meshrelay/upstreams/intake"
)

// Keeper keeps on disk what is served, if there is one.
type Keeper interface {
	// Load may be called from several goroutines at once.
	Load(source string) state.Saved
	Follow(source string, s state.Source)
	Unfollow(source string)
	Flush(ctx context.Context) error
	History(source string) ([]state.Revision, error)
	At(source string, revision uint64) ([]state.Record, error)
	// Served reports whether clients were ever served; MarkServed notes it.
	Served() bool
	MarkServed()
}

// Manager runs the upstreams of a config, each with a store of its own, and makes them the sources
// of an Aggregate. Its methods may be called from any goroutine.
type Manager struct {
	kinds     []Kind
	aggregate *mirror.Aggregate
	keeper    Keeper          // nil: nothing is kept
	events    *events.Journal // nil: nobody keeps them
	log       *slog.Logger
	restored  chan struct{} // closed when the upstreams have what the disk has of them

	// applying is held by what changes upstreams.
	applying sync.Mutex

	mu        sync.Mutex  // guards all below
	upstreams []*upstream // in order of priority
	// start runs an upstream; nil before Run.
	start func(*upstream)
	first firstSync
}

// NewManager makes the upstreams of a config, in order of priority. None runs yet. kinds are those of
// their sources. keeper, unless nil, has what Restore serves from the start. The error tells all mistakes.
func NewManager(cfg *config.Config, kinds []Kind, aggregate *mirror.Aggregate, keeper Keeper, log *slog.Logger) (*Manager, error) {
	m := &Manager{kinds: kinds, aggregate: aggregate, keeper: keeper, log: log, restored: make(chan struct{}), first: newFirstSync(cfg, keeper)}
	var errs *multierror.Error
	for _, one := range cfg.Upstreams {
		s, err := newSetup(one, cfg, kinds, log)
		if err != nil {
			errs = multierror.Append(errs, err)
			continue
		}
		m.upstreams = append(m.upstreams, newUpstream(s, keeper != nil))
	}
	if err := errs.ErrorOrNil(); err != nil {
		return nil, err
	}
	aggregate.SetSources(sourcesOf(m.upstreams))
	return m, nil
}

// Record has a journal take what happens to the upstreams. It is called before Restore.
func (m *Manager) Record(journal *events.Journal) {
	m.events = journal
	for _, u := range m.upstreams {
		u.events = journal
	}
}

// Restore has each upstream begin with what the disk has of it, as many at a time as there are CPUs,
// unless that was done, or ctx ends. Run does it first: the aggregate merges meanwhile.
func (m *Manager) Restore(ctx context.Context) {
	m.applying.Lock() // orders and reloads come later
	defer m.applying.Unlock()
	m.restore(ctx)
}

// restore is Restore for a caller that holds applying.
func (m *Manager) restore(ctx context.Context) {
	if m.isRestored() {
		return
	}
	if m.keeper == nil {
		close(m.restored)
		return
	}
	var group errgroup.Group
	// A store decodes on all CPUs, and what is restored is merged meanwhile.
	group.SetLimit((runtime.GOMAXPROCS(0) + 1) / 2)
	for _, u := range m.upstreams {
		group.Go(func() error {
			if ctx.Err() == nil {
				u.Tell(intake.Restored{Saved: m.keeper.Load(u.cfg.Name)})
			}
			return ctx.Err()
		})
	}
	if group.Wait() != nil {
		return // what the disk has stays as it is
	}
	m.mu.Lock()
	m.first.served = m.keeper.Served() // an upstream that could not be read counts as lost
	m.mu.Unlock()
	for _, u := range m.upstreams {
		m.keeper.Follow(u.cfg.Name, u)
	}
	close(m.restored)
}

// Restored returns a channel that Restore closes when it has done all.
func (m *Manager) Restored() <-chan struct{} { return m.restored }

// reading reports whether the disk may have of the upstreams what they do not have yet.
func (m *Manager) reading() bool { return m.keeper != nil && !m.isRestored() }

func (m *Manager) isRestored() bool {
	select {
	case <-m.restored:
		return true
	default:
		return false
	}
}

func sourcesOf(all []*upstream) (out []mirror.Source) {
	for _, u := range all {
		out = append(out, mirror.Source{Name: u.cfg.Name, Store: u.store})
	}
	return out
}

// Run restores every upstream, and runs it until ctx ends. It is called once.
func (m *Manager) Run(ctx context.Context) error {
	m.applying.Lock()
	m.restore(ctx)
	g, ctx := errgroup.WithContext(ctx)
	run := func(all ...func(context.Context) error) (stop func()) {
		ctx, cancel := context.WithCancel(ctx)
		var running sync.WaitGroup
		running.Add(len(all))
		for _, f := range all {
			g.Go(func() error { defer running.Done(); return f(ctx) })
		}
		return func() { cancel(); running.Wait() }
	}
	m.mu.Lock()
	m.start = func(u *upstream) {
		if u.stopAll == nil {
			u.stopAll = run(u.run)
		}
		u.stop = run(u.runSource(u.source))
	}
	for _, u := range m.upstreams {
		m.start(u)
	}
	m.mu.Unlock()
	m.applying.Unlock()
	g.Go(func() error { // upstreams may come and go until then
		<-ctx.Done()
		m.applying.Lock()
		defer m.applying.Unlock()
		m.mu.Lock()
		defer m.mu.Unlock()
		m.start = nil
		return nil
	})
	return g.Wait()
}

// change is what a config makes of one upstream. Its source is nil where at most the policy is another.
type change struct {
	setup
	now   *upstream
	isNew bool
}

// plan returns what a config makes of an upstream. It changes nothing. At the start one upstream's
// certificate must not keep the others from being served; a reload is refused for it.
func (m *Manager) plan(u config.Upstream, cfg *config.Config) (c change, err error) {
	i := slices.IndexFunc(m.upstreams, func(one *upstream) bool { return one.cfg.Name == u.Name })
	if c.isNew = i < 0; !c.isNew {
		c.now = m.upstreams[i]
		if sameSource(c.now.cfg, u) {
			c.cfg = u
			return c, nil
		}
	}
	if c.setup, err = newSetup(u, cfg, m.kinds, m.log); err != nil {
		return c, err
	}
	if c.kind.Check != nil {
		if err := c.kind.Check(u); err != nil {
			return c, fmt.Errorf("upstream %s: %w", u.Name, err)
		}
	}
	if c.isNew {
		c.now = newUpstream(c.setup, m.keeper != nil)
		c.now.events = m.events
	}
	return c, nil
}

// Apply makes the upstreams those of another config. The streams of upstreams that are the same stay
// as they are, and what the others gave is served until they tell otherwise. After an error nothing
// has changed.
func (m *Manager) Apply(cfg *config.Config) error {
	m.applying.Lock()
	defer m.applying.Unlock()
	m.mu.Lock()
	old, start := m.upstreams, m.start
	m.mu.Unlock()
	if start == nil {
		return errors.New("the upstreams do not run")
	}
	var changes []change
	var next []*upstream
	var errs *multierror.Error
	for _, u := range cfg.Upstreams {
		c, err := m.plan(u, cfg)
		if err != nil {
			errs = multierror.Append(errs, err)
			continue
		}
		changes, next = append(changes, c), append(next, c.now)
	}
	if err := errs.ErrorOrNil(); err != nil {
		return err
	}
	m.aggregate.SetSources(sourcesOf(next))
	for _, c := range changes {
		m.apply(c, start)
	}
	m.mu.Lock()
	m.first.clusters = clustersOf(cfg.Views)
	m.upstreams = next
	m.mu.Unlock()
	for _, u := range old {
		if slices.Contains(next, u) {
			continue
		}
		m.log.Info("upstream removed", "upstream", u.cfg.Name)
		m.events.Record(events.Event{Type: events.Dropped, Upstream: u.cfg.Name, By: events.ByConfig, Text: "removed from the config"})
		u.stop()
		u.stopAll()
		if m.keeper != nil {
			m.keeper.Unfollow(u.cfg.Name)
		}
	}
	return nil
}

func (m *Manager) apply(c change, start func(*upstream)) {
	u := c.now
	switch {
	case c.isNew:
		m.log.Info("upstream added", "upstream", c.cfg.Name)
		m.events.Record(events.Event{Type: events.Added, Upstream: c.cfg.Name, By: events.ByConfig, Text: "added to the config"})
	case c.source != nil:
		m.log.Info("upstream changed", "upstream", c.cfg.Name)
		m.events.Record(events.Event{Type: events.Altered, Upstream: c.cfg.Name, By: events.ByConfig, Text: "its source or its rules have changed"})
		u.stop()
		u.succeed(c.setup)
	}
	u.Tell(intake.SetPolicy{Upstream: c.cfg})
	m.mu.Lock()
	if u.cfg = c.cfg; c.source != nil {
		u.setup = c.setup
	}
	u.added = u.added || c.isNew && m.first.without == nil
	source := u.source
	m.mu.Unlock()
	if l, is := source.(Limited); is {
		l.Limit(c.cfg.Limits)
	}
	if c.isNew && m.keeper != nil {
		m.keeper.Follow(c.cfg.Name, u)
	}
	if c.source != nil {
		start(u)
	}
}

// sameSource reports whether two configs differ in nothing that a source has to be made anew for.
func sameSource(a, b config.Upstream) bool {
	for _, u := range []*config.Upstream{&a, &b} {
		u.Guard, u.Staleness, u.Required, u.FirstSync = config.Guard{}, config.Staleness{}, false, ""
		u.Limits = config.Limits{MaxResponseBytes: u.Limits.MaxResponseBytes}
	}
	return reflect.DeepEqual(a, b)
}

func (m *Manager) upstream(name string) (*upstream, error) {
	all := m.all()
	i := slices.IndexFunc(all, func(one current) bool { return one.cfg.Name == name })
	if i < 0 {
		return nil, fmt.Errorf("%w %q", intake.ErrUnknownUpstream, name)
	}
	return all[i].upstream, nil
}

// current is an upstream with its setup of now.
type current struct {
	*upstream
	setup
	added bool
}

// all returns the upstreams, in order of priority.
func (m *Manager) all() []current {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := make([]current, 0, len(m.upstreams))
	for _, u := range m.upstreams {
		out = append(out, current{u, u.setup, u.added})
	}
	return out
}

// Trace returns what became of a key in every upstream, in order of priority.
func (m *Manager) Trace(key mirror.Key) (out []intake.Trace) {
	for _, u := range m.all() {
		out = append(out, locked(u.upstream, func(in *intake.Intake) []intake.Trace { return in.Trace(key) })...)
	}
	return out
}

// LeftOut returns what is not imported, by upstream in order of priority.
func (m *Manager) LeftOut() (out []intake.LeftOut) {
	for _, u := range m.all() {
		out = append(out, locked(u.upstream, (*intake.Intake).LeftOut)...)
	}
	return out
}

// Status returns the status of every upstream, in order of priority.
func (m *Manager) Status() []Status {
	first := m.firstSyncs() // before the rest: what syncs meanwhile is shown as synced
	all := m.all()
	out := make([]Status, 0, len(all))
	for _, u := range all {
		st := u.status()
		if !st.Synced {
			st.FirstSync = first[st.Name]
		}
		out = append(out, st)
	}
	return out
}
