package push

import (
	"context"
	"maps"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"meshrelay/mirror"
)

// Pusher merges changes into requests, and requests a push when pace allows it. It is a prometheus.Collector.
type Pusher struct {
	prometheus.Collector
	work    *Work
	delayed *prometheus.CounterVec
	wake    chan struct{} // one slot: a change came

	// mu guards the following fields.
	mu       sync.Mutex
	pace     *pace
	waiting  map[string]*Request // by upstream
	reported time.Duration       // the part of the work that was given to pace
	pushing  *Request            // nil when none is
	pushed   chan struct{}       // closed when a push ends; nil until somebody waits
}

// NewPusher returns a Pusher. Whoever carries out the requests must report CPU time and progress to work: they
// decide when the next push goes.
func NewPusher(opts Options, work *Work) *Pusher {
	metrics := prometheus.NewRegistry()
	of := promauto.With(metrics)
	of.NewCounterFunc(prometheus.CounterOpts{
		Name: "relay_push_busy_seconds_total", Help: "Time that CPUs have worked to plan and encode responses and to hand them to transports.",
	}, func() float64 { return work.Total().Seconds() })
	p := &Pusher{
		Collector: metrics, work: work, wake: make(chan struct{}, 1), pace: newPace(opts), waiting: map[string]*Request{},
		delayed: of.NewCounterVec(prometheus.CounterOpts{
			Name: "relay_push_delayed_total", Help: "Pushes that had to wait, by the reason: share, backlog, burst.",
		}, []string{"reason"}),
	}
	for _, why := range []delay{byShare, byBacklog, byBurst} {
		p.delayed.WithLabelValues(string(why))
	}
	return p
}

// Changed adds a changed key of an upstream to the next push. It does not block. Any goroutine may call
// it.
func (p *Pusher) Changed(upstream string, key mirror.Key, reason Reason) {
	p.mu.Lock()
	now := time.Now()
	r := p.waiting[upstream]
	if r == nil {
		r = &Request{ConfigsUpdated: map[mirror.Key]struct{}{}, Reason: map[Reason]int{}, Start: now}
		p.waiting[upstream] = r
	}
	_, again := r.ConfigsUpdated[key]
	p.pace.changed(now, upstream, !again)
	r.ConfigsUpdated[key] = struct{}{}
	r.Reason[reason]++
	p.mu.Unlock()
	mirror.Signal(p.wake)
}

// Run calls push with merged requests, one at a time, until ctx ends. Changes during a push are merged
// into the next request. Run is called once.
func (p *Pusher) Run(ctx context.Context, push func(*Request)) error {
	timer := time.NewTimer(time.Hour)
	timer.Stop()
	defer timer.Stop()
	var why delay // why the next push waits
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-p.wake:
		case <-p.work.wake:
		case <-timer.C:
		}
		for ctx.Err() == nil {
			r, wait, because := p.next()
			if r == nil {
				why = because
				if wait > 0 {
					timer.Reset(wait)
				}
				break
			}
			if why != "" {
				p.delayed.WithLabelValues(string(why)).Inc()
			}
			p.work.track(func() { push(r) })
			p.end()
		}
	}
}

// next begins a push and returns its request. Otherwise it returns the time until the next push and the
// reason to wait; the time is negative when no change waits.
func (p *Pusher) next() (r *Request, wait time.Duration, why delay) {
	p.mu.Lock()
	defer p.mu.Unlock()
	total := p.work.Total()
	p.pace.worked(total - p.reported)
	p.reported = total
	p.pace.reached = p.work.hasReached()
	now := time.Now()
	at, why, ok := p.pace.next()
	if !ok || at.After(now) {
		return nil, at.Sub(now), why
	}
	for _, upstream := range p.pace.begin(now) {
		r = r.with(p.waiting[upstream])
		delete(p.waiting, upstream)
	}
	p.pushing = r
	return r, 0, ""
}

// end ends a push.
func (p *Pusher) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pushing = nil
	if p.pushed != nil {
		close(p.pushed)
		p.pushed = nil
	}
}

// Flushed waits until all changes from before the call are pushed. It returns the error of ctx when
// that ends first.
func (p *Pusher) Flushed(ctx context.Context) error {
	for called := time.Now(); ; {
		pushed := p.before(called)
		if pushed == nil {
			return nil
		}
		select {
		case <-pushed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// before returns a channel that is closed at the end of a push, or nil when all changes from before a
// time are pushed.
func (p *Pusher) before(t time.Time) <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	waits := p.pushing != nil && !p.pushing.Start.After(t)
	for _, r := range p.waiting {
		waits = waits || !r.Start.After(t)
	}
	if !waits {
		return nil
	}
	if p.pushed == nil {
		p.pushed = make(chan struct{})
	}
	return p.pushed
}

// with merges another request into this one. It may change both.
func (r *Request) with(other *Request) *Request {
	if r == nil {
		return other
	}
	maps.Copy(r.ConfigsUpdated, other.ConfigsUpdated)
	for why, n := range other.Reason {
		r.Reason[why] += n
	}
	r.Start = earlier(r.Start, other.Start)
	return r
}
