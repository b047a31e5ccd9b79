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
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-multierror"
	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"meshrelay/config"
	"meshrelay/events"
	"meshrelay/mirror"
	"meshrelay/state"
	"meshrelay/upstreams/intake"
	"meshrelay/upstreams/intake/records"
)

// Keeper keeps the served resources on disk.
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

// Manager runs the upstreams of a config. Each has a store of its own, and the stores are the sources of an
// Aggregate. Its methods may be called from any goroutine.
type Manager struct {
	kinds     []Kind
	aggregate *mirror.Aggregate
	keeper    Keeper          // nil: nothing is kept
	events    *events.Journal // nil: nobody keeps them
	replicas  *replicas       // nil: the relay is alone
	shown     atomic.Pointer[shownOrders]
	look      chan struct{} // has an element when an upstream may have to follow an order, or its hold has changed
	moved     chan struct{} // has an element when the status of an upstream may have changed
	log       *slog.Logger
	restored  chan struct{} // closed when the upstreams are restored from disk
	pause     time.Duration // after the first failure of a source

	// applying serializes orders, reloads and Restore.
	applying sync.Mutex

	mu        sync.Mutex  // guards all below
	upstreams []*upstream // in order of priority
	// start runs an upstream. It is nil before Run, and after its end.
	start func(*upstream)
	first firstSync
	// doubles has why upstreams are left out: another one reads the same cluster under another ID.
	doubles map[*upstream]string
	same    func(ids map[string]string) // see OnSame
}

// NewManager makes the upstreams of a config, in order of priority. None runs yet. kinds are the kinds of sources
// that the config may use. keeper may be nil. The error has all mistakes.
func NewManager(cfg *config.Config, kinds []Kind, aggregate *mirror.Aggregate, keeper Keeper, log *slog.Logger) (*Manager, error) {
	m := &Manager{
		kinds: kinds, aggregate: aggregate, keeper: keeper, log: log, restored: make(chan struct{}), look: make(chan struct{}, 1),
		moved: make(chan struct{}, 1),
		pause: leastPause, first: newFirstSync(cfg, keeper),
	}
	m.shown.Store(&shownOrders{})
	var errs *multierror.Error
	for _, one := range cfg.Upstreams {
		s, err := newSetup(one, cfg, kinds, log)
		if err != nil {
			errs = multierror.Append(errs, err)
			continue
		}
		m.upstreams = append(m.upstreams, newUpstream(s, keeper != nil, m.look, m.moved))
	}
	if err := errs.ErrorOrNil(); err != nil {
		return nil, err
	}
	m.unite()
	aggregate.RegisterHandler(func(c mirror.Change) {
		if c.Key.Kind == mirror.MeshConfig && c.Visible() {
			m.reroot(m.all()...)
		}
	})
	return m, nil
}

// reroot tells upstreams the root namespace of the MeshConfig that is served.
func (m *Manager) reroot(all ...current) {
	if r := m.aggregate.Get(mirror.Key{Kind: mirror.MeshConfig, Name: mirror.MeshConfigName}); r != nil {
		for _, u := range all {
			u.Tell(intake.Rooted{Namespace: records.RootOf(r)})
		}
	}
}

// Record sets the journal for the events of the upstreams. It is called before Restore.
func (m *Manager) Record(journal *events.Journal) {
	m.events = journal
	for _, u := range m.upstreams {
		u.events = journal
	}
}

// Restore restores the upstreams from disk, several at a time, unless that was done before. It ends early when
// ctx ends. Run calls it first. The aggregate merges meanwhile.
func (m *Manager) Restore(ctx context.Context) {
	m.applying.Lock() // orders and reloads wait
	defer m.applying.Unlock()
	m.restore(ctx)
}

// restore is Restore for a caller that holds applying.
func (m *Manager) restore(ctx context.Context) {
	if mirror.IsClosed(m.restored) {
		return
	}
	if m.keeper == nil {
		close(m.restored)
		return
	}
	var group errgroup.Group
	// The store decodes on all CPUs, and the aggregate merges meanwhile.
	group.SetLimit((runtime.GOMAXPROCS(0) + 1) / 2)
	for _, u := range m.upstreams {
		group.Go(func() error {
			if ctx.Err() == nil {
				saved := m.keeper.Load(u.cfg.Name)
				u.onDisk = saved.Meta.Synced
				u.Tell(intake.Restored{Saved: saved})
			}
			return ctx.Err()
		})
	}
	if group.Wait() != nil {
		return // the state on disk does not change
	}
	m.mu.Lock()
	m.first.served = m.keeper.Served() // an upstream that could not be read counts as lost
	m.mu.Unlock()
	for _, u := range m.upstreams {
		m.keeper.Follow(u.cfg.Name, u)
	}
	m.unite()
	close(m.restored)
}

// Restored returns a channel that Restore closes when all upstreams are restored.
func (m *Manager) Restored() <-chan struct{} { return m.restored }

// reading reports whether upstreams may still have to be restored from disk.
func (m *Manager) reading() bool { return m.keeper != nil && !mirror.IsClosed(m.restored) }

// OnSame sets what is called with each ID of a cluster that is left out, since another upstream reads the cluster, and
// with the ID that counts. It is called before Run.
func (m *Manager) OnSame(same func(ids map[string]string)) { m.same = same }

