package kubernetes

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
)

// pauses are the waits of a target after lists and watches that failed, one at a time. The methods may
// be called from any goroutine.
type pauses struct {
	mu    sync.Mutex         // guards all below
	end   context.CancelFunc // ends the present one, nil while there is none
	since time.Time
	begun int
}

// begin notes a wait that end would end, and returns what is called when it is over.
func (p *pauses) begin(end context.CancelFunc) (over func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.begun++
	this := p.begun
	p.end, p.since = end, time.Now()
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.begun == this {
			p.end = nil
		}
	}
}

// waits returns since when there is a wait, and whether there is one.
func (p *pauses) waits() (since time.Time, is bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.since, p.end != nil
}

// hurry ends the present wait, if there is one.
func (p *pauses) hurry() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.end != nil {
		p.end()
	}
}

// rescues ask sooner than their pauses would for targets that have failed: after several failures in
// a row a target waits for up to a minute, while others know already that the server works again.
type rescues struct {
	works atomic.Bool // a list, a watch or a discovery has come to something since the last rescue
	// Only Run uses these: how often all targets that wait may be asked for, and one as a scout.
	all, scouts *rate.Limiter
}

// rescueBurst is how many rescues may follow each other without a pause.
const rescueBurst = 4

// bound sets the least time between two rescues of one kind, but for the first few.
func (r *rescues) bound(apart time.Duration) {
	r.all, r.scouts = rate.NewLimiter(rate.Every(apart), rescueBurst), rate.NewLimiter(rate.Every(apart), rescueBurst)
}

// rescue ends the pauses of targets: of all where the server works, and otherwise of the one that has
// waited longest, which finds out. It reports whether the server works.
func (s *Source) rescue(now time.Time) (works bool) {
	waiting, scout := s.waiting(now)
	switch {
	case s.rescues.works.Load() && (len(waiting) == 0 || s.rescues.all.AllowN(now, 1)):
		s.rescues.works.Store(false)
		for _, t := range waiting {
			t.hurry()
		}
		return true
	case scout != nil && s.rescues.scouts.AllowN(now, 1):
		scout.hurry()
	}
	return false
}

// waiting returns the targets that wait, and the one that has waited longest of those that may be
// read, nil where none has waited for long.
func (s *Source) waiting(now time.Time) (all []*target, longest *target) {
	scouts := map[*target]bool{}
	s.mu.Lock()
	for _, targets := range s.st.targets {
		for _, t := range targets {
			scouts[t] = t.shown != Denied && t.shown != Unserved && !t.aside
		}
	}
	s.mu.Unlock()
	first := now.Add(-2 * s.pace.soon)
	for t, asks := range scouts {
		since, waits := t.waits()
		if !waits {
			continue
		}
		all = append(all, t)
		if asks && since.Before(first) {
			first, longest = since, t
		}
	}
	return all, longest
}
