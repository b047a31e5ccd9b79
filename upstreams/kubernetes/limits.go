package kubernetes

import (
	"slices"
	"strings"

	"meshrelay/config"
	"meshrelay/upstreams/intake"
)

// overLimit is in the reason of each refusal for want of room.
const overLimit = "over the limit: "

// lackRoom reports whether something was refused for want of room, or may have been.
func lackRoom(results []intake.Result) bool {
	return slices.ContainsFunc(results, func(r intake.Result) bool {
		return r.RefusedTotal > len(r.Refused) || slices.ContainsFunc(r.Refused, func(one intake.Refusal) bool { return strings.Contains(one.Reason, overLimit) })
	})
}

// Limit implements upstreams.Limited.
func (s *Source) Limit(now config.Limits) {
	s.mu.Lock()
	before := s.limits
	s.limits = now
	var cramped []*target
	for _, t := range s.sorted() {
		if t.cramped.Load() || t.shown == Failing { // a list that is too large fails as a whole
			cramped = append(cramped, t)
		}
	}
	s.mu.Unlock()
	if l := s.told.Load(); l != nil {
		l.limit(now.MaxBytes)
	}
	if relaxed(before, now) {
		for _, t := range cramped {
			t.restart()
		}
	}
}

// relaxed reports whether one of the limits lets in more than before.
func relaxed(before, now config.Limits) bool {
	more := func(before, now int) bool { return before > 0 && (now == 0 || now > before) }
	return more(before.MaxBytes, now.MaxBytes) || more(before.MaxResources, now.MaxResources) || more(before.MaxResourceBytes, now.MaxResourceBytes)
}

// maxBytes returns how much the objects of a list may have, 0 for any.
func (s *Source) maxBytes() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.limits.MaxBytes
}

// limit has another limit count for what is converted, in bytes; 0 is no bound.
func (l *ledger) limit(most int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ingresses != nil {
		l.ingresses.most = most
	}
}
