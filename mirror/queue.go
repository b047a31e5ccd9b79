package mirror

import (
	"context"
	"iter"
	"slices"
	"strings"
	"sync"
	"time"
	"unique"
)

// queue holds the keys whose copies may have changed. A key that is marked again keeps its place. So the queue
// is not longer than the number of keys, plus the copies that stores begin with.
type queue struct {
	wake chan struct{} // one slot: keys may wait

	// mu guards all below, except began, which only the goroutine of Run uses.
	mu sync.Mutex
	// waiting has the first Store that has marked a key, or nil. also has the other Stores that have.
	waiting map[ref]*Store
	also    map[ref][]*Store
	order   []mark // the queue begins at head
	head    int
	// queued and handled count keys.
	queued, handled uint64
	waiters         []*waiter
	// synced is closed once the initial content is handled, for which somebody waits once began is set.
	began  bool
	synced chan struct{}
}

// ref is a Key as indexes use it.
type ref struct {
	kind unique.Handle[Kind]
	name string // full name
}

func refOf(key Key) ref { return ref{unique.Make(key.Kind), key.FullName()} }

func (r ref) key() Key {
	if r.kind.Value() == MeshConfig {
		return Key{Kind: r.kind.Value(), Name: r.name}
	}
	namespace, name, _ := strings.Cut(r.name, "/")
	return Key{Kind: r.kind.Value(), Namespace: namespace, Name: name}
}

// mark is a key in the queue. by is set if a Store begins with a copy of the key. Otherwise by is nil, and
// waiting and also have the stores.
type mark struct {
	ref
	by *Store
}

// waiter waits until a number of keys are handled.
type waiter struct {
	handled uint64
	done    chan struct{} // closed when that many are handled
}

func newQueue() *queue {
	return &queue{wake: make(chan struct{}, 1), waiting: map[ref]*Store{}, also: map[ref][]*Store{}, synced: make(chan struct{})}
}

// mark queues a key. by is the Store whose copy may have changed; nil when no copy has.
func (q *queue) mark(k ref, by *Store) {
	defer Signal(q.wake)
	q.mu.Lock()
	defer q.mu.Unlock()
	switch first, waits := q.waiting[k]; {
	case !waits:
		q.push(mark{ref: k})
		q.waiting[k] = by
	case first == nil:
		q.waiting[k] = by
	case by != nil && by != first && !slices.Contains(q.also[k], by):
		q.also[k] = append(q.also[k], by)
	}
}

// begin queues the keys of the first resources of a Store. It does not look whether they wait already: such a
// key is merged twice, with the same result.
func (q *queue) begin(with iter.Seq[*Resource], by *Store) {
	defer Signal(q.wake)
	q.mu.Lock()
	defer q.mu.Unlock()
	for r := range with {
		q.push(mark{r.ref(), by})
	}
}

// push appends a key. The caller holds mu.
func (q *queue) push(k mark) {
	if len(q.order) == cap(q.order) && q.head > len(q.order)/2 {
		n := copy(q.order, q.order[q.head:])
		clear(q.order[n:])
		q.order, q.head = q.order[:n], 0
	}
	q.order = append(q.order, k)
	q.queued++
}

// keptRoom is the number of keys for which an empty queue keeps its memory. During a start, the queue is
// empty often.
const keptRoom = 4096

// pop moves keys from the head of the queue to batch, up to its capacity.
func (q *queue) pop(batch []change) []change {
	q.mu.Lock()
	defer q.mu.Unlock()
	waiting := q.order[q.head:]
	n := min(len(waiting), cap(batch)-len(batch))
	for i, m := range waiting[:n] {
		c := change{ref: m.ref, by: m.by}
		if m.by == nil {
			c.by, c.also = q.waiting[m.ref], q.also[m.ref]
			delete(q.waiting, m.ref)
			delete(q.also, m.ref)
		}
		batch = append(batch, c)
		waiting[i] = mark{}
	}
	switch q.head += n; {
	case q.head < len(q.order):
	case cap(q.order) > keptRoom:
		// Release the memory of a burst.
		q.order, q.head, q.waiting, q.also = nil, 0, map[ref]*Store{}, map[ref][]*Store{}
	default:
		q.order, q.head = q.order[:0], 0
	}
	return batch
}

// done notes that all keys that were popped are handled.
func (q *queue) done() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.handled = q.queued - uint64(len(q.order)-q.head)
	q.release()
}

// clear takes all keys out of the queue.
func (q *queue) clear() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.order, q.head, q.waiting, q.also = nil, 0, map[ref]*Store{}, map[ref][]*Store{}
}

// release ends the waiters whose keys are handled. The caller holds mu.
func (q *queue) release() {
	q.waiters = slices.DeleteFunc(q.waiters, func(w *waiter) bool {
		if w.handled > q.handled {
			return false
		}
		close(w.done)
		return true
	})
}

