package mirror

import (
	"cmp"
	"maps"
	"slices"
)

// Store holds the resources of one source in memory. Each Aggregate that merges it learns of every
// change. Its methods may be called from any goroutine.
type Store struct {
	contents
	followers []*queue // of the Aggregates; under mu
	synced    chan struct{}
}

// NewStore returns an empty store that is not synced.
func NewStore() *Store {
	return &Store{contents: contents{index: index{}}, synced: make(chan struct{})}
}

// follow marks the resources of the store in a queue, and from then on their changes. unfollow ends that.
func (s *Store) follow(q *queue) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.followers = append(s.followers, q)
	for _, byName := range s.index {
		q.begin(maps.Values(byName), s)
	}
}

func (s *Store) unfollow(q *queue) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.followers = slices.DeleteFunc(s.followers, func(f *queue) bool { return f == q })
}

// Put stores r, in place of a resource with the same key. It returns the stored resource, and whether clients
// see a change. If the content is equal, the store keeps its own bytes, with the source version and the
// cluster of r.
func (s *Store) Put(r *Resource) (stored *Resource, changed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.index.get(r.ref())
	if old.Equal(r) {
		r = old.withSourceVersion(r.sourceVersion).withCluster(r.Cluster())
	}
	s.replace(old, r)
	return r, !old.Equal(r)
}

// Begin puts resources into an empty store, at once. Of several with the same key, it takes the last.
func (s *Store) Begin(all []*Resource) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for rest := all; len(rest) > 0; {
		n := 1
		for n < len(rest) && rest[n].kind() == rest[0].kind() {
			n++
		}
		byName := s.index.reserve(rest[0].kind(), n)
		for _, r := range rest[:n] {
			byName[r.name] = r
		}
		rest = rest[n:]
	}
	for _, q := range s.followers {
		q.begin(slices.Values(all), s)
	}
}

// Remove removes the resource with a key, and reports whether there was one.
func (s *Store) Remove(key Key) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.index.get(refOf(key))
	if old == nil {
		return false
	}
	s.replace(old, nil)
	return true
}

// replace replaces old by cur, and marks the key if clients see a change. Either may be nil. The caller holds
// mu.
func (s *Store) replace(old, cur *Resource) {
	s.index.replace(old, cur)
	if old.Equal(cur) {
		return
	}
	cur = cmp.Or(cur, old)
	for _, q := range s.followers {
		q.mark(cur.ref(), s)
	}
}

// SetSynced marks the store as synced: it has the initial content of its source.
func (s *Store) SetSynced() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.HasSynced() {
		return
	}
	close(s.synced)
	for _, q := range s.followers {
		Signal(q.wake)
	}
}

// Synced returns a channel that SetSynced closes.
func (s *Store) Synced() <-chan struct{} { return s.synced }

// HasSynced reports whether SetSynced was called.
func (s *Store) HasSynced() bool { return IsClosed(s.synced) }
