package upstreams

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"sync"

	"github.com/hashicorp/go-multierror"
	"github.com/zeebo/xxh3"
	"golang.org/x/sync/errgroup"

	"meshrelay/config"
	"meshrelay/mirror"
	"meshrelay/state"
)

// Source keeps one store filled.
type Source interface {
	// Run works until ctx ends, and then returns nil. It is called once.
	Run(ctx context.Context) error
	// Status may be called from any goroutine, at any time.
	Status() Status
	// Trace returns what became of the resources that are, or are held as, a key. It may be
	// called from any goroutine, at any time.
	Trace(key mirror.Key) []Trace
	// LeftOut returns what is not imported, sorted. It may be called from any goroutine, at
	// any time.
	LeftOut() []LeftOut

	// restore puts into force what was kept of the source on disk, before Run.
	restore(saved state.Saved)
	// admits reports whether what was kept of a resource may be put into force at all.
	admits(r state.Record) bool
	// adopt takes over the records of what is in force, before Run. same says that the rules
	// are those of then; otherwise they are imported anew.
	adopt(records []state.Record, same bool)
	// kept returns what is held, after Run.
	kept() []state.Record
	// restateAll brings what is served to what the source has said last, as far as it is not
	// frozen. thaw ends that before, unless it is nil; its error is returned, and nothing done.
	restateAll(thaw func() error) error
	// setLimits takes over what a config says of limits.
	setLimits(cfg config.Upstream)
	// repeat asks the source for all that it has once more. When it has answered, the gate is
	// told (gate.repeated). again tells that it was asked before, and that what it has answered
	// since then counts. It does not wait, and has no effect out of contact.
	repeat(again bool)
	// check reports what of the files that the source needs, besides those that it serves, can
	// not be used now.
	check() error
	// free gives back what a source holds that will not run.
	free()
	// mayWait returns why the source may itself be waiting for this relay, empty when nothing
	// of that is known.
	mayWait() string
}

// Keeper keeps on disk what passes, if there is one.
type Keeper interface {
	Load(source string) state.Saved
	Retain(sources []string)
	Follow(source string, s state.Source)
	Unfollow(source string, forget bool)
	Flush(ctx context.Context) error
	History(source string) ([]state.Revision, error)
	At(source string, revision uint64) ([]state.Record, error)
	// Served reports whether clients were ever served with what is kept, and MarkServed notes
	// that they are now.
	Served() bool
	MarkServed()
}

// Manager runs the sources of a config, each with a store of its own, and makes them
// the sources of an Aggregate. Its methods may be called from any goroutine.
type Manager struct {
	aggregate *mirror.Aggregate
	keeper    Keeper // nil: nothing is kept
	log       *slog.Logger

	// applying is held by what changes members.
	applying sync.Mutex

	mu      sync.Mutex // guards all below
	members []*member  // in order of priority
	// start runs a member; nil before Run.
	start func(*member)
	first firstSync
}

// member is one upstream at work. Its config and source are guarded by the Manager's mu.
type member struct {
	cfg        config.Upstream
	node       config.Node
	provenance config.Provenance
	store      *mirror.Store
	gate       *gate
	source     Source
	added      bool // by a reload, while clients were held
	// stop ends the source, stopAll also what outlives it. They return when it has ended.
	stop, stopAll func()
}

// NewManager makes the sources of a config, in order of priority. None runs yet. All
// that is wrong with any of them is returned at once. What keeper has of them, unless it is
// nil, is in force from the start.
func NewManager(cfg *config.Config, aggregate *mirror.Aggregate, keeper Keeper, log *slog.Logger) (*Manager, error) {
	m := &Manager{aggregate: aggregate, keeper: keeper, log: log, first: newFirstSync(cfg, keeper)}
	var errs *multierror.Error
	for _, u := range cfg.Upstreams {
		one, err := m.newMember(u, cfg)
		if err != nil {
			errs = multierror.Append(errs, err)
			continue
		}
		m.members = append(m.members, one)
	}
	if err := errs.ErrorOrNil(); err != nil {
		m.close()
		return nil, err
	}
	if keeper != nil {
		keeper.Retain(m.Names())
	}
	for _, one := range m.members {
		m.restore(one)
	}
	aggregate.SetSources(sourcesOf(m.members))
	return m, nil
}

func sourcesOf(members []*member) (out []mirror.Source) {
	for _, one := range members {
		out = append(out, mirror.Source{Name: one.cfg.Name, Store: one.store})
	}
	return out
}

func (m *Manager) newMember(u config.Upstream, cfg *config.Config) (*member, error) {
	one := &member{cfg: u, node: cfg.Node, provenance: cfg.Provenance, store: mirror.NewStore()}
	one.gate = newGate(u, one.store, m.log.With("upstream", u.Name))
	one.gate.keeps = m.keeper != nil
	one.gate.fingerprint = one.fingerprint()
	var err error
	if one.source, err = m.newSource(one); err != nil {
		return nil, err
	}
	one.gate.follows(one.source)
	return one, nil
}