// wait closes done once the keys queued so far are handled.
func (q *queue) wait(done chan struct{}) *waiter {
	q.mu.Lock()
	defer q.mu.Unlock()
	w := &waiter{q.queued, done}
	q.waiters = append(q.waiters, w)
	q.release()
	return w
}

// extend has those who wait also wait for the keys queued so far.
func (q *queue) extend() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, w := range q.waiters {
		w.handled = q.queued
	}
}

// await waits until the keys queued so far are handled, or ctx ends.
func (q *queue) await(ctx context.Context) error {
	w := q.wait(make(chan struct{}))
	select {
	case <-w.done:
		return nil
	case <-ctx.Done():
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waiters = slices.DeleteFunc(q.waiters, func(o *waiter) bool { return o == w })
	return ctx.Err()
}

// IsClosed reports whether a channel on which nothing is sent is closed.
func IsClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// Sleep waits for d. It returns false if ctx ends first.
func Sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// holders has, for each key, the stores with a copy of it: merging looks into no others. A place is an index
// of sources.
//
// Most keys have one holder: the source of the served resource. They need no entry in several. A store that
// has a new copy has marked the key, and is not a holder until update. A holder may have lost its copy since.
type holders struct {
	sources []Source // in order of priority
	places  []int32  // 0, 1, 2, …: places[n:n+1] are the holders of a key whose only holder is n
	named   map[string]int32
	stores  map[*Store]int32
	several map[unique.Handle[Kind]]map[string][]int32 // sorted, by full name
	looked  func()                                     // for tests: called for each look into a store
}

func newHolders(sources []Source) holders {
	h := holders{sources: slices.Clone(sources), named: map[string]int32{}, stores: map[*Store]int32{}, several: map[unique.Handle[Kind]]map[string][]int32{}}
	for n, s := range h.sources {
		h.places = append(h.places, int32(n)) // as many as there are upstreams
		h.named[s.Name], h.stores[s.Store] = int32(n), int32(n)
	}
	return h
}

// moved returns the holders for other sources. A source takes the place of a former one with the same name.
func (h *holders) moved(sources []Source) holders {
	next := newHolders(sources)
	next.looked = h.looked
	for k, places := range h.entries {
		var now []int32
		for _, p := range places {
			n, ok := next.stores[h.sources[p].Store]
			if !ok {
				n, ok = next.named[h.sources[p].Name]
			}
			if ok {
				now = append(now, n)
			}
		}
		slices.Sort(now)
		next.set(k, slices.Compact(now))
	}
	return next
}

// entries yields the entries of several.
func (h *holders) entries(yield func(k ref, places []int32) bool) {
	for kind, byName := range h.several {
		for name, places := range byName {
			if !yield(ref{kind, name}, places) {
				return
			}
		}
	}
}

func (h *holders) set(k ref, places []int32) {
	if h.several[k.kind] == nil {
		h.several[k.kind] = map[string][]int32{}
	}
	h.several[k.kind][k.name] = places
}

// of returns the places of the holders of a key. served is the resource that is served under it.
func (h *holders) of(k ref, served *Resource) []int32 {
	if places, ok := h.several[k.kind][k.name]; ok {
		return places
	}
	return h.sourceOf(served)
}

// sourceOf returns the place of the source of a served resource.
func (h *holders) sourceOf(served *Resource) []int32 {
	if served != nil {
		if p, ok := h.named[served.Source()]; ok {
			return h.places[p : p+1]
		}
	}
	return nil
}

// update sets the holders of a key: those stores that have a copy, of the former holders and of the stores
// that have marked the key.
func (h *holders) update(c *change, served *Resource) {
	was := h.of(c.ref, served)
	var room [8]int32
	now := append(room[:0], was...)
	if p, ok := h.stores[c.by]; ok {
		now = append(now, p)
	}
	for _, s := range c.also {
		if p, ok := h.stores[s]; ok {
			now = append(now, p)
		}
	}
	slices.Sort(now)
	now = slices.DeleteFunc(slices.Compact(now), func(p int32) bool {
		r := h.copy(c.ref, p)
		c.allocates = c.allocates || r != nil && r.allocates()
		return r == nil
	})
	if !slices.Equal(now, was) {
		h.set(c.ref, slices.Clone(now))
	}
}

// keep keeps the holders of a key when the served resource changes from was to served.
func (h *holders) keep(k ref, was, served *Resource) {
	if places := h.of(k, was); !slices.Equal(places, h.sourceOf(served)) {
		h.set(k, places)
	} else {
		delete(h.several[k.kind], k.name)
	}
}

// copy returns the copy of a key in a place, nil when there is none.
func (h *holders) copy(k ref, place int32) *Resource {
	if h.looked != nil {
		h.looked()
	}
	return h.sources[place].Store.named(k)
}

// Signal gives a channel with room for one element that element, unless it has it already. It does not wait.
func Signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
