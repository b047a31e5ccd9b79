package mirror

import (
	"fmt"
	"slices"
)

// Store is a ConfigStore in memory: the resources of one source. Each Aggregate that merges it
// learns of every change. All its methods may be called from any goroutine.
type Store struct {
	contents
	followers []*queue // of the Aggregates; under mu
	synced    chan struct{}
}

var _ ConfigStore = (*Store)(nil)

// NewStore returns an empty store that is not synced.
func NewStore() *Store {
	return &Store{contents: contents{index: index{}}, synced: make(chan struct{})}
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

// Create implements ConfigStore.
func (s *Store) Create(r *Resource) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.index[r.Kind()][r.name] != nil {
		return fmt.Errorf("create %s: %w", r.Key(), ErrExists)
	}
	s.replace(nil, r)
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
	s.replace(old, r)
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
	s.replace(old, nil)
	return nil
}

func (s *Store) expect(verb string, key Key, version string) (*Resource, error) {
	old := s.index.get(key)
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
	old := s.index[r.Kind()][r.name]
	if old.Equal(r) {
		r = old.withSourceVersion(r.sourceVersion).withCluster(r.Cluster())
	}
	s.replace(old, r)
	return r, !old.Equal(r)
}

// Remove removes the resource with that key, and reports whether there was one.
func (s *Store) Remove(key Key) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.index.get(key)
	if old == nil {
		return false
	}
	s.replace(old, nil)
	return true
}

// replace puts cur in the place of old, and marks the key if clients see a change. Either may
// be nil. The caller holds mu.
func (s *Store) replace(old, cur *Resource) {
	s.index.replace(old, cur)
	if old.Equal(cur) {
		return
	}
	if cur == nil {
		cur = old
	}
	for _, q := range s.followers {
		q.mark(cur.kind(), cur.name)
	}
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
