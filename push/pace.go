package push

import (
	"fmt"
	"maps"
	"time"
)

const (
	// company is how long a change waits for others: changes that an upstream makes at once
	// arrive here a few microseconds apart, and belong in one push.
	company = 250 * time.Microsecond
	// thrift is how many times the work of a push is waited for after it even when the CPUs have
	// room, up to brief: changes that come meanwhile share a push, and nobody notices the wait.
	thrift = 8
	brief  = 10 * time.Millisecond
	// costly is from what work on, in time of all CPUs, a push is waited for longer than its share
	// asks: twice as long when it is that much and the share is a half. When to push is that costly,
	// it saves more to push less often than it helps to be early.
	costly = 200 * time.Millisecond
	// burst is how many changes of one upstream, above steady a second, make a burst.
	burst  = 256
	steady = 2000
)

// Options bound how long a change may wait, and what pushing may cost. The names of the times are
// istiod's (PILOT_DEBOUNCE_AFTER, PILOT_DEBOUNCE_MAX).
type Options struct {
	// After is the quiet time that ends a burst of one upstream.
	After time.Duration
	// Max is the longest that a change waits. At least After.
	Max time.Duration
	// MaxShare is how much of the CPUs pushing may take: above 0, at most 1.
	MaxShare float64
	// CPUs is how many there are. At least 1.
	CPUs int
}

func (o Options) check() error {
	switch {
	case o.After <= 0 || o.Max < o.After:
		return fmt.Errorf("push: after is %v and max is %v: want 0 < after <= max", o.After, o.Max)
	case !(o.MaxShare > 0 && o.MaxShare <= 1) || o.CPUs < 1:
		return fmt.Errorf("push: the share is %v of %d CPUs: want 0 < share <= 1, and a CPU", o.MaxShare, o.CPUs)
	}
	return nil
}

// delay is why a push waits.
type delay int

const (
	notDelayed delay = iota
	byShare          // pushing has taken its share of the CPUs
	byBacklog        // the last push has not reached most clients
	byBurst          // an upstream has not come to rest
)

// pace decides when changes are pushed. It has neither goroutine nor clock: every method is
// given the time, which never goes back.
//
// An isolated change goes at once (within company). A change that follows a push goes when that
// has reached most clients, and so long after it began that the work is no more than the share of
// the CPUs, and less of it the more there is. What an upstream changes while it is in a burst waits
// until the upstream has been quiet for Options.After; the changes of others do not. No change
// waits longer than Options.Max.
type pace struct {
	opts    Options
	sources map[string]*source

	began   time.Time     // when the last push began
	cost    time.Duration // of the work since then
	reached bool          // it has reached most clients
}

// source is an upstream whose changes wait, or that has changed something a while ago.
type source struct {
	waits       bool
	held        bool      // it was in a burst when the first of what waits came
	first, last time.Time // when the changes that wait came
	// level is how many changes came lately, above the steady rate, as of last.
	level float64
}

func newPace(opts Options) *pace {
	return &pace{opts: opts, sources: map[string]*source{}, reached: true}
}

// changed notes a change of an upstream. more is false when it changes what waits already.
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

// drain takes from the level what a steady rate, or rest, allows until now.
func (s *source) drain(now time.Time, quiet time.Duration) {
	since := now.Sub(s.last)
	if s.level -= steady * since.Seconds(); s.level < 0 || since >= quiet {
		s.level = 0
	}
}

// worked notes work that was done for clients since the last time.
func (p *pace) worked(cost time.Duration) { p.cost += cost }

// rest returns how long after a push began the next may.
func (p *pace) rest() time.Duration {
	whole := float64(p.cost) / float64(p.opts.CPUs)
	share := time.Duration(whole / p.opts.MaxShare)
	much := time.Duration(2 * whole * whole / float64(costly))
	return min(max(share, min(thrift*p.cost, brief))+much, p.opts.Max)
}

// next returns when the next push is due, and why not earlier. ok is false when no change waits.
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

// due returns when the changes of an upstream are due.
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

// begin begins a push, and returns the upstreams whose changes it has: of those that are not in
// a burst all, as the push costs little more with them.
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