func (m *Manager) newSource(one *member) (Source, error) {
	switch {
	case one.cfg.XDS != nil:
		return newXDS(one.cfg, one.node, one.provenance, one.gate, m.log)
	case one.cfg.File != nil:
		return newFile(one.cfg, one.provenance, one.gate, m.log)
	}
	return nil, fmt.Errorf("upstream %s: neither xds nor file", one.cfg.Name)
}

// importVersion is that of the code that makes what is held of what a source has. It changes
// when the same rules come to give something else: what is on disk is then imported anew.
// Version 2 completes short hosts, and refuses what has no namespace and should.
const importVersion = 2

// fingerprint is of all that what is held depends on besides what the source has.
func (one *member) fingerprint() string { return one.fingerprintOf(importVersion) }

func (one *member) fingerprintOf(version int) string {
	u := one.cfg
	what := struct {
		Version                              int
		Name, ClusterID, Generated, Revision string
		DomainSuffix                         string
		File                                 bool
		Import                               config.Import
		Services                             config.Services
		Rewrite                              config.Rewrite
		Provenance                           config.Provenance
	}{version, u.Name, u.ClusterID, u.Generated, one.node.Revision, u.DomainSuffix, u.File != nil, u.Import, u.Services, u.Rewrite, one.provenance}
	sum := xxh3.HashString128(fmt.Sprintf("%+v", what)).Bytes()
	return base64.RawURLEncoding.EncodeToString(sum[:])
}

// restore puts into force what is kept of a member.
func (m *Manager) restore(one *member) {
	if m.keeper == nil {
		return
	}
	saved := m.keeper.Load(one.cfg.Name)
	one.gate.without = saved.Meta.ServeWithout
	var out []mirror.Key
	saved.Records, out = m.admitted(one, saved.Records)
	one.gate.forgetKept(out)
	if len(saved.Records) > 0 || saved.Meta.Synced || saved.Meta.Frozen != nil {
		m.log.Info("serving what is kept on disk, until the upstream has synced", "upstream", one.cfg.Name,
			"resources", len(saved.Records), "lastContact", saved.Meta.LastContact, "frozen", saved.Meta.Frozen != nil)
		one.source.restore(saved)
		// What was frozen may be of rules before those that it was written down with.
		one.source.adopt(saved.Records, saved.Meta.Fingerprint == one.gate.fingerprint && saved.Meta.Frozen == nil)
	}
	m.keeper.Follow(one.cfg.Name, one.gate)
}

// admitted returns the records of a disk that may be put into force, and the keys of the
// others.
func (m *Manager) admitted(one *member, records []state.Record) (admitted []state.Record, others []mirror.Key) {
	for _, r := range records {
		if one.source.admits(r) {
			continue
		}
		others = append(others, r.Resource.Key())
		m.log.Warn("kept resource is not served", "upstream", one.cfg.Name, "resource", r.Resource.Key(),
			"reason", "it has no namespace, and import.namespaces includes only some")
	}
	if len(others) > 0 {
		records = slices.DeleteFunc(slices.Clone(records), func(r state.Record) bool { return !one.source.admits(r) })
	}
	return records, others
}

// close frees what sources that will not run hold.
func (m *Manager) close() {
	for _, one := range m.members {
		one.source.free()
	}
}

