package downstream

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// keptRounds is how many of the newest pushes are kept.
const keptRounds = 64

// Round is one push that has changed a view. It counts the clients that have its changes.
type Round struct {
	Number uint64
	// Clients counts the clients connected at the time of the push that are still connected. Acknowledged
	// counts those that have acknowledged all changes up to this push.
	Clients, Acknowledged int
	// Half and All are the times at which half of the clients, and all, had acknowledged. They are zero
	// before.
	Half, All time.Time
}

// rounds has the newest pushes. A client counts in the pushes since it connected. When it has acknowledged,
// it adds itself to the pushes since the last one that it had acknowledged. So no push has a list of clients
// or resources.
type rounds struct {
	newest       atomic.Uint64        // written under mu
	distribution prometheus.Histogram // from the oldest change of a push until all clients have it

	mu      sync.Mutex // guards all below
	clients int
	kept    [keptRounds]keptRound // the push n is at n % keptRounds
}

type keptRound struct {
	Round
	since time.Time     // of the oldest change
	over  chan struct{} // closed by end; nil while nobody waits
}

// end closes over: all clients have the push, or it is no longer kept.
func (k *keptRound) end() {
	if k.over != nil {
		close(k.over)
		k.over = nil
	}
}

// begin begins a push, whose oldest change is of a time since.
func (r *rounds) begin(since, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	number := r.newest.Add(1)
	round := &r.kept[number%keptRounds]
	round.end()
	round.Round, round.since = Round{Number: number, Clients: r.clients}, since
	r.look(round, now)
}

// look sets Half and All when enough clients have acknowledged.
func (r *rounds) look(k *keptRound, now time.Time) {
	if k.Half.IsZero() && 2*k.Acknowledged >= k.Clients {
		k.Half = now
	}
	if k.All.IsZero() && k.Acknowledged >= k.Clients {
		k.All = now
		k.end()
		if k.Acknowledged > 0 {
			r.distribution.Observe(now.Sub(k.since).Seconds())
		}
	}
}

// enter counts a new client. It returns the newest push, as if the client had acknowledged it.
func (r *rounds) enter() (has uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.clients++
	return r.newest.Load()
}

// leave removes a client from the counts. has is the newest push that the client had acknowledged.
func (r *rounds) leave(has uint64, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.clients--
	r.since(has, r.newest.Load(), func(round *keptRound) {
		round.Clients--
		r.look(round, now)
	})
}

// reach notes that a client has acknowledged the pushes after had, up to has.
func (r *rounds) reach(had, has uint64, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.since(had, has, func(round *keptRound) {
		round.Acknowledged++
		r.look(round, now)
	})
}

// since calls f with the kept pushes after one number, up to another. The caller holds mu.
func (r *rounds) since(after, upTo uint64, f func(*keptRound)) {
	if newest := r.newest.Load(); newest >= keptRounds {
		after = max(after, newest-keptRounds)
	}
	for n := after + 1; n <= upTo; n++ {
		f(&r.kept[n%keptRounds])
	}
}

// get returns a push and its channel over, or nil when the push is no longer kept.
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

// NewestRound returns the number of the newest push, 0 before the first.
func (s *Server) NewestRound() uint64 { return s.rounds.newest.Load() }

// Round returns a push, or nil when it is no longer kept. over is closed once all clients have acknowledged,
// or once the push is no longer kept. over is nil if all have.
func (s *Server) Round(number uint64) (round *Round, over <-chan struct{}) {
	return s.rounds.get(number)
}

// hold notes that the client has the pushes up to plannedRound, if it has acknowledged all responses. The
// caller holds mu.
func (c *conn) hold() {
	if c.has < c.plannedRound && !c.sends && c.subs.Settled() {
		c.server.rounds.reach(c.has, c.plannedRound, time.Now())
		c.has = c.plannedRound
	}
}
