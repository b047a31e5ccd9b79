package intake_test

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"meshrelay/config"
)

// This file keeps the history by which the model judges.

// said is the word of the source about one scope.
type said struct {
	kind             string
	rank             int
	has, ever        map[string]string // the last good content by name, also of names that are gone
	bad              map[string]bool   // names whose newest content is refused
	part             map[string]bool   // names of an answer of which more follows, nil without
	opened, answered bool              // on the newest stream
}

func newSaid(kind string, rank int) *said {
	return &said{kind: kind, rank: rank, has: map[string]string{}, ever: map[string]string{}, bad: map[string]bool{}}
}

// names returns the names that the source has in a scope, good or bad.
func (s *said) names() map[string]bool {
	all := maps.Clone(s.bad)
	for name := range s.has {
		all[name] = true
	}
	return all
}

// hold is what the guard holds. Its clock has run for lo at least and for hi at most.
type hold struct {
	since        map[key]time.Time
	begun        time.Time
	lo, hi       time.Duration
	sure         bool              // it has surely begun
	loose        bool              // the guard was set anew since: docs do not tell what that does to it
	picked       map[key]time.Time // what was left when a part was released
	asked        bool              // the source was asked to repeat, on this stream
	returned     time.Time
	most, former int // of its keys; former: those of the hold before the restart that it goes on with
}

// moment is what was served after an event. It is not changed any more.
type moment struct {
	at     time.Time
	served map[key]string
}

// did is what the present event is.
type did struct {
	settled, bare, thawed, repeated bool // settled: a stream has just answered everything; bare: with nothing
	released                        func(key) bool
	began                           time.Time      // of the stream that has settled
	judged                          *int           // the judgement, once it was asked for
	dropped                         map[key]string // of scopes of another server, which count no more
}

// disk is what a flush has written.
type disk struct {
	served, frozen map[key]string
	lo, hi         map[string]time.Time
	hold           *hold
	ticks          bool // contact is written again and again
}

type model struct {
	config.Guard
	expire     time.Duration
	now        time.Time
	scopes     map[string]*said
	past       []moment
	open, bare bool
	restarted  bool                 // the process has begun with what is on the disk
	unsettled  time.Time            // since when streams have not answered everything, zero if the stream has
	hanging    bool                 // contact was lost while a deletion had to wait for moments
	emptied    time.Time            // when a scope lost its last name
	gone       map[key]bool         // of what was ever served: whether all scopes told that they lack it, on any stream
	stirred    time.Time            // when something else than the source has removed, held or brought resources
	reopened   bool                 // without a loss of contact between two streams
	lo, hi     map[string]time.Time // the last contact, by kind: the earliest and the latest that docs allow
	faded, out map[string]bool      // kinds that may have expired: before the restart, and at all
	frozen     map[key]string
	hold       *hold
	before     *hold // of before the restart
	did        did
}

func newModel(now time.Time, g config.Guard, expire time.Duration) *model {
	return &model{
		Guard: g, expire: expire, now: now, past: []moment{{at: now}}, unsettled: now,
		scopes: map[string]*said{}, gone: map[key]bool{}, lo: map[string]time.Time{}, hi: map[string]time.Time{},
		faded: map[string]bool{}, out: map[string]bool{},
	}
}

// advance begins an event.
func (m *model) advance(now time.Time) {
	if h := m.hold; h != nil && m.open {
		h.hi += now.Sub(m.now)
		if m.settled() && h.sure {
			h.lo += now.Sub(m.now)
		}
	}
	m.now, m.did = now, did{dropped: map[key]string{}}
	for _, s := range m.scopes {
		switch {
		case m.open && (m.settled() || !m.waits(s.kind)):
			m.lo[s.kind], m.hi[s.kind] = now, now
		case m.open && (m.reopened || s.answered || s.part != nil):
			m.hi[s.kind] = now
		}
	}
	if m.settled() {
		m.lo[""] = now
	}
}

