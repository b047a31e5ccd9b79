package downstream

import (
	"sync"
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
	mu      sync.Mutex // guards all below
	clients int
	newest  uint64
	kept    [keptRounds]Round // of a number at its remainder
}

// begin begins a push.
func (r *rounds) begin(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.newest++
	r.kept[r.newest%keptRounds] = Round{Number: r.newest, Clients: r.clients}
	r.look(&r.kept[r.newest%keptRounds], now)
}

// look notes that enough clients have a push. The caller holds mu.
func (*rounds) look(round *Round, now time.Time) {
	if round.Half.IsZero() && 2*round.Acknowledged >= round.Clients {
		round.Half = now
	}
	if round.All.IsZero() && round.Acknowledged >= round.Clients {
		round.All = now
	}
}

// enter counts a client in. What was pushed before does not count for it.
func (r *rounds) enter() (has uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.clients++
	return r.newest
}

// leave counts a client out that had a push.
func (r *rounds) leave(has uint64, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.clients--
	r.since(has, r.newest, func(round *Round) {
		round.Clients--
		r.look(round, now)
	})
}

// reach notes that a client that had a push has a later one.
func (r *rounds) reach(had, has uint64, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.since(had, has, func(round *Round) {
		round.Acknowledged++
		r.look(round, now)
	})
}

// since calls f with the pushes after one, up to another. The caller holds mu.
func (r *rounds) since(after, upTo uint64, f func(*Round)) {
	if r.newest >= keptRounds {
		after = max(after, r.newest-keptRounds)
	}
	for n := after + 1; n <= upTo; n++ {
		f(&r.kept[n%keptRounds])
	}
}

// number returns the number of the newest push.
func (r *rounds) number() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.newest
}

// get returns a push, and whether it is still followed.
func (r *rounds) get(number uint64) (Round, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	round := r.kept[number%keptRounds]
	return round, number > 0 && round.Number == number
}

// NewestRound returns the number of the newest push, zero before the first.
func (s *Server) NewestRound() uint64 { return s.rounds.number() }

// Round returns a push, and whether it is among the newest, which are followed.
func (s *Server) Round(number uint64) (Round, bool) { return s.rounds.get(number) }

// hold notes that the client has all that was planned for it, if it has acknowledged that. The caller
// holds mu.
func (c *conn) hold() {
	if c.has < c.plannedRound && !c.sends && c.subs.Settled() {
		c.server.rounds.reach(c.has, c.plannedRound, time.Now())
		c.has = c.plannedRound
	}
}
