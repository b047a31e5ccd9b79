package mirror

import (
	"context"
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
// several sources have a key, the first in the order of SetSources is served and
// the others are shadowed.
//
// Its events speak of the merged view. A change in a shadowed copy is no event;
// when the served copy goes away while a shadowed one remains, the event is an
// update to that one.
//
// All methods may be called from any goroutine.
type Aggregate struct {
	events events

	// mu guards all below. merged holds what the handlers were told.
	mu      sync.RWMutex
	sources []Source
	merged  map[Kind]map[string]*Resource
}

// NewAggregate returns an Aggregate over no sources.
func NewAggregate() *Aggregate {
	a := &Aggregate{merged: map[Kind]map[string]*Resource{}}
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
			if has, ok := s.Cache.(interface{ Kinds() []Kind }); ok {
				for _, kind := range has.Kinds() {
					for _, r := range s.Cache.List(kind, "") {
						a.events.mark(r.kind(), r.name, nil)
					}
				}
			}
		}
	}
	old := a.sources
	a.sources = slices.Clone(sources)
	if slices.Equal(old, a.sources) {
		return nil
	}
	for _, byName := range a.merged {
		for _, r := range byName {
			a.events.mark(r.kind(), r.name, nil)
		}
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
		batch[i].old, batch[i].cur = a.merge(batch[i].kind.Value(), batch[i].name)
	}
	return batch
}

// merge finds the copy to serve under a key, puts it into the merged view, and
// returns it with what was there before.
func (a *Aggregate) merge(kind Kind, name string) (old, cur *Resource) {
	key, ok := keyOf(kind, name)
	if ok {
		for _, s := range a.sources {
			if cur = s.Cache.Get(key); cur != nil {
				break
			}
		}
	}
	byName := a.merged[kind]
	old = byName[name]
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
	return old, cur
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

// Providers returns every source's copy of a key, in order of priority: the first
// is the one that is served, the others are shadowed.
func (a *Aggregate) Providers(key Key) []Provider {
	a.mu.RLock()
	sources := a.sources
	a.mu.RUnlock()
	var out []Provider
	for _, s := range sources {
		if r := s.Cache.Get(key); r != nil {
			out = append(out, Provider{s.Name, r})
		}
	}
	return out
}

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
