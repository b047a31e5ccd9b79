package intake_test

import (
	"maps"
	"math"
	"slices"
	"time"

	"meshrelay/config"
)

// The model says what a relay serves of one upstream: by what docs promise (docs/failures.md, docs/operations.md,
// guard and staleness in docs/configuration.md, decisions 3, 23 to 25, 30 and 35), and not by how the intake does it.
// After each event, allowed tells for a key what must, may and must not be served. Where docs leave something open, it
// allows both. The history of what the source said, of what was served and of orders is in model_history_test.go.

type key struct{ kind, name string }

func (m *model) last() map[key]string { return m.past[len(m.past)-1].served }

// settled: the stream is open and has answered everything.
func (m *model) settled() bool { return m.open && m.unsettled.IsZero() }

// isOff: the guard lets everything pass.
func (m *model) isOff() bool { return m.Percent == 100 && m.Empty == config.EmptyPass }

// waits: a scope of the kind has not answered on the newest stream, and may still have what is missing.
func (m *model) waits(kind string) bool {
	opened := false
	for _, s := range m.scopes {
		if s.kind == kind && s.opened {
			if opened = true; !s.answered {
				return true
			}
		}
	}
	return !opened
}

// quiet: the source has told everything, and is not in the middle of an answer.
func (m *model) quiet() bool {
	for _, s := range m.scopes {
		if s.part != nil {
			return false
		}
	}
	return m.settled() && !m.grace()
}

// late: the deletions of a new stream have waited for its answers for ten seconds, which is the most.
func (m *model) late() bool { return !m.unsettled.IsZero() && m.now.Sub(m.unsettled) >= 10*time.Second }

// grace: a scope has become empty a moment ago; its names may turn up in another one (C1).
func (m *model) grace() bool {
	return !m.emptied.IsZero() && m.now.Sub(m.emptied) <= time.Second
}

// told returns the contents that the source gives a key, none if it does not have it.
func (m *model) told(k key) (out []string) {
	rank, bad := math.MaxInt, false
	for _, s := range m.scopes {
		c, has := s.has[k.name]
		switch {
		case s.kind != k.kind:
		case !has && s.bad[k.name]: // it keeps its last good content, if there is one
			bad = true
			if c := s.ever[k.name]; c != "" {
				out = append(out, c)
			}
		case !has:
		case s.rank < 0: // of a revision: docs do not tell to which scope it belongs
			out = append(out, c)
		case s.rank < rank:
			rank = s.rank
		}
	}
	for _, s := range m.scopes {
		if c, has := s.has[k.name]; has && s.kind == k.kind && s.rank == rank {
			out = append(out, c)
		}
	}
	if bad {
		out = append(out, m.last()[k])
	}
	return out
}

// missing returns the keys that are served although the source does not have them, and all of its scopes have answered.
func (m *model) missing() map[key]bool {
	out := map[key]bool{}
	for k := range m.last() {
		if len(m.told(k)) == 0 && !m.waits(k.kind) {
			out[k] = true
		}
	}
	return out
}

const expired = "it has expired"

// What the guard has to do with deletions. unsure: docs do not tell.
const (
	unsure = iota
	passes
	holds
)

// judgement tells what the guard has to do with the missing keys. The deletions of a minute count together.
func (m *model) judgement() int {
	if m.did.judged == nil {
		j := m.judge()
		m.did.judged = &j
	}
	return *m.did.judged
}

// judge compares with the least and the most that the source may be said to have had, to be sure of what it says.
func (m *model) judge() int {
	if m.isOff() {
		return passes
	}
	last, gone, from := m.last(), m.missing(), m.now.Add(-61*time.Second)
	starts := []time.Time{m.unsettled, m.did.began}
	if m.hold != nil {
		starts = append(starts, m.hold.begun)
	}
	for _, began := range starts {
		if !began.IsZero() && began.Before(from) {
			from = began
		}
	}
	recent := len(last) // the most within the last minute, while nothing but the source removed anything
	least, most, left, steady, kinds := len(last), len(last), map[key]bool{}, maps.Clone(last), map[string]int{}
	for i, mo := range slices.Backward(m.past) {
		least, most = min(least, len(mo.served)), max(most, len(mo.served))
		if mo.at.After(m.stirred) && m.now.Sub(mo.at) < 59*time.Second {
			recent = max(recent, len(mo.served))
		}
		count := map[string]int{}
		for k := range mo.served {
			count[k.kind]++
			kinds[k.kind] = max(kinds[k.kind], count[k.kind])
			if _, is := last[k]; !is {
				left[k] = true
			}
		}
		maps.DeleteFunc(steady, func(k key, _ string) bool { return gone[k] || mo.served[k] == "" })
		if mo.at.Before(from) || i == 0 {
			break
		}
	}
	for _, s := range m.scopes { // what comes with the deletions can be no reason to hold them
		most += len(s.has)
	}
	stays, has, lost := map[string]bool{}, map[string]int{}, map[string]int{}
	for k := range steady {
		stays[k.kind] = true
	}
	for k := range last {
		if has[k.kind]++; gone[k] {
			lost[k.kind]++
		}
	}
	surely, maybe := m.did.bare && len(gone) == len(last), len(stays) == 0 && (m.did.settled || !m.unsettled.IsZero())
	for kind, n := range lost {
		surely = surely || n == has[kind] && n >= 3
		maybe = maybe || !stays[kind] && kinds[kind] >= 3
	}
	few := func(n, of int) bool { return m.Percent == 100 || n <= m.Count || n*100 <= m.Percent*of }
	switch {
	case surely && m.Empty == config.EmptyHold, !few(len(gone), most), !few(len(gone)+recent-len(last), most):
		return holds
	case few(len(gone)+len(left), least) && (m.Empty == config.EmptyPass || !maybe):
		return passes
	}
	return unsure
}

