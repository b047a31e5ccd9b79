package mirror

import (
	"context"
	"iter"
	"slices"
	"strings"
	"sync"
	"unique"
)

// queue holds the keys with a copy that may have changed. A key that is marked again while it
// waits keeps its place, so the queue is no longer than the number of keys, and of the copies that
// stores begin with.
type queue struct {
	wake chan struct{} // one slot: there is something to do

	// mu guards all below but initial, which only the goroutine that handles the keys uses.
	mu sync.Mutex
	// waiting has the Store that has marked a key, or nil; also has those that have after it.
	waiting map[ref]*Store
	also    map[ref][]*Store
	order   []mark // those from head on
	head    int
	// queued and handled count keys.
	queued, handled uint64
	waiters         []*waiter
	// initial waits for the initial content, and closes synced; nil until setInitial.
	initial *waiter
	synced  chan struct{}
}

// ref is a Key in the form of the indexes.
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

// mark is a key in the queue. by is the Store that begins with a copy of it; nil: waiting has the
// stores that have marked the key.
type mark struct {
	ref
	by *Store
}

// waiter waits until that many keys are handled.
type waiter struct {
	handled uint64
	done    chan struct{} // closed then
}

func newQueue() *queue {
	return &queue{wake: make(chan struct{}, 1), waiting: map[ref]*Store{}, also: map[ref][]*Store{}, synced: make(chan struct{})}
}

// mark queues a key. by is the Store whose copy may have changed, nil for none.
func (q *queue) mark(k ref, by *Store) {
	q.mu.Lock()
	switch first, waits := q.waiting[k]; {
	case !waits:
		q.push(mark{ref: k})
		q.waiting[k] = by
	case first == nil:
		q.waiting[k] = by
	case by != nil && by != first && !slices.Contains(q.also[k], by):
		q.also[k] = append(q.also[k], by)
	}
	q.mu.Unlock()
	q.poke()
}

// begin queues the keys of resources with which a Store begins. They are not looked up: a key that
// waits already is merged twice, which makes no difference.
func (q *queue) begin(with iter.Seq[*Resource], by *Store) {
	q.mu.Lock()
	for r := range with {
		q.push(mark{r.ref(), by})
	}
	q.mu.Unlock()
	q.poke()
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

// keptRoom is for how many keys an empty queue keeps room, or it would make it again and again during
// a start.
const keptRoom = 4096

// poke wakes the goroutine that handles the keys.
func (q *queue) poke() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// pop moves the keys that wait longest to batch, as far as it has room.
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
		// They would otherwise stay as large as the largest burst was.
		q.order, q.head, q.waiting, q.also = nil, 0, map[ref]*Store{}, map[ref][]*Store{}
	default:
		q.order, q.head = q.order[:0], 0
	}
	return batch
}

// done counts n handled keys.
func (q *queue) done(n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.handled += uint64(n)
	q.release()
}

// release ends the wait of those whose keys are handled. The caller holds mu.
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

// setInitial makes the keys queued so far the initial content.
func (q *queue) setInitial() { q.initial = q.wait(q.synced) }

// extendInitial adds the keys queued so far to initial content that is not handled yet.
func (q *queue) extendInitial() {
	if q.initial == nil {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.initial.handled = q.queued
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

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
