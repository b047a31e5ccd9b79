package downstream

import (
	"sync"
	"sync/atomic"
	"time"
)

// keptRounds is how many pushes are followed until all clients have them.
const keptRounds = 64

// Round is one push that has changed a view, and how many clients have it.
type Round struct {
	Number uint64
	// Clients were told of it and have not gone since. Acknowledged of them have acknowledged all
	// that it and the pushes before it brought them, if anything.
	Clients, Acknowledged int
	// Half and All are when so many had it, zero when they have not.
	Half, All time.Time
}

// rounds follow the pushes. Each client counts in those that begin while it is there, and adds itself to
// each of them once: nothing is looked up, neither by client nor by resource.
type rounds struct {
	newest atomic.Uint64 // written under mu

	mu      sync.Mutex // guards all below
	clients int
	kept    [keptRounds]keptRound // of a number at its remainder
}

type keptRound struct {
	Round
	over chan struct{} // closed once all have it, or once it is not followed; nil while nobody waits
}

// end tells those who wait for the end of a round.
func (k *keptRound) end() {
	if k.over != nil {
		close(k.over)
		k.over = nil
	}
}

// begin begins a push.
func (r *rounds) begin(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	number := r.newest.Add(1)
	round := &r.kept[number%keptRounds]
	round.end()
	round.Round = Round{Number: number, Clients: r.clients}
	round.look(now)
}

// look notes that enough clients have a push.
func (k *keptRound) look(now time.Time) {
	if k.Half.IsZero() && 2*k.Acknowledged >= k.Clients {
		k.Half = now
	}
	if k.All.IsZero() && k.Acknowledged >= k.Clients {
		k.All = now
		k.end()
	}
}

// enter counts a client in. What was pushed before does not count for it.
func (r *rounds) enter() (has uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.clients++
	return r.newest.Load()
}

// leave counts a client out that had a push.
func (r *rounds) leave(has uint64, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.clients--
	r.since(has, r.newest.Load(), func(round *keptRound) {
		round.Clients--
		round.look(now)
	})
}

// reach notes that a client that had a push has a later one.
func (r *rounds) reach(had, has uint64, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.since(had, has, func(round *keptRound) {
		round.Acknowledged++
		round.look(now)
	})
}

// since calls f with the pushes after one, up to another. The caller holds mu.
func (r *rounds) since(after, upTo uint64, f func(*keptRound)) {
	if newest := r.newest.Load(); newest >= keptRounds {
		after = max(after, newest-keptRounds)
	}
	for n := after + 1; n <= upTo; n++ {
		f(&r.kept[n%keptRounds])
	}
}

// number returns the number of the newest push.
func (r *rounds) number() uint64 { return r.newest.Load() }

// get returns a push, nil when it is not followed any more, and what is closed at its end.
func (r *rounds) get(number uint64) (*Round, <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	kept := &r.kept[number%keptRounds]
	if number == 0 || kept.Number != number {
		return nil, nil
	}
	round := kept.Round
	if round.All.IsZero() && kept.over == nil {
		kept.over = make(chan struct{})
	}
	return &round, kept.over
}

// NewestRound returns the number of the newest push, zero before the first.
func (s *Server) NewestRound() uint64 { return s.rounds.number() }

// Round returns a push, nil unless it is among the newest, which are followed. While not all clients
// have it, over is closed once they have, or once it is not followed any more.
func (s *Server) Round(number uint64) (round *Round, over <-chan struct{}) {
	return s.rounds.get(number)
}

// hold notes that the client has all that was planned for it, if it has acknowledged that. The caller
// holds mu.
func (c *conn) hold() {
	if c.has < c.plannedRound && !c.sends && c.subs.Settled() {
		c.server.rounds.reach(c.has, c.plannedRound, time.Now())
		c.has = c.plannedRound
	}
}