// unite merges the upstreams. Of those that read one cluster, by its UID, under different IDs, the first counts, and the
// others are left out.
func (m *Manager) unite() {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []mirror.Source
	first, doubles, ids := map[string]*upstream{}, map[*upstream]string{}, map[string]string{}
	for _, u := range m.upstreams {
		uid := u.Identity()
		one := first[uid]
		if one != nil && one.cfg.ClusterID != u.cfg.ClusterID {
			ids[u.cfg.ClusterID] = one.cfg.ClusterID
			doubles[u] = fmt.Sprintf("left out: upstream %s reads the same cluster (uid of kube-system %s), as cluster %s: give both one clusterID, or remove one", one.name, uid, one.cfg.ClusterID)
			if m.doubles[u] != doubles[u] {
				m.log.Warn("upstream left out", "upstream", u.name, "reason", doubles[u])
			}
			continue
		}
		if one == nil && uid != "" {
			first[uid] = u
		}
		out = append(out, mirror.Source{Name: u.cfg.Name, Store: u.store})
	}
	if m.same != nil && len(doubles)+len(m.doubles) > 0 {
		m.same(ids)
	}
	m.doubles = doubles
	m.aggregate.SetSources(out)
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
		u.stop = run(m.runSource(u))
	}
	for _, u := range m.upstreams {
		m.start(u)
	}
	m.mu.Unlock()
	m.applying.Unlock()
	if m.replicas != nil {
		g.Go(func() error { return m.runOrders(ctx) })
	}
	g.Go(func() error { // until ctx ends, a reload may start upstreams
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

// change is a change of one upstream by a reload. Its source is nil when at most the policy changes.
type change struct {
	setup
	now   *upstream
	isNew bool
}

// plan returns the change of one upstream by a reload, without an effect yet. It calls Kind.Check: a reload fails
// for a missing certificate, though the start of a relay does not.
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
		c.now = newUpstream(c.setup, m.keeper != nil, m.look, m.moved)
		c.now.events = m.events
	}
	return c, nil
}

// Apply changes the upstreams to those of another config. Upstreams that do not change keep their streams. The
// resources of changed upstreams are served until their new source changes them. After an error nothing has
// changed.
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
	m.mu.Lock()
	m.first.clusters = clustersOf(cfg.Views)
	m.upstreams = next
	m.mu.Unlock()
	m.unite()
	for _, c := range changes {
		m.apply(c, start)
	}
	m.unite() // some may have another ID
	mirror.Signal(m.look)
	mirror.Signal(m.moved)
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
		m.reroot(current{upstream: u})
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
	source.Limit(c.cfg.Limits)
	if c.isNew && m.keeper != nil {
		m.keeper.Follow(c.cfg.Name, u)
	}
	if c.source != nil {
		start(u)
	}
}

// sameSource reports whether an upstream can keep its source when its config changes from a to b.
func sameSource(a, b config.Upstream) bool {
	for _, u := range []*config.Upstream{&a, &b} {
		u.Guard, u.Staleness, u.Required, u.FirstSync = config.Guard{Profile: u.Guard.Profile}, config.Staleness{}, false, ""
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

// current is an upstream with its present setup.
type current struct {
	*upstream
	setup
	added  bool
	double string // why it is left out
}

// all returns the upstreams, in order of priority.
func (m *Manager) all() []current {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := make([]current, 0, len(m.upstreams))
	for _, u := range m.upstreams {
		out = append(out, current{u, u.setup, u.added, m.doubles[u]})
	}
	return out
}

// Trace returns the traces of a key in all upstreams, in order of priority.
func (m *Manager) Trace(key mirror.Key) (out []records.Trace) {
	for _, u := range m.all() {
		out = append(out, locked(u.upstream, func(in *intake.Intake) []records.Trace { return in.Trace(key) })...)
	}
	return out
}

// Refuses returns a function that reports whether an upstream may have a resource whose content is refused.
func (m *Manager) Refuses(name string) func(served mirror.Key) bool {
	u, err := m.upstream(name)
	if err != nil {
		return func(mirror.Key) bool { return false }
	}
	return locked(u, func(in *intake.Intake) func(mirror.Key) bool { return in.Records().Refuses() })
}

// Report writes the condition of the object of a served resource, as Source.Report.
func (m *Manager) Report(ctx context.Context, upstream string, served mirror.Key, c metav1.Condition) (told bool, err error) {
	for _, u := range m.all() {
		for _, t := range locked(u.upstream, func(in *intake.Intake) []records.Trace { return in.Trace(served) }) {
			if u.cfg.Name == upstream && t.Key == served && t.Resource != nil {
				return u.source.Report(ctx, t.Original, c)
			}
		}
	}
	return false, nil
}

// LeftOut returns the resources that are left out, by upstream in order of priority.
func (m *Manager) LeftOut() (out []records.LeftOut) {
	for _, u := range m.all() {
		out = append(out, locked(u.upstream, func(in *intake.Intake) []records.LeftOut { return in.Records().LeftOut() })...)
	}
	return out
}

// Status returns the status of every upstream, in order of priority.
func (m *Manager) Status() []Status {
	first := m.firstSyncs() // first: an upstream that syncs meanwhile is shown as synced
	all := m.all()
	out := make([]Status, 0, len(all))
	for _, u := range all {
		st := u.status()
		if st.Double = u.double; !st.Synced || st.Frozen != nil && st.Frozen.Empty {
			st.FirstSync = first[st.Name]
		}
		out = append(out, st)
	}
	return out
}
