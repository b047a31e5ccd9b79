package mirror

import (
	"context"
	"errors"
	"slices"
	"sync"
	"unique"
)

// events queues keys that have changed and tells handlers about them, one at a
// time. A key that changes again while it waits keeps its place, and the handlers
// see only the difference between what they were last told and what there is when
// its turn comes. So the queue holds at most as many entries as there are keys.
type events struct {
	wake chan struct{} // one slot: something is queued

	// mu guards all below.
	mu       sync.Mutex
	running  bool
	handlers []registration
	touched  []func(batch []queued)
	panicked []func(Key, *Panic)
	pending  map[eventKey]*Resource // what the handlers last saw; nil when nothing
	order    []eventKey
	// queued and handled count keys. The initial content has been told once handled
	// reaches syncAt.
	queued, handled uint64
	syncAt          uint64
	syncKnown       bool
	waiters         []waiter
}

// waiter is told when that many keys have been handled.
type waiter struct {
	handled uint64
	done    chan struct{} // closed then
}

type eventKey struct {
	kind unique.Handle[Kind]
	name string // full name
}

type registration struct {
	kind Kind // zero: all
	h    Handler
}

func (e *events) init() {
	e.wake = make(chan struct{}, 1)
	e.pending = map[eventKey]*Resource{}
}

func (e *events) register(kind Kind, h Handler) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.running {
		return ErrRunning
	}
	e.handlers = append(e.handlers, registration{kind, h})
	return nil
}

// onTouched adds a function that is told of every key that was written to since it
// was last told, also when nothing has come of it. Whoever reads the store by itself
// needs that: it may have seen what was there in between. The batch is the function's
// for the time of the call only.
func (e *events) onTouched(f func(batch []queued)) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.running {
		return ErrRunning
	}
	e.touched = append(e.touched, f)
	return nil
}

// onPanic adds a function that is told of panics while a key was handled.
func (e *events) onPanic(f func(Key, *Panic)) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.running {
		return ErrRunning
	}
	e.panicked = append(e.panicked, f)
	return nil
}

// report tells of a panic while a key was handled. Nobody is added to those who are told
// once the events run.
func (e *events) report(k eventKey, p *Panic) {
	key, _ := keyOf(k.kind.Value(), k.name)
	for _, f := range e.panicked {
		f(key, p)
	}
}

// mark queues a key whose content was old until now.
func (e *events) mark(kind unique.Handle[Kind], name string, old *Resource) {
	e.mu.Lock()
	k := eventKey{kind, name}
	if _, waiting := e.pending[k]; !waiting {
		e.pending[k] = old
		e.order = append(e.order, k)
		e.queued++
	}
	e.mu.Unlock()
	e.signal()
}

// markAll queues the keys of a batch, of whose content nothing is noted.
func (e *events) markAll(batch []queued) {
	e.mu.Lock()
	for _, q := range batch {
		if _, waiting := e.pending[q.eventKey]; !waiting {
			e.pending[q.eventKey] = nil
			e.order = append(e.order, q.eventKey)
			e.queued++
		}
	}
	e.mu.Unlock()
	e.signal()
}

func (e *events) signal() {
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// setSynced says that what is queued now completes the initial content.
func (e *events) setSynced() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.syncKnown {
		e.syncKnown, e.syncAt = true, e.queued
	}
}

// extendSync says that what is queued now is part of the initial content, if that has not
// been told yet.
func (e *events) extendSync() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.syncKnown && e.handled < e.syncAt {
		e.syncAt = e.queued
	}
}

func (e *events) hasSynced() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.syncKnown && e.handled >= e.syncAt
}

// caughtUp waits until what is queued now has been told to the handlers, or ctx ends.
func (e *events) caughtUp(ctx context.Context) error {
	e.mu.Lock()
	if e.handled >= e.queued {
		e.mu.Unlock()
		return nil
	}
	w := waiter{e.queued, make(chan struct{})}
	e.waiters = append(e.waiters, w)
	e.mu.Unlock()
	select {
	case <-w.done:
		return nil
	case <-ctx.Done():
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.waiters = slices.DeleteFunc(e.waiters, func(o waiter) bool { return o == w })
	return ctx.Err()
}

// queued is a key with the two sides of its event.
type queued struct {
	eventKey
	old, cur *Resource
	// settled is, in an Aggregate, how cur came about when there are several copies.
	settled *Settlement
}

// batchLen is how many keys are taken from the queue at once, so that locks are taken
// once for many.
const batchLen = 128

// run delivers events until ctx ends. next moves keys from the queue to a batch (see
// pop), which stays empty when nothing is queued.
func (e *events) run(ctx context.Context, next func(batch []queued) []queued) error {
	e.mu.Lock()
	if e.running {
		e.mu.Unlock()
		return errors.New("mirror: Run was called twice")
	}
	e.running = true
	e.mu.Unlock()
	batch := make([]queued, 0, batchLen)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-e.wake:
		}
		for ctx.Err() == nil {
			batch = next(batch[:0])
			if len(batch) == 0 {
				break
			}
			e.deliver(batch)
			clear(batch)
		}
	}
}

// pop moves the keys that have waited longest to batch, as far as that has room, with
// what the handlers last saw of each as old.
func (e *events) pop(batch []queued) []queued {
	e.mu.Lock()
	defer e.mu.Unlock()
	n := min(len(e.order), cap(batch)-len(batch))
	for i, k := range e.order[:n] {
		batch = append(batch, queued{eventKey: k, old: e.pending[k]})
		delete(e.pending, k)
		e.order[i] = eventKey{}
	}
	e.order = e.order[n:]
	if len(e.order) == 0 && cap(e.order) > 64 {
		// Both would otherwise stay as large as the largest burst was.
		e.order, e.pending = nil, map[eventKey]*Resource{}
	}
	return batch
}

// deliver tells of the keys of a batch. Nobody is added to those who are told while it
// runs.
func (e *events) deliver(batch []queued) {
	for _, f := range e.touched {
		f(batch)
	}
	for _, q := range batch {
		e.tell(q)
	}
	e.mu.Lock()
	e.handled += uint64(len(batch))
	e.waiters = slices.DeleteFunc(e.waiters, func(w waiter) bool {
		if w.handled > e.handled {
			return false
		}
		close(w.done)
		return true
	})
	e.mu.Unlock()
}

func (e *events) tell(q queued) {
	var event Event
	switch {
	case q.old.Equal(q.cur):
		return
	case q.old == nil:
		event = EventAdd
	case q.cur == nil:
		event = EventDelete
	default:
		event = EventUpdate
	}
	for _, r := range e.handlers {
		if r.kind == (Kind{}) || r.kind == q.kind.Value() {
			e.call(q, func() { r.h(q.old, q.cur, event) })
		}
	}
}

// call runs a handler for a key. When it panics, that is reported, and the others are told
// all the same.
func (e *events) call(q queued, f func()) {
	defer func() {
		if p := Recovered(recover()); p != nil {
			e.report(q.eventKey, p)
		}
	}()
	f()
}
