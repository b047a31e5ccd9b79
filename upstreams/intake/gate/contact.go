package gate

import (
	"time"

	"meshrelay/mirror"
)

// Contact is the contact with the source.
type Contact struct {
	Has, Stale bool
	Since      time.Time // of the last contact, zero if there was none
	Lasted     bool      // there was a later contact than Since: a former process was killed before it wrote the time
}

// contact is a Contact. What the source has expires while it is lost for too long.
type contact struct {
	Contact
	// told has the kinds that a stream has answered before the source came in contact. The time is zero while
	// the stream is open, and otherwise the end of the stream.
	told map[mirror.Kind]time.Time
}

// Contact returns the contact with the source.
func (g *Gate) Contact() Contact { return g.contact.Contact }

// RestoreContact makes what was restored stale until the source has given all its content.
func (g *Gate) RestoreContact(last time.Time, lasted bool) {
	if last.After(g.now) {
		last = g.now // the clock was set back
	}
	c := &g.contact
	c.Since, c.Lasted, c.Stale = last, lasted && !last.IsZero(), true
	if last.IsZero() {
		c.Since = g.now
	}
}

// Lose notes the end of the contact, or the end of a stream that did not bring contact. It reports whether there was one.
func (g *Gate) Lose() (had bool) {
	c := &g.contact
	if had = c.Has; had {
		c.Has, c.Since = false, g.now
	}
	for kind, ended := range c.told {
		if ended.IsZero() {
			c.told[kind] = g.now
		}
	}
	if c.Since.IsZero() && g.Size() > 0 {
		c.Since = g.now // the stream did not give all its content
	}
	if h := g.hold; h != nil { // the clock stops, and what was asked for does not come
		h.ran, h.running, h.asked = h.elapsed(g.now), time.Time{}, time.Time{}
	}
	return had
}

// Regain notes that the source is in contact. It reports whether something had expired.
func (g *Gate) Regain() (back bool) {
	c := &g.contact
	back = g.isExpired(time.Time{})
	c.Has, c.Stale, c.Lasted, c.Since = true, false, false, time.Time{}
	clear(c.told)
	if g.hold != nil {
		g.hold.running = g.now
	}
	return back
}

// Freshen notes that the open stream has answered a kind. It reports whether that had expired.
func (g *Gate) Freshen(kind mirror.Kind) (back bool) {
	if g.contact.Has {
		return false
	}
	back = g.Withholds(kind)
	g.contact.told[kind] = time.Time{}
	return back
}

// Withholds reports whether a kind is not served because it has expired.
func (g *Gate) Withholds(kind mirror.Kind) bool {
	if g.contact.Has {
		return false
	}
	ended, told := g.contact.told[kind]
	return (!told || !ended.IsZero()) && g.isExpired(ended)
}

// isExpired reports whether what was last known at a time has expired: then, or at the last contact if that is later.
func (g *Gate) isExpired(known time.Time) bool {
	c, after := &g.contact, g.settings.Staleness.ExpireAfter.D()
	if after == 0 || g.frozen || c.Has || c.Since.IsZero() {
		return false
	}
	if c.Since.After(known) {
		known = c.Since
	}
	return g.now.Sub(known) >= after
}

// Set sets the settings. It reports whether something may no longer have expired by them.
func (g *Gate) Set(s Settings) (back bool) {
	back = g.isExpired(time.Time{}) && s.Staleness != g.settings.Staleness
	g.settings = s
	if g.hold != nil && !g.isOver() {
		g.hold.asked = time.Time{} // holdFor is longer now: ignore the answer to the earlier request
	}
	return back
}

// ExpireTimers does what is due: it expires what is stale, judges, reports, and asks the source to repeat.
func (g *Gate) ExpireTimers() {
	g.expire()
	if g.waiting > 0 || g.hold != nil {
		g.judge(false)
	}
	g.Report(false)
	g.askToRepeat()
}

// NextDeadline passes the times of the next ExpireTimers to later, also times in the past.
func (g *Gate) NextDeadline(later func(time.Time)) {
	if g.waiting > 0 && g.hold == nil && g.round.syncing {
		later(g.round.until)
	}
	if h := g.hold; h != nil {
		later(h.reportAt)
		if g.contact.Has {
			if left, ends := g.left(); ends && left > 0 {
				later(g.now.Add(left))
			} else if ends && !h.asked.IsZero() {
				later(h.asked.Add(repeatEvery))
			}
			later(h.returned.Add(guardWindow))
		}
	}
	c := &g.contact
	if c.Has || c.Since.IsZero() {
		return
	}
	later(c.Since.Add(g.settings.Staleness.StaleAfter.D()))
	if after := g.settings.Staleness.ExpireAfter.D(); after > 0 {
		later(c.Since.Add(after))
		for _, ended := range c.told {
			if !ended.IsZero() {
				later(ended.Add(after))
			}
		}
	}
}

// expire reports a source that has become stale, and drops what has expired.
func (g *Gate) expire() {
	c := &g.contact
	if c.Has {
		return
	}
	if !c.Stale && !c.Since.IsZero() && g.now.Sub(c.Since) >= g.settings.Staleness.StaleAfter.D() {
		c.Stale = true
		g.watch.Told(Happening{What: BecameStale})
	}
	if g.frozen || g.settings.Staleness.ExpireAfter == 0 {
		return
	}
	gone, n := map[mirror.Kind]int{}, 0
	for _, kind := range g.served.Kinds() {
		if !g.Withholds(kind) {
			continue
		}
		for _, r := range g.served.List(kind, "") {
			g.on(r.Key(), expires)
			gone[kind]++
			n++
		}
	}
	if n > 0 {
		g.sizes.forget()
		g.watch.Told(Happening{What: Expired, N: n, Gone: gone})
	}
}
