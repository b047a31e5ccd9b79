package mirror

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"sync"
)

// Store is a ConfigStore in memory: the resources of one source. Each Aggregate that merges it
// learns of every change. All its methods may be called from any goroutine.
type Store struct {
	synced chan struct{}

	// mu guards all below.
	mu        sync.RWMutex
	byKind    map[Kind]map[string]*Resource // by full name
	followers []*queue                      // of the Aggregates
}

var _ ConfigStore = (*Store)(nil)

// NewStore returns an empty store that is not synced.
func NewStore() *Store {
	return &Store{byKind: map[Kind]map[string]*Resource{}, synced: make(chan struct{})}
}

// follow makes the store mark its changes in a queue, unfollow ends that.
func (s *Store) follow(q *queue) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.followers = append(s.followers, q)
}

func (s *Store) unfollow(q *queue) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.followers = slices.DeleteFunc(s.followers, func(f *queue) bool { return f == q })
}

func (s *Store) mark(r *Resource) {
	for _, q := range s.followers {
		q.mark(r.kind(), r.name)
	}
}

// Get implements ConfigStore.
func (s *Store) Get(key Key) *Resource {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.byKind[key.Kind][key.FullName()]
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

// Put stores r whether or not its key is taken. It returns the stored resource, and whether
// clients see a change. Equal content is never held twice: the store keeps the bytes that it
// has, and takes over the source's version and the cluster.
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

// Remove removes the resource with that key, and reports whether there was one.
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
		s.mark(r)
	}
}

func (s *Store) remove(old *Resource) {
	byName := s.byKind[old.Kind()]
	delete(byName, old.name)
	if len(byName) == 0 {
		delete(s.byKind, old.Kind())
	}
	s.mark(old)
}

// SetSynced tells that the store has the initial content of its source.
func (s *Store) SetSynced() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.HasSynced() {
		return
	}
	close(s.synced)
	for _, q := range s.followers {
		q.poke()
	}
}

// Synced returns a channel that SetSynced closes.
func (s *Store) Synced() <-chan struct{} { return s.synced }

// HasSynced reports whether SetSynced was called.
func (s *Store) HasSynced() bool { return isClosed(s.synced) }
