package push

import (
	"maps"
	"time"
)

const (
	// company is how long an isolated change waits for others: changes of one response arrive a few
	// microseconds apart, and belong in one push. An idle process may wake a millisecond later.
	company = 250 * time.Microsecond
	// thrift is the number of times that the work of a push, up to brief, must pass before the next push,
	// even while CPUs are idle. Changes that come meanwhile share a push.
	thrift = 8
	brief  = 10 * time.Millisecond
	// costly is the work of a push, in time of all CPUs, that doubles the wait after it when the share is
	// a half. Above it, fewer pushes save more than an earlier push would help.
	costly = 200 * time.Millisecond
	// burst is the number of changes of one upstream, beyond steady in a second, that makes a burst.
	burst  = 256
	steady = 2000
)

// Options bound the waiting of a change, and the cost of pushing. The config has checked them. The times are named as istiod's are
// (PILOT_DEBOUNCE_AFTER, PILOT_DEBOUNCE_MAX).
type Options struct {
	// After is the quiet time that ends a burst of an upstream.
	After time.Duration
	// Max bounds the waiting of a change. At least After.
	Max time.Duration
	// MaxShare is the share of the CPUs that pushing may take: above 0, at most 1.
	MaxShare float64
	// CPUs is the number of CPUs, at least 1.
	CPUs int
}

// delay is the reason why a push waits, empty for none. It is a label of a metric.
type delay string

const (
	byShare   delay = "share"   // pushing has used its share of the CPUs
	byBacklog delay = "backlog" // the last push has not reached most clients
	byBurst   delay = "burst"   // an upstream is in a burst
)

// pace decides when changes are pushed. It has neither goroutine nor clock: callers pass the time,
// which never goes back.
//
// An isolated change is pushed after company. A change after a push waits until that push has reached
// most clients, and until its work is no more than the share of the time since it began; for costly work
// it waits longer. Changes of an upstream in a burst wait until the upstream was quiet for Options.After,
// and changes of other upstreams do not wait for them. No change waits longer than Options.Max.
type pace struct {
	opts    Options
	sources map[string]*source

	began   time.Time     // of the last push
	cost    time.Duration // the work since then
	reached bool          // the last push has reached most clients
}

// source is an upstream with waiting changes, or with recent ones.
type source struct {
	waits       bool
	held        bool      // the first waiting change came in a burst
	first, last time.Time // of the waiting changes
	// level is the number of recent changes beyond the steady rate, at the time of last.
	level float64
}

func newPace(opts Options) *pace {
	return &pace{opts: opts, sources: map[string]*source{}, reached: true}
}

// changed notes a change of an upstream. more is false when the key already waits.
func (p *pace) changed(now time.Time, upstream string, more bool) {
	s := p.sources[upstream]
	if s == nil {
		s = &source{}
		p.sources[upstream] = s
	}
	s.drain(now, p.opts.After)
	if !s.waits {
		s.waits, s.held, s.first = true, s.level >= burst, now
	}
	if s.last = now; more {
		s.level = min(s.level+1, 2*burst)
	}
}

// drain lowers the level by the steady rate until now. After a time of quiet it is zero.
func (s *source) drain(now time.Time, quiet time.Duration) {
	since := now.Sub(s.last)
	if s.level -= steady * since.Seconds(); s.level < 0 || since >= quiet {
		s.level = 0
	}
}

// worked adds work that was done for clients.
func (p *pace) worked(cost time.Duration) { p.cost += cost }

// rest returns the shortest time from the beginning of the last push to the next one.
func (p *pace) rest() time.Duration {
	whole := float64(p.cost) / float64(p.opts.CPUs)
	share := time.Duration(whole / p.opts.MaxShare)
	much := time.Duration(2 * whole * whole / float64(costly))
	return min(max(share, min(thrift*p.cost, brief))+much, p.opts.Max)
}

// next returns the time of the next push, and the reason for waiting until then. ok is false when no
// change waits.
func (p *pace) next() (at time.Time, why delay, ok bool) {
	for _, s := range p.sources {
		if !s.waits {
			continue
		}
		if due, because := p.due(s); !ok || due.Before(at) {
			at, why, ok = due, because, true
		}
	}
	return at, why, ok
}

// due returns when the changes of an upstream are to be pushed, and the reason for waiting until then.
func (p *pace) due(s *source) (at time.Time, why delay) {
	latest := s.first.Add(p.opts.Max)
	at = earlier(s.last.Add(company), s.first.Add(p.opts.After))
	if s.held {
		at, why = s.last.Add(p.opts.After), byBurst
	}
	if paid := p.began.Add(p.rest()); paid.After(at) {
		at, why = paid, byShare
	}
	if !p.reached && latest.After(at) {
		at, why = latest, byBacklog
	}
	return earlier(at, latest), why
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// begin begins a push, and returns its upstreams: those that are due, and those without a burst, which
// add little to its cost.
func (p *pace) begin(now time.Time) (upstreams []string) {
	for name, s := range p.sources {
		if s.waits {
			if at, _ := p.due(s); !s.held || !at.After(now) {
				s.waits = false
				upstreams = append(upstreams, name)
			}
		}
	}
	maps.DeleteFunc(p.sources, func(_ string, s *source) bool {
		return !s.waits && now.Sub(s.last) >= p.opts.After
	})
	p.began, p.cost, p.reached = now, 0, false
	return upstreams
}