// allowed returns the contents of which one must be served under a key; an empty one is none. why names the promise.
func (m *model) allowed(k key) (want []string, why string) {
	if m.frozen != nil {
		return []string{m.frozen[k]}, "it is frozen"
	}
	want, why = m.live(k, m.last()[k])
	switch hi := m.hi[k.kind]; {
	case (m.settled() || m.open && !m.waits(k.kind)) && m.out[k.kind] && m.grace():
	case m.expire == 0 || m.settled() || m.open && !m.waits(k.kind):
		return want, why
	case !hi.IsZero() && m.now.After(hi.Add(m.expire)):
		return []string{""}, expired
	case m.now.Before(m.lo[k.kind].Add(m.expire)) && !m.faded[k.kind]:
		return want, why
	}
	return append(want, ""), why + ", and may have expired"
}

// live is allowed for an upstream that is neither frozen nor out of contact for too long.
func (m *model) live(k key, was string) (want []string, why string) {
	either, stays, goes := []string{was, ""}, []string{was}, []string{""}
	if c := m.did.dropped[k]; c != "" {
		stays, either = append(stays, c), append(either, c)
	}
	told := m.told(k)
	switch h := m.hold; {
	case len(told) > 0 && m.faded[k.kind]:
		return append(told, ""), "the source has it, and it may have expired"
	case len(told) > 0:
		return told, "the source has it"
	case was == "":
		return goes, "the source does not have it"
	case m.did.released != nil && m.did.released(k):
		if !m.quiet() || h == nil || !h.sure || h.since[k].IsZero() {
			return either, "it was released, and need not have been held yet"
		}
		return goes, "it was released"
	case (m.waits(k.kind) || !m.open) && m.gone[k] && (m.isOff() || m.did.thawed || h != nil && h.loose ||
		m.late() && (h == nil || !h.sure || h.since[k].IsZero())):
		return either, "it was gone before, and docs leave open how long that waits"
	case m.waits(k.kind):
		return stays, "a scope of its kind has not answered"
	case !m.open && (m.did.thawed || m.hanging || m.isOff() || h != nil && h.loose) && m.judgement() != holds:
		return either, "docs leave open what waits while the upstream is out of contact"
	case !m.open:
		return stays, "the upstream is out of contact"
	case !m.settled() && m.isOff():
		return either, "the guard is off, which has deletions wait"
	case !m.settled() && !m.late():
		return stays, "the stream has not answered everything"
	case h != nil && !h.since[k].IsZero():
		return m.held(k, was)
	case h != nil && h.sure && !h.loose && !m.isOff() && !m.did.repeated && !m.did.settled && h.returned.IsZero():
		return stays, "what is lost during a hold is held with it"
	case h != nil && !m.isOff():
		return either, "the hold may end"
	case m.did.settled && m.gone[k] && m.HoldFor > 0 && m.now.Sub(m.did.began) >= 10*time.Second:
		return either, "it was gone before, and may have been held since"
	case m.judgement() == holds:
		return stays, "so many deletions are held"
	case m.judgement() == passes && m.quiet():
		return goes, "so few deletions go at once"
	}
	return either, "docs leave open what becomes of the deletion"
}

// held returns what may be served of a key that is held.
func (m *model) held(k key, was string) (want []string, why string) {
	either, stays, goes := []string{was, ""}, []string{was}, []string{""}
	h, endless := m.hold, m.HoldFor.D() == 0
	judged, over := m.judgement(), !endless && h.hi >= m.HoldFor.D()
	rest := 0
	for k := range h.since {
		if len(m.told(k)) == 0 {
			rest++
		}
	}
	returned := h.returned
	if rest < len(h.since) {
		returned = m.now
	}
	early := h.since[k].Sub(h.begun) < min(time.Minute, m.HoldFor.D()/2)
	switch {
	case m.isOff() && m.quiet():
		return goes, "the guard is off"
	case judged == holds && !over:
		return stays, "it is held, and all is too much"
	case !h.sure || h.loose || m.grace():
		return either, "docs leave open whether it is held"
	case m.did.repeated && h.asked && m.quiet() && early && !endless && h.lo >= m.HoldFor.D():
		return goes, "the time of its hold is over, and the source has repeated that it is gone"
	case over && (m.did.repeated || m.did.settled):
		return either, "the time of its hold is over"
	case !h.picked[k].IsZero():
		return stays, "another part of the hold was released"
	case returned.IsZero():
		return stays, "it is held, and nothing has returned"
	case endless && 2*rest > h.most:
		return stays, "it is held without an end, and half has not returned"
	case m.did.settled && judged == passes && h.picked == nil && (!endless || 4*rest <= h.most):
		return goes, "a new stream has most of the hold again"
	case !m.did.settled && m.now.Sub(returned) < time.Minute:
		return stays, "it is held, and something has returned within a minute"
	case judged == passes && h.picked == nil && m.quiet() && rest == len(m.missing()) &&
		m.now.Sub(returned) > 61*time.Second:
		return goes, "the rest of a hold is so little that it goes"
	}
	return either, "the rest of the hold may pass the guard"
}
