package adsclient

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"
)

// AddressStatus is how an address of a Client does.
type AddressStatus struct {
	Address string `json:"address"`
	// Active says that this is the one whose responses are used.
	Active bool `json:"active"`
	// LastError is why the last stream or probe failed or ended, empty when it works.
	LastError string `json:"lastError,omitempty"`
	// LastAttempt is when a stream or a probe was begun last.
	LastAttempt time.Time `json:"lastAttempt,omitzero"`
	// HealthySince is since when it works: its stream has brought an answer to everything,
	// or a probe got one. Zero when it is not known to work.
	HealthySince time.Time `json:"healthySince,omitzero"`
}

// Addresses returns how each address does, in the order of Config. It may be called at any
// time.
func (c *Client) Addresses() []AddressStatus {
	b := c.board
	b.mu.Lock()
	defer b.mu.Unlock()
	all := make([]AddressStatus, len(b.entries))
	for i := range b.entries {
		all[i] = b.entries[i].AddressStatus
	}
	return all
}

// Switches returns how often answers have come from another address than before. It may be
// called at any time.
func (c *Client) Switches() uint64 {
	c.board.mu.Lock()
	defer c.board.mu.Unlock()
	return c.board.switches
}

// mostDamping bounds how often the time that a preferred address has to be healthy for is
// doubled.
const mostDamping = 4

// lasting is for how many times that time the stream has to stay there to stop that.
const lasting = 4

// board is what is known of the addresses.
type board struct {
	mu       sync.Mutex
	entries  []boardEntry
	switches uint64
	// answered is the address that brought a response last, and synced the one that had
	// answered everything last, -1 before there is one. up says that synced does so now.
	answered, synced int
	up               bool
	// why is why the stream to the address answered ended the first time since.
	why     error
	changed chan struct{} // closed and replaced when synced or up changes
	// failbackAfter is Config.FailbackAfter.
	failbackAfter time.Duration
}

type boardEntry struct {
	AddressStatus
	// unwell says that the last that is known is a failure.
	unwell bool
	// returned is when the stream has moved back here, zero when it came otherwise or has
	// left. damping is how often that has not lasted.
	returned time.Time
	damping  int
	// returning says that the present attempt is such a move.
	returning bool
}

func newBoard(addresses []string, failbackAfter time.Duration) *board {
	b := &board{failbackAfter: failbackAfter, answered: -1, synced: -1, changed: make(chan struct{}), entries: make([]boardEntry, len(addresses))}
	for i, a := range addresses {
		b.entries[i].Address = a
	}
	return b
}

// tell wakes who waits. The caller holds mu.
func (b *board) tell() {
	close(b.changed)
	b.changed = make(chan struct{})
}

// await waits until cond, which is called with mu held, and reports whether that came
// before the end of ctx.
func (b *board) await(ctx context.Context, cond func() bool) bool {
	for {
		b.mu.Lock()
		ok, changed := cond(), b.changed
		b.mu.Unlock()
		if ok {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-changed:
		}
	}
}

func (b *board) unwell(i int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.entries[i].unwell
}

// tried notes that a stream or a probe is begun.
func (b *board) tried(i int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.entries[i].LastAttempt = time.Now()
}

// returnTo notes that the next stream to an address is a move back to it.
func (b *board) returnTo(i int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.entries[i].returning = true
}

// connected notes that the stream has brought its first response. It returns the address
// of the last stream of which that was so, empty when it is the same or there was none.
func (b *board) connected(i int, log *slog.Logger) (from string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.entries[i].Active = true
	if b.answered >= 0 && b.answered != i {
		from = b.entries[b.answered].Address
		b.switches++
		log.Info("moved to another address", "from", from, "to", b.entries[i].Address, "because", b.why)
	}
	b.answered, b.why = i, nil
	return from
}

// works notes that the stream has had an answer to everything.
func (b *board) works(i int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	if old := b.synced; old >= 0 && old != i {
		b.settle(old, now)
	}
	b.healthy(i, now)
	e := &b.entries[i]
	if e.returning {
		e.returned, e.returning = now, false
	}
	b.synced, b.up = i, true
	b.tell()
}

// healthy notes that an address has answered. The caller holds mu.
func (b *board) healthy(i int, now time.Time) {
	e := &b.entries[i]
	e.unwell, e.LastError = false, ""
	if e.HealthySince.IsZero() {
		e.HealthySince = now
	}
}

// left notes that the stream to an address has ended, and whether that was in the course
// of things.
func (b *board) left(i int, err error, routine bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if i == b.answered && b.why == nil {
		b.why = err
	}
	e := &b.entries[i]
	if e.returning {
		e.returning = false
		e.damping = min(e.damping+1, mostDamping)
	}
	if moved := (*movedError)(nil); errors.As(err, &moved) {
		err = nil
	}
	b.down(i, err, !routine)
	e.Active = false
	if b.up {
		b.up = false
		b.tell()
	}
}

// down notes that an address is not known to work any more. The caller holds mu.
func (b *board) down(i int, err error, unwell bool) {
	e := &b.entries[i]
	e.HealthySince, e.unwell = time.Time{}, unwell
	if err != nil {
		e.LastError = err.Error()
	}
}

// settle judges the stream's stay at an address that it had moved back to, now that it is
// elsewhere. The caller holds mu.
func (b *board) settle(i int, now time.Time) {
	e := &b.entries[i]
	switch {
	case e.returned.IsZero():
		return
	case now.Sub(e.returned) < lasting*(b.failbackAfter<<e.damping):
		e.damping = min(e.damping+1, mostDamping)
	default:
		e.damping = 0
	}
	e.returned = time.Time{}
}

// healthyFor returns how long an address has to be healthy for before the stream moves
// back to it, give or take a little: all clients of a server that was away see it return
// at the same moment.
func (b *board) healthyFor(i int) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	d := b.failbackAfter << b.entries[i].damping
	return d + rand.N(d/8+1)
}

// probed notes that a probe has got its answer.
func (b *board) probed(i int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.healthy(i, time.Now())
}

// probeEnded notes that an address is not probed any more, for that reason if it is one.
func (b *board) probeEnded(i int, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.entries[i].Active {
		b.down(i, err, err != nil)
	}
}
