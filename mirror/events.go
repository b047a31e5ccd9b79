package mirror

import (
	"context"
	"errors"
	"sync"
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
	touched  []func(kind Kind, name string)
	pending  map[eventKey]*Resource // what the handlers last saw; nil when nothing
	order    []eventKey
	// queued and handled count keys. The initial content has been told once handled
	// reaches syncAt.
	queued, handled uint64
	syncAt          uint64
	syncKnown       bool
}

type eventKey struct {
	kind Kind
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
// needs that: it may have seen what was there in between.
func (e *events) onTouched(f func(kind Kind, name string)) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.running {
		return ErrRunning
	}
	e.touched = append(e.touched, f)
	return nil
}

// mark queues a key whose content was old until now.
func (e *events) mark(kind Kind, name string, old *Resource) {
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

func (e *events) hasSynced() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.syncKnown && e.handled >= e.syncAt
}

// queued is a key with the two sides of its event.
type queued struct {
	eventKey
	old, cur *Resource
}

// run delivers events until ctx ends. next removes a key from the queue (see pop);
// ok is false when nothing is queued.
func (e *events) run(ctx context.Context, next func() (q queued, ok bool)) error {
	e.mu.Lock()
	if e.running {
		e.mu.Unlock()
		return errors.New("mirror: Run was called twice")
	}
	e.running = true
	e.mu.Unlock()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-e.wake:
		}
		for ctx.Err() == nil {
			q, ok := next()
			if !ok {
				break
			}
			e.deliver(q)
		}
	}
}

// pop removes the key that has waited longest and returns it with what the
// handlers last saw of it.
func (e *events) pop() (k eventKey, noted *Resource, ok bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.order) == 0 {
		return eventKey{}, nil, false
	}
	k = e.order[0]
	noted = e.pending[k]
	delete(e.pending, k)
	e.order[0] = eventKey{}
	e.order = e.order[1:]
	if len(e.order) == 0 && cap(e.order) > 64 {
		// Both would otherwise stay as large as the largest burst was.
		e.order, e.pending = nil, map[eventKey]*Resource{}
	}
	return k, noted, true
}

// deliver tells of one key. Nobody is added to those who are told while it runs.
func (e *events) deliver(q queued) {
	for _, f := range e.touched {
		f(q.kind, q.name)
	}
	e.tell(q)
	e.mu.Lock()
	e.handled++
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
		if r.kind == (Kind{}) || r.kind == q.kind {
			r.h(q.old, q.cur, event)
		}
	}
}
