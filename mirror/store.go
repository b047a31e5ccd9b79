package mirror

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
)

// Event says what happened to a resource.
type Event int

// The events, as istiod's model package has them.
const (
	EventAdd Event = iota
	EventUpdate
	EventDelete
)

// String returns "add", "update" or "delete".
func (e Event) String() string {
	switch e {
	case EventAdd:
		return "add"
	case EventUpdate:
		return "update"
	case EventDelete:
		return "delete"
	}
	return fmt.Sprintf("Event(%d)", int(e))
}

// Handler is told of a change. old is nil for an add, cur is nil for a delete.
type Handler func(old, cur *Resource, event Event)

// ConfigStore is a set of resources with unique keys. What Get and List return is
// shared and read-only.
type ConfigStore interface {
	// Get returns nil when there is no such resource.
	Get(key Key) *Resource
	// List returns the resources of a kind, sorted by full name; of one namespace,
	// or of all when namespace is empty.
	List(kind Kind, namespace string) []*Resource
	// Create fails with ErrExists when the key is taken.
	Create(r *Resource) error
	// Update replaces the resource that has r's key. It fails with ErrNotFound when
	// there is none and with ErrConflict when its version is not expectVersion.
	Update(r *Resource, expectVersion string) error
	// Delete removes a resource. It fails as Update does.
	Delete(key Key, expectVersion string) error
}

// ConfigStoreCache is a ConfigStore that tells of its changes.
type ConfigStoreCache interface {
	ConfigStore
	// RegisterEventHandler adds a handler for the events of one kind, or of all
	// kinds when kind is the zero Kind. It fails with ErrRunning once Run was called.
	// Handlers run in the order of their registration, on one goroutine, and must
	// not block. When one runs, the store is at least as new as its event: a later
	// delete may already have overtaken an add.
	RegisterEventHandler(kind Kind, h Handler) error
	// Run delivers events until ctx ends. It is called once.
	Run(ctx context.Context) error
	// HasSynced reports whether the initial content is complete and every handler
	// has been told of it. Once true it stays true.
	HasSynced() bool
}

// Errors of stores, to be checked with errors.Is.
var (
	ErrExists   = errors.New("resource already exists")
	ErrNotFound = errors.New("resource not found")
	ErrConflict = errors.New("resource version conflict")
	ErrRunning  = errors.New("event handlers are to be registered before Run")
	ErrReadOnly = errors.New("the merged view is read-only: change the source")
)

// Store is a ConfigStoreCache in memory that holds what one source gave. All its
// methods may be called from any goroutine.
type Store struct {
	events events

	// mu guards byKind and synced.
	mu     sync.RWMutex
	byKind map[Kind]map[string]*Resource // by full name
	synced bool
}

// NewStore returns an empty store that is not synced.
func NewStore() *Store {
	s := &Store{byKind: map[Kind]map[string]*Resource{}}
	s.events.init()
	return s
}

// Get implements ConfigStore.
func (s *Store) Get(key Key) *Resource {
	return s.get(key.Kind, key.FullName())
}

func (s *Store) get(kind Kind, fullName string) *Resource {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.byKind[kind][fullName]
}

// List implements ConfigStore.
func (s *Store) List(kind Kind, namespace string) []*Resource {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return list(s.byKind[kind], namespace)
}

func list(byName map[string]*Resource, namespace string) []*Resource {
	out := make([]*Resource, 0, len(byName))
	for _, r := range byName {
		if namespace == "" || r.Namespace() == namespace {
			out = append(out, r)
		}
	}
	slices.SortFunc(out, func(a, b *Resource) int { return cmp.Compare(a.name, b.name) })
	return out
}

// Kinds returns the kinds of which the store holds resources, in sending order.
func (s *Store) Kinds() []Kind {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return kinds(s.byKind)
}

func kinds(byKind map[Kind]map[string]*Resource) []Kind {
	return slices.SortedFunc(maps.Keys(byKind), CompareKinds)
}

// Counts returns the number of resources by kind.
func (s *Store) Counts() map[Kind]int {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return counts(s.byKind)
}