// Run runs every source until ctx ends. It is called once.
func (m *Manager) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	m.mu.Lock()
	run := func(all ...func(context.Context) error) (stop func()) {
		ctx, cancel := context.WithCancel(ctx)
		var running sync.WaitGroup
		running.Add(len(all))
		for _, f := range all {
			g.Go(func() error { defer running.Done(); return f(ctx) })
		}
		return func() { cancel(); running.Wait() }
	}
	m.start = func(one *member) {
		if one.stopAll == nil {
			one.stopAll = run(one.gate.run)
		}
		one.stop = run(one.source.Run)
	}
	for _, one := range m.members {
		m.start(one)
	}
	m.mu.Unlock()
	g.Go(func() error { // members may come and go until then
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

// Apply makes the upstreams those of another config: added, removed, put into another order,
// or under other rules. The streams of upstreams that are the same stay as they are, and
// what the others gave stays in force until they say otherwise. An error says that nothing
// has changed.
func (m *Manager) Apply(cfg *config.Config) error {
	m.applying.Lock()
	defer m.applying.Unlock()
	m.mu.Lock()
	old := m.members
	start := m.start
	m.mu.Unlock()
	if start == nil {
		return errors.New("the upstreams do not run")
	}
	type change struct {
		one  *member
		next *member // with another source; nil: as it was, or only with another policy
		cfg  config.Upstream
	}
	var changes []change
	var errs *multierror.Error
	for _, u := range cfg.Upstreams {
		i := slices.IndexFunc(old, func(one *member) bool { return one.cfg.Name == u.Name })
		c := change{cfg: u}
		var err error
		switch {
		case i < 0:
			c.next, err = m.newMember(u, cfg)
		default:
			c.one = old[i]
			if !sameSource(c.one.cfg, u) {
				next := *c.one
				next.cfg = u
				next.source, err = m.newSource(&next)
				c.next = &next
			}
		}
		if err != nil {
			errs = multierror.Append(errs, err)
			continue
		}
		changes = append(changes, c)
		// At the start one upstream's certificate must not keep the others from being served. A
		// config that is taken over has to be right.
		if c.next != nil {
			if err := c.next.source.check(); err != nil {
				errs = multierror.Append(errs, err)
			}
		}
	}
	if err := errs.ErrorOrNil(); err != nil {
		for _, c := range changes {
			if c.next != nil {
				c.next.source.free()
			}
		}
		return err
	}

	var gone []*member
	for _, one := range old {
		if slices.ContainsFunc(changes, func(c change) bool { return c.one == one }) {
			continue
		}
		gone = append(gone, one)
	}
	var members []*member
	for _, c := range changes {
		switch {
		case c.one == nil:
			m.log.Info("upstream added", "upstream", c.cfg.Name)
			members = append(members, c.next)
		case c.next == nil:
			members = append(members, c.one)
		default:
			m.log.Info("upstream changed; what it gave stays in force until it says otherwise", "upstream", c.cfg.Name)
			c.one.stop()
			next := c.next
			before := next.gate.fingerprint
			now := next.fingerprint()
			next.gate.contact(false) // until the new one is
			next.source.adopt(c.one.source.kept(), before == now)
			next.gate.setFingerprint(now)
			next.gate.follows(next.source)
			if next.gate.setPolicy(c.cfg) {
				_ = next.source.restateAll(nil) // only thawing can fail
			}
			start(next)
			members = append(members, next)
		}
	}
	m.aggregate.SetSources(sourcesOf(members))
	m.mu.Lock()
	for i, c := range changes {
		one := members[i]
		one.cfg = c.cfg
		one.source.setLimits(c.cfg)
	}
	for i, c := range changes {
		members[i].added = members[i].added || c.one == nil && !m.first.released
	}
	m.first.clusters = clustersOf(cfg.Views)
	m.members = members
	m.mu.Unlock()
	for i, c := range changes {
		one := members[i]
		if one.gate.setPolicy(c.cfg) {
			_ = one.source.restateAll(nil) // only thawing can fail
		}
		if c.one == nil {
			if m.keeper != nil {
				m.keeper.Follow(c.cfg.Name, one.gate)
			}
			start(one)
		}
	}
	for _, one := range gone {
		m.log.Info("upstream removed, with all that it gave", "upstream", one.cfg.Name)
		one.stop()
		one.stopAll()
		if m.keeper != nil {
			m.keeper.Unfollow(one.cfg.Name, true)
		}
	}
	return nil
}

// sameSource reports whether two configs differ in nothing that a source has to be made anew
// for.
func sameSource(a, b config.Upstream) bool {
	for _, u := range []*config.Upstream{&a, &b} {
		u.Guard, u.Staleness, u.Required, u.FirstSync = config.Guard{}, config.Staleness{}, false, ""
		u.Limits = config.Limits{MaxResponseBytes: u.Limits.MaxResponseBytes}
	}
	return reflect.DeepEqual(a, b)
}

// member returns the upstream of a name.
func (m *Manager) member(name string) (*member, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var names []string
	for _, one := range m.members {
		if one.cfg.Name == name {
			return one, nil
		}
		names = append(names, one.cfg.Name)
	}
	return nil, fmt.Errorf("%w %q: there are %s", ErrUnknownUpstream, name, strings.Join(names, ", "))
}

func (m *Manager) sources() []Source {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := make([]Source, 0, len(m.members))
	for _, one := range m.members {
		out = append(out, one.source)
	}
	return out
}

// Names returns the names of the upstreams, in order of priority.
func (m *Manager) Names() (names []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, one := range m.members {
		names = append(names, one.cfg.Name)
	}
	return names
}

// Trace returns what became of a key in every source, in order of priority.
func (m *Manager) Trace(key mirror.Key) []Trace {
	var out []Trace
	for _, s := range m.sources() {
		out = append(out, s.Trace(key)...)
	}
	return out
}

// LeftOut returns what is not imported, by source in order of priority.
func (m *Manager) LeftOut() []LeftOut {
	var out []LeftOut
	for _, s := range m.sources() {
		out = append(out, s.LeftOut()...)
	}
	return out
}

// Status returns the status of every source, in order of priority.
func (m *Manager) Status() []Status {
	first := m.firstSyncs() // before, so that what has synced meanwhile is said to have
	sources := m.sources()
	out := make([]Status, 0, len(sources))
	for _, s := range sources {
		st := s.Status()
		if !st.Synced {
			st.FirstSync = first[st.Name]
		}
		out = append(out, st)
	}
	return out
}
