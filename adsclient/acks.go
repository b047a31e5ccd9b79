package adsclient

import (
	"sync"

	"google.golang.org/protobuf/proto"
)

// acks are the acknowledgements that wait for the writer, acksWaiting at most. It allocates nothing
// while none waits.
type acks struct {
	more chan struct{} // one slot: some acknowledgement waits

	mu      sync.Mutex
	waiting []proto.Message
}

func newAcks() *acks { return &acks{more: make(chan struct{}, 1)} }

// add adds an acknowledgement, and returns false when there are too many. It does not block.
func (a *acks) add(m proto.Message) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.waiting) >= acksWaiting {
		return false
	}
	a.waiting = append(a.waiting, m)
	a.poke()
	return true
}

// next takes the oldest acknowledgement, or nil. While others wait, more is ready again.
func (a *acks) next() (m proto.Message) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.waiting) == 0 {
		return nil
	}
	m, a.waiting[0] = a.waiting[0], nil
	if a.waiting = a.waiting[1:]; len(a.waiting) > 0 {
		a.poke()
	} else {
		a.waiting = nil
	}
	return m
}

// all takes all acknowledgements, oldest first.
func (a *acks) all() (taken []proto.Message) {
	a.mu.Lock()
	defer a.mu.Unlock()
	taken, a.waiting = a.waiting, nil
	return taken
}

// poke makes more ready. The caller holds mu.
func (a *acks) poke() {
	select {
	case a.more <- struct{}{}:
	default:
	}
}
