package mirror

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
)

// Source is a store that the Aggregate merges, by the name of its upstream.
type Source struct {
	Name  string
	Cache ConfigStoreCache
}

// Provider is one source's copy of a resource.
type Provider struct {
	Source   string
	Resource *Resource
}

// Aggregate is the read-only ConfigStoreCache over many: the merged view. Where
// several sources have a key, a Policy settles what is served. Without one it is the copy
// of the first source in the order of SetSources, and the others are shadowed.
//
// Its events speak of the merged view. A change in a shadowed copy is no event;
// when the served copy goes away while a shadowed one remains, the event is an
// update to that one.
//
// All methods may be called from any goroutine.
type Aggregate struct {
	events events

	// mu guards all below. merged holds what the handlers were told.
	mu       sync.RWMutex
	sources  []Source
	policies map[Kind]Policy
	others   Policy // of kinds that are not in policies; nil: first
	groups   map[Kind]*groups
	merged   map[Kind]map[string]*Resource
}

// NewAggregate returns an Aggregate over no sources.
func NewAggregate() *Aggregate {
	a := &Aggregate{merged: map[Kind]map[string]*Resource{}, groups: map[Kind]*groups{}}
	a.events.init()
	return a
}

// SetSources makes sources, in order of priority, the ones that are merged. It may
// be called again at any time: what is no longer among them leaves the merged view,
// and a changed order changes what is served, as events. A cache that was not among
// the sources before must not run yet, because the Aggregate registers a handler
// with it.
func (a *Aggregate) SetSources(sources []Source) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, s := range sources {
		if !a.has(s) {
			if err := a.follow(s.Cache); err != nil {
				return err
			}
		}
	}
	if slices.Equal(a.sources, sources) {
		return nil
	}
	a.markEverything() // also what only a source has that is no longer among them
	a.sources = slices.Clone(sources)
	a.markEverything()
	return nil
}

// SetPolicies says how copies are merged, by kind. others is the Policy of kinds that are not
// among them, but for MeshConfig, of which the first is served; nil serves the first of all.
// It may be called again at any time.
func (a *Aggregate) SetPolicies(policies map[Kind]Policy, others Policy) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.policies, a.others, a.groups = maps.Clone(policies), others, map[Kind]*groups{}
	a.markEverything()
}

// markEverything has every key settled anew that is served or that a source has.
func (a *Aggregate) markEverything() {
	for _, byName := range a.merged {
		for _, r := range byName {
			a.events.mark(r.kind(), r.name, nil)
		}
	}
	for _, s := range a.sources {
		for _, kind := range kindsIn(s.Cache) {
			for _, r := range s.Cache.List(kind, "") {
				a.events.mark(r.kind(), r.name, nil)
			}
		}
	}
}

// kindsIn returns the kinds that a source has, as far as it can tell.
func kindsIn(c ConfigStoreCache) []Kind {
	if has, ok := c.(interface{ Kinds() []Kind }); ok {
		return has.Kinds()
	}
	return nil
}

func (a *Aggregate) has(s Source) bool {
	return slices.ContainsFunc(a.sources, func(have Source) bool { return have.Cache == s.Cache })
}

// follow makes the Aggregate look at every key that a source writes to. Of a source
// that can not tell of those, it looks at the keys that there are events of.
func (a *Aggregate) follow(c ConfigStoreCache) error {
	if s, ok := c.(interface {
		onTouched(func(batch []queued)) error
	}); ok {
		return s.onTouched(a.events.markAll)
	}
	return c.RegisterEventHandler(Kind{}, func(old, cur *Resource, _ Event) {
		if cur == nil {
			cur = old
		}
		a.events.mark(cur.kind(), cur.name, nil)
	})
}

// nextEvents settles what is served under the next keys that may have changed.
func (a *Aggregate) nextEvents(batch []queued) []queued {
	a.mu.Lock()
	defer a.mu.Unlock()
	batch = a.events.pop(batch)
	for i := range batch {
		q := &batch[i]
		a.mergeNext(q)
	}
	return batch
}

// mergeNext is merge for a key of the queue. When it panics, what is served under the key
// stays as it is until a copy changes.
func (a *Aggregate) mergeNext(q *queued) {
	defer func() {
		if p := Recovered(recover()); p != nil {
			served := a.merged[q.kind.Value()][q.name]
			q.old, q.cur, q.settled = served, served, nil
			a.events.report(q.eventKey, p)
		}
	}()
	q.old, q.cur, q.settled = a.merge(q.kind.Value(), q.name)
}

// merge finds what to serve under a key, puts it into the merged view, and returns it with
// what was there before and, when there are several copies, how it came about.
func (a *Aggregate) merge(kind Kind, name string) (old, cur *Resource, settled *Settlement) {
	_, plain := a.policy(kind).(first)
	if key, ok := keyOf(kind, name); ok {
		if !plain {
			a.regroup(key)
		}
		cur, settled = a.resolve(key, everything)
	}
	byName := a.merged[kind]
	old = byName[name]
	if cur != nil && cur != old && old.Equal(cur) && !plain {
		// A Policy may make a new resource each time: equal content is never held twice.
		cur = old.withSourceVersion(cur.sourceVersion)
	}
	switch {
	case cur != nil:
		if byName == nil {
			byName = map[string]*Resource{}
			a.merged[kind] = byName
		}
		if old != nil {
			delete(byName, name) // its key would keep the old resource's name alive
		}
		byName[cur.name] = cur
	case old != nil:
		delete(byName, name)
		if len(byName) == 0 {
			delete(a.merged, kind)
		}
	}
	return old, cur, settled
}

