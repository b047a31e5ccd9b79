package downstream

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"meshrelay/downstream/snapshot"
	"meshrelay/downstream/subscription"
)

const (
	// maxArrivals bounds the changes that are followed until all clients have them. sweepMost bounds those that one
	// sweep looks at.
	maxArrivals = 65_536
	sweepMost   = 1024
	// sweepRest is the shortest pause after a sweep. A sweep takes at most a twentieth of the time.
	sweepRest = 20 * time.Millisecond
)

// item names an item of a type.
type item struct {
	of   subscription.Type
	name string
}

// arrival is a change of an item on its way to the clients.
type arrival struct {
	item
	rev   uint64    // zero: the change has arrived, or a newer one has replaced it
	since time.Time // of the oldest change in the push

	// A sweep sets these.
	seen, blocked bool      // some client was sent it; some client has not acknowledged it
	at            time.Time // of the newest ACK of a client that has it
}

// arrivals has the newest change of each item that not all clients have. It has no list of clients: a sweep compares
// the revisions with the cursors of the clients.
type arrivals struct {
	wake     chan struct{} // has an element when a sweep is due
	count    atomic.Int64  // len(byItem)
	duration prometheus.Histogram
	dropped  prometheus.Counter

	mu     sync.Mutex // guards all below
	most   int
	byItem map[item]uint64 // numbers in queue
	queue  []arrival       // by age; the first has the number first
	first  uint64
	next   uint64 // the number at which the next sweep begins
}

func newArrivals(reg prometheus.Registerer) (*arrivals, error) {
	a := &arrivals{
		wake: make(chan struct{}, 1), most: maxArrivals, byItem: map[item]uint64{},
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "relay_distribution_seconds",
			Help:    "Time from the oldest change of a push to the last ACK of a resource by all clients that were connected and see it.",
			Buckets: []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300},
		}),
		dropped: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "relay_distribution_dropped_total", Help: "Changes that are not followed to the clients any more, because newer ones need their room.",
		}),
	}
	pending := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "relay_distribution_in_progress", Help: "Changes of resources that some client has not acknowledged, of those that are followed: 65,536 at most.",
	}, func() float64 { return float64(a.count.Load()) })
	return a, errors.Join(reg.Register(a.duration), reg.Register(a.dropped), reg.Register(pending))
}

// add follows a change in place of an older one of the item. It allocates nothing once the queue has its size.
func (a *arrivals) add(of item, rev uint64, since time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.forget(of)
	if len(a.byItem) == a.most {
		a.skipForgotten()
		a.dropped.Inc()
		a.forget(a.queue[0].item)
	}
	a.skipForgotten()
	a.byItem[of] = a.first + uint64(len(a.queue))
	a.queue = append(a.queue, arrival{item: of, rev: rev, since: since})
	a.count.Store(int64(len(a.byItem)))
}

// forget ends following an item. The caller holds mu.
func (a *arrivals) forget(of item) {
	if n, known := a.byItem[of]; known {
		delete(a.byItem, of)
		a.queue[n-a.first] = arrival{}
		a.count.Store(int64(len(a.byItem)))
	}
}

// skipForgotten removes forgotten arrivals from the queue: those at its head and, if they are most of it, all. The
// caller holds mu.
func (a *arrivals) skipForgotten() {
	n := 0
	for n < len(a.queue) && a.queue[n].rev == 0 {
		n++
	}
	a.queue, a.first = a.queue[n:], a.first+uint64(n)
	if len(a.queue) <= 2*len(a.byItem)+sweepMost {
		return
	}
	kept := a.queue[:0]
	for _, one := range a.queue {
		if one.rev != 0 {
			a.byItem[one.item] = a.first + uint64(len(kept))
			kept = append(kept, one)
		}
	}
	clear(a.queue[len(kept):])
	a.queue = kept
}

// take returns the next arrivals for a sweep, by type. more is set unless they end with the newest.
func (a *arrivals) take() (byType map[subscription.Type][]*arrival, more bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.skipForgotten()
	if end := a.first + uint64(len(a.queue)); a.next < a.first || a.next >= end {
		a.next = a.first
	}
	byType = map[subscription.Type][]*arrival{}
	for left := sweepMost; left > 0 && a.next < a.first+uint64(len(a.queue)); a.next++ {
		if one := a.queue[a.next-a.first]; one.rev != 0 {
			byType[one.of] = append(byType[one.of], &one)
			left--
		}
	}
	return byType, a.next < a.first+uint64(len(a.queue))
}

// settle ends following the arrivals of a sweep that nobody blocks.
func (a *arrivals) settle(byType map[subscription.Type][]*arrival) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, list := range byType {
		for _, one := range list {
			n, known := a.byItem[one.item]
			if one.blocked || !known || a.queue[n-a.first].rev != one.rev {
				continue
			}
			if one.seen {
				a.duration.Observe(max(one.at.Sub(one.since), 0).Seconds())
			}
			a.forget(one.item)
		}
	}
}

// poke makes a sweep due, unless there is nothing to follow.
func (a *arrivals) poke() {
	if a.count.Load() == 0 {
		return
	}
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// arrive follows the changes of a push: last is the revision of the last of updates. The caller holds views.mu.
func (s *Server) arrive(t subscription.Type, updates []snapshot.Update, last uint64, derived []*view, since time.Time) {
	if !s.HasReleased() || s.open.Load() == 0 {
		return
	}
	for i, u := range updates {
		rev := last - uint64(len(updates)-1-i)
		changed := s.views.base.snapshot(t).HasChange(u.Name, rev)
		for n := 0; n < len(derived) && !changed; n++ {
			changed = derived[n].snapshot(t).HasChange(u.Name, rev)
		}
		if changed {
			s.arrivals.add(item{t, u.Name}, rev, since)
		}
	}
	s.arrivals.poke()
}

// followArrivals sweeps after ACKs, until ctx ends.
func (s *Server) followArrivals(ctx context.Context) error {
	rest := time.NewTimer(0)
	defer rest.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-rest.C:
		}
		select {
		case <-ctx.Done():
			return nil
		case <-s.arrivals.wake:
		}
		began := time.Now()
		s.sweepArrivals()
		rest.Reset(max(sweepRest, 20*time.Since(began)))
	}
}

// sweepArrivals compares some arrivals with the cursors of all clients.
func (s *Server) sweepArrivals() {
	byType, more := s.arrivals.take()
	for _, c := range s.connections() {
		c.look(byType)
	}
	s.arrivals.settle(byType)
	if more {
		s.arrivals.poke()
	}
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// look notes for arrivals whether the client blocks them.
func (c *conn) look(byType map[subscription.Type][]*arrival) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.view == nil {
		return
	}
	for _, w := range c.subs.Watches() {
		list := byType[w.Type]
		if len(list) == 0 {
			continue
		}
		snap := c.view.snapshot(w.Type)
		for _, one := range list {
			if one.blocked {
				continue
			}
			has, at := w.Passed(one.rev)
			if has && one.seen { // the usual case, without a search
				one.at = later(one.at, at)
			} else if w.Sees(snap, one.name, one.rev) {
				one.seen, one.blocked, one.at = true, !has, later(one.at, at)
			}
		}
	}
}