// observe takes in what is served after the event, which was checked, and tells what is held by now.
func (m *model) observe(served map[key]string, asks bool) error {
	for k := range m.last() {
		if b := m.before; b != nil && served[k] == "" {
			m.before = &hold{hi: b.hi, former: b.former} // what is held later is another hold
		}
	}
	m.past = append(m.past, moment{m.now, served})
	h, missing := m.hold, m.missing()
	for _, kind := range kinds {
		if fresh := m.open && !m.waits(kind); fresh && !m.grace() {
			delete(m.out, kind)
			delete(m.faded, kind)
		} else if !fresh && m.expire > 0 && !m.now.Before(m.lo[kind].Add(m.expire)) {
			m.out[kind] = true
		}
	}
	for k := range m.gone {
		m.gone[k] = len(m.told(k)) == 0 && (m.gone[k] || !m.waits(k.kind))
	}
	for k := range served {
		was, seen := m.gone[k] // what a rollback brings, the source need never have told
		m.gone[k] = was || missing[k] || !seen && len(m.told(k)) == 0
	}
	if h != nil {
		for k := range h.since {
			if _, is := served[k]; is && len(m.told(k)) == 0 {
				continue
			} else if delete(h.since, k); is {
				delete(h.picked, k)
				h.returned = m.now
			} else if m.did.released == nil {
				h.lo = 0 // another hold may have begun with the rest
			}
		}
		if m.did.released != nil {
			h.picked, h.loose = maps.Clone(h.since), h.loose || !m.quiet()
		}
	}
	if m.frozen == nil && len(missing) > 0 && (m.settled() || m.open && m.late() || m.did.thawed || m.hanging) {
		if h == nil {
			h = &hold{since: map[key]time.Time{}, begun: m.now, returned: time.Time{}}
			if b := m.before; b != nil {
				h.hi, h.former = b.hi, b.former
				if m.settled() && len(missing) <= b.former && !m.grace() { // it goes on where it was
					h.lo = max(0, b.lo-max(time.Second, min(time.Minute, m.HoldFor.D()/10)))
				}
			}
		}
		for k := range missing {
			if h.since[k].IsZero() {
				h.since[k], h.loose = m.now, h.loose || m.hold != nil && !m.quiet()
			}
		}
		h.sure, h.most = h.sure || m.quiet(), max(h.most, len(h.since))
	}
	for k := range missing {
		if h != nil && h.since[k].IsZero() { // in the middle of a sync
			h.since[k], h.loose = m.now, true
		}
	}
	if m.settled() {
		m.before = nil
	}
	if m.did.settled || m.hold != nil || h != nil || m.frozen != nil || !m.settled() {
		m.stirred = m.now
	}
	if m.hold = h; h == nil || len(h.since) == 0 || m.frozen != nil {
		m.hold = nil
		return nil
	}
	h.asked = h.asked || asks
	if m.quiet() && h.sure && !h.loose && m.HoldFor > 0 && h.lo > m.HoldFor.D() && !h.asked {
		return fmt.Errorf("the time of the hold is over, and the source is not asked to repeat")
	}
	return nil
}

// The events.

// opened begins a stream of these scopes.
func (m *model) opened(now time.Time, scopes map[string]*said) {
	m.reopened = m.open
	if m.advance(now); m.unsettled.IsZero() {
		m.unsettled = now
	}
	for _, s := range m.scopes {
		s.opened, s.answered, s.part = false, false, nil
	}
	for name, s := range scopes {
		m.scope(name, s.kind, s.rank).opened = true
	}
	m.open, m.bare, m.hanging = true, true, false
	if m.hold != nil {
		m.hold.asked = false
	}
}

func (m *model) scope(name, kind string, rank int) *said {
	if m.scopes[name] == nil {
		m.scopes[name] = newSaid(kind, rank)
	}
	return m.scopes[name]
}