func keyOf(kind Kind, name string) (Key, bool) {
	if kind == MeshConfig {
		return Key{Kind: kind, Name: name}, true
	}
	namespace, name, err := ParseFullName(name)
	return Key{Kind: kind, Namespace: namespace, Name: name}, err == nil
}

// Get implements ConfigStore.
func (a *Aggregate) Get(key Key) *Resource {
	a.mu.RLock()
	defer a.mu.RUnlock()
	return a.merged[key.Kind][key.FullName()]
}

// List implements ConfigStore.
func (a *Aggregate) List(kind Kind, namespace string) []*Resource {
	a.mu.RLock()
	defer a.mu.RUnlock()
	return list(a.merged[kind], namespace)
}

// Kinds returns the kinds of which there are resources, in sending order.
func (a *Aggregate) Kinds() []Kind {
	a.mu.RLock()
	defer a.mu.RUnlock()
	return kinds(a.merged)
}

// Counts returns the number of merged resources by kind.
func (a *Aggregate) Counts() map[Kind]int {
	a.mu.RLock()
	defer a.mu.RUnlock()
	return counts(a.merged)
}

// Keys returns every key of a kind that a source has, sorted by full name: also those of
// which nothing is served.
func (a *Aggregate) Keys(kind Kind) []Key {
	a.mu.RLock()
	sources := a.sources
	a.mu.RUnlock()
	var out []Key
	for _, s := range sources {
		for _, r := range s.Cache.List(kind, "") {
			out = append(out, r.Key())
		}
	}
	slices.SortFunc(out, func(a, b Key) int { return cmp.Compare(a.FullName(), b.FullName()) })
	return slices.Compact(out)
}

// SourceKinds returns every kind of which a source has anything, in sending order.
func (a *Aggregate) SourceKinds() []Kind {
	a.mu.RLock()
	sources := a.sources
	a.mu.RUnlock()
	all := map[Kind]struct{}{}
	for _, s := range sources {
		for _, kind := range kindsIn(s.Cache) {
			all[kind] = struct{}{}
		}
	}
	return slices.SortedFunc(maps.Keys(all), CompareKinds)
}

// Providers returns every source's copy of a key, in order of priority.
func (a *Aggregate) Providers(key Key) []Provider {
	a.mu.RLock()
	defer a.mu.RUnlock()
	return a.copies(key, everything)
}

// RegisterTouchHandler adds a handler that is told of every key of which a copy may have
// changed, also of a shadowed one; and, when several sources have the key, how it was
// settled what is served. It fails with ErrRunning once Run was called. It runs as event
// handlers do, before those, and must not block.
func (a *Aggregate) RegisterTouchHandler(h func(key Key, s *Settlement)) error {
	return a.events.onTouched(func(batch []queued) {
		for _, q := range batch {
			if key, ok := keyOf(q.kind.Value(), q.name); ok {
				a.events.call(q, func() { h(key, q.settled) })
			}
		}
	})
}

// RegisterPanicHandler adds a handler that is told of each panic while a key was merged or a
// handler was told of it. It fails with ErrRunning once Run was called. It may be called from
// any goroutine, and must call nothing of the Aggregate.
func (a *Aggregate) RegisterPanicHandler(h func(key Key, p *Panic)) error { return a.events.onPanic(h) }

// Create implements ConfigStore: it fails with ErrReadOnly.
func (a *Aggregate) Create(*Resource) error { return ErrReadOnly }

// Update implements ConfigStore: it fails with ErrReadOnly.
func (a *Aggregate) Update(*Resource, string) error { return ErrReadOnly }

// Delete implements ConfigStore: it fails with ErrReadOnly.
func (a *Aggregate) Delete(Key, string) error { return ErrReadOnly }

// RegisterEventHandler implements ConfigStoreCache.
func (a *Aggregate) RegisterEventHandler(kind Kind, h Handler) error {
	return a.events.register(kind, h)
}

// Run implements ConfigStoreCache. It runs the merging, not the sources: each of
// those is run by its owner.
func (a *Aggregate) Run(ctx context.Context) error { return a.events.run(ctx, a.nextEvents) }

// CaughtUp waits until the merged view shows what the sources had when it was called, as
// SetSources and SetPolicies said until then, or ctx ends: then it returns the error of ctx.
// The Aggregate and its sources have to run.
func (a *Aggregate) CaughtUp(ctx context.Context) error {
	a.mu.RLock()
	sources := a.sources
	a.mu.RUnlock()
	for _, s := range sources {
		if store, ok := s.Cache.(*Store); ok {
			if err := store.events.caughtUp(ctx); err != nil {
				return err
			}
		}
	}
	return a.events.caughtUp(ctx)
}

// HasSynced implements ConfigStoreCache: every source has synced, and all that
// they gave until then is merged.
func (a *Aggregate) HasSynced() bool {
	if a.events.hasSynced() {
		return true
	}
	a.mu.RLock()
	sources := a.sources
	a.mu.RUnlock()
	for _, s := range sources {
		if !s.Cache.HasSynced() {
			return false
		}
	}
	a.events.setSynced()
	return a.events.hasSynced()
}
