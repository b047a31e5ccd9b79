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

// run delivers events until ctx ends. next removes a key from the queue (see pop)
// and returns the two sides of its event; ok is false when nothing is queued.
func (e *events) run(ctx context.Context, next func() (kind Kind, old, cur *Resource, ok bool)) error {
	e.mu.Lock()
	if e.running {
		e.mu.Unlock()
		return errors.New("mirror: Run was called twice")
	}
	e.running = true
	handlers := e.handlers
	e.mu.Unlock()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-e.wake:
		}
		for ctx.Err() == nil {
			kind, old, cur, ok := next()
			if !ok {
				break
			}
			deliver(handlers, kind, old, cur)
			e.done()
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

func (e *events) done() {
	e.mu.Lock()
	e.handled++
	e.mu.Unlock()
}

func deliver(handlers []registration, kind Kind, old, cur *Resource) {
	var event Event
	switch {
	case old.Equal(cur):
		return
	case old == nil:
		event = EventAdd
	case cur == nil:
		event = EventDelete
	default:
		event = EventUpdate
	}
	for _, r := range handlers {
		if r.kind == (Kind{}) || r.kind == kind {
			r.h(old, cur, event)
		}
	}
}