func (m *model) closed(now time.Time) {
	m.advance(now)
	m.hanging = m.grace() || m.late()
	if m.settled() {
		m.unsettled = now
	}
	m.open, m.reopened = false, false
	for _, s := range m.scopes {
		s.part = nil
	}
	if m.hold != nil {
		m.hold.asked = false
	}
}

// answered takes in an answer: "" is content that is refused.
func (m *model) answered(s *said, complete, part bool, has map[string]string, removed []string) {
	before := len(s.has) + len(s.bad)
	if complete && s.part == nil {
		s.part = map[string]bool{}
	}
	for name, c := range has {
		if delete(s.bad, name); c == "" {
			s.bad[name] = true
		} else {
			s.has[name], s.ever[name] = c, c
		}
		if complete {
			s.part[name] = true
		}
	}
	m.bare = m.bare && complete && len(has) == 0
	if part {
		return
	}
	gone := func(name string) bool { return complete && !s.part[name] || slices.Contains(removed, name) }
	maps.DeleteFunc(s.has, func(name, _ string) bool { return gone(name) })
	maps.DeleteFunc(s.bad, func(name string, _ bool) bool { return gone(name) })
	if s.part, s.answered = nil, true; len(s.has)+len(s.bad) == 0 && before > 0 {
		m.emptied = m.now
	}
	if m.waits(s.kind) {
		return
	}
	all := true
	for name, other := range m.scopes {
		if other.kind == s.kind && !other.opened { // it is of another server
			for name, c := range other.has {
				m.did.dropped[key{s.kind, name}] = c
			}
			delete(m.scopes, name)
		}
		all = all && !m.waits(other.kind)
	}
	if all && !m.unsettled.IsZero() {
		m.did.settled, m.did.bare, m.did.began, m.unsettled = true, m.bare, m.unsettled, time.Time{}
	}
}

// flush returns what the disk has to have now.
func (m *model) flush() *disk {
	d := &disk{served: m.last(), frozen: m.frozen, lo: maps.Clone(m.lo), hi: maps.Clone(m.hi), ticks: m.expire > 0}
	if h := m.hold; h != nil {
		d.hold = &hold{lo: h.lo, hi: h.hi, former: len(h.since)}
	} else if m.before != nil {
		d.hold = m.before
	}
	return d
}

// restart begins a process with what a flush has written; scopes has it by scope.
func (m *model) restart(now time.Time, d *disk, scopes map[string]*said) {
	m.now, m.did = now, did{}
	m.scopes, m.open, m.unsettled, m.hold, m.before, m.frozen = scopes, false, now, nil, d.hold, d.frozen
	m.restarted = true
	m.past, m.gone = append(m.past, moment{now, d.served}), map[key]bool{}
	lo := time.Time{}
	if d.ticks {
		lo = d.lo[""].Add(-min(time.Minute, m.expire/10))
	}
	m.lo, m.hi, m.faded = map[string]time.Time{"": lo}, map[string]time.Time{}, map[string]bool{}
	latest := time.Time{}
	for _, t := range d.hi {
		if t.After(latest) {
			latest = t
		}
	}
	for _, kind := range kinds {
		m.lo[kind], m.hi[kind] = lo, latest
		m.out[kind] = true
		m.faded[kind] = m.frozen == nil && m.expire > 0 && !now.Before(lo.Add(m.expire))
	}
}

func (m *model) freeze(served map[key]string) { m.frozen = maps.Clone(served) }

func (m *model) unfreeze() {
	m.frozen, m.did.thawed = nil, true
	for _, kind := range kinds { // staleness counts again
		m.hi[kind] = m.now
	}
}

func (m *model) setPolicy(g config.Guard, expire time.Duration) {
	if old := m.Guard; m.hold != nil {
		old.HoldFor = g.HoldFor
		m.hold.loose = m.hold.loose || old != g
	}
	m.Guard, m.expire = g, expire
}