func counts(byKind map[Kind]map[string]*Resource) map[Kind]int {
	out := make(map[Kind]int, len(byKind))
	for k, m := range byKind {
		out[k] = len(m)
	}
	return out
}

// Create implements ConfigStore.
func (s *Store) Create(r *Resource) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byKind[r.Kind()][r.name] != nil {
		return fmt.Errorf("create %s: %w", r.Key(), ErrExists)
	}
	s.set(nil, r)
	return nil
}

// Update implements ConfigStore.
func (s *Store) Update(r *Resource, expectVersion string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	old, err := s.expect("update", r.Key(), expectVersion)
	if err != nil {
		return err
	}
	s.set(old, r)
	return nil
}

// Delete implements ConfigStore.
func (s *Store) Delete(key Key, expectVersion string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	old, err := s.expect("delete", key, expectVersion)
	if err != nil {
		return err
	}
	s.remove(old)
	return nil
}

func (s *Store) expect(verb string, key Key, version string) (*Resource, error) {
	old := s.byKind[key.Kind][key.FullName()]
	if old == nil {
		return nil, fmt.Errorf("%s %s: %w", verb, key, ErrNotFound)
	}
	if have := old.Version(); have != version {
		return nil, fmt.Errorf("%s %s: version is %s, expected %s: %w", verb, key, have, version, ErrConflict)
	}
	return old, nil
}

// Put stores r whether or not its key was taken. It returns what is stored now and
// whether that is a change to clients. When the content is the one that is stored
// already, the stored bytes are kept, and only what the source says of it (its own
// version) is taken over: equal content is never held twice.
func (s *Store) Put(r *Resource) (stored *Resource, changed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.byKind[r.Kind()][r.name]
	if old.Equal(r) {
		r = old.withSourceVersion(r.sourceVersion).withCluster(r.Cluster())
	}
	s.set(old, r)
	return r, !old.Equal(r)
}

// Remove removes the resource with that key, if there is one, and reports whether
// there was.
func (s *Store) Remove(key Key) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.byKind[key.Kind][key.FullName()]
	if old == nil {
		return false
	}
	s.remove(old)
	return true
}

func (s *Store) set(old, r *Resource) {
	byName := s.byKind[r.Kind()]
	if byName == nil {
		byName = map[string]*Resource{}
		s.byKind[r.Kind()] = byName
	}
	if old != nil {
		// The map keeps the key it has, and so would keep the old resource's name
		// alive beside the new one's.
		delete(byName, old.name)
	}
	byName[r.name] = r
	if !old.Equal(r) {
		s.events.mark(r.kind(), r.name, old)
	}
}

func (s *Store) remove(old *Resource) {
	byName := s.byKind[old.Kind()]
	delete(byName, old.name)
	if len(byName) == 0 {
		delete(s.byKind, old.Kind())
	}
	s.events.mark(old.kind(), old.name, old)
}

// SetSynced says that the source has given its initial content.
func (s *Store) SetSynced() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.synced {
		s.synced = true
		s.events.setSynced()
	}
}

// HasSynced implements ConfigStoreCache.
func (s *Store) HasSynced() bool { return s.events.hasSynced() }

// RegisterEventHandler implements ConfigStoreCache.
func (s *Store) RegisterEventHandler(kind Kind, h Handler) error {
	return s.events.register(kind, h)
}

// Run implements ConfigStoreCache.
func (s *Store) Run(ctx context.Context) error { return s.events.run(ctx, s.nextEvents) }

// nextEvents reads the queue and the content under one lock: a change between the
// two would be told twice, or as a delete of what nobody was told of.
func (s *Store) nextEvents(batch []queued) []queued {
	s.mu.RLock()
	defer s.mu.RUnlock()
	batch = s.events.pop(batch)
	for i := range batch {
		batch[i].cur = s.byKind[batch[i].kind.Value()][batch[i].name]
	}
	return batch
}

// onTouched lets the Aggregate follow the store.
func (s *Store) onTouched(f func(batch []queued)) error { return s.events.onTouched(f) }
