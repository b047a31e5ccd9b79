package gate

import (
	"time"

	"meshrelay/config"
	"meshrelay/mirror"
)

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
	if g.round.syncing {
		later(g.round.until)
	}
	if h := g.hold; h != nil {
		later(h.reportAt)
		if g.contact.Has {
			if left, ends := g.left(); ends && left > 0 {
				later(g.now.Add(left))
			} else if ends && !h.Asked.IsZero() {
				later(h.Asked.Add(repeatEvery))
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
	if !c.Has && !c.Stale && !c.Since.IsZero() && g.now.Sub(c.Since) >= g.settings.Staleness.StaleAfter.D() {
		c.Stale = true
		g.watch.Told(Happening{What: BecameStale})
	}
	if !g.isExpired(time.Time{}) {
		return // a kind was last known at the last contact, or later
	}
	gone := map[mirror.Kind]int{}
	for _, kind := range g.served.Kinds() {
		if !g.Withholds(kind) {
			continue
		}
		for _, r := range g.served.List(kind, "") {
			g.on(r.Key(), expires)
			gone[kind]++
		}
	}
	if len(gone) > 0 {
		g.sizes.forget()
		g.watch.Told(Happening{What: Expired, Gone: gone})
	}
}

// Staleness returns the settings by which the source becomes stale.
func (g *Gate) Staleness() config.Staleness { return g.settings.Staleness }

// Set sets the settings. It reports whether something may no longer have expired by them.
func (g *Gate) Set(s Settings) (back bool) {
	back = g.isExpired(time.Time{}) && s.Staleness != g.settings.Staleness
	g.settings = s
	if g.hold != nil && !g.isOver() {
		g.hold.Asked = time.Time{} // holdFor is longer now: ignore the answer to the earlier request
	}
	return back
}

// RestoreContact makes what was restored stale until the source has given all its content.
func (g *Gate) RestoreContact(last time.Time, lasted bool) {
	c := &g.contact
	c.Since, c.Lasted, c.Stale = last, lasted && !last.IsZero(), true
	if last.IsZero() || last.After(g.now) { // the clock was set back
		c.Since = g.now
	}
}

// Lose notes the end of the contact, or the end of a stream that did not bring contact. It reports whether there was one.
func (g *Gate) Lose() (had bool) {
	c := &g.contact
	had = c.Has
	if had || c.Since.IsZero() && g.Size() > 0 { // or the stream did not give all its content
		c.Has, c.Since = false, g.now
	}
	for kind, ended := range c.told {
		if ended.IsZero() {
			c.told[kind] = g.now
		}
	}
	if h := g.hold; h != nil { // the clock stops, and what was asked for does not come
		h.ran, h.running, h.Asked = h.elapsed(g.now), time.Time{}, time.Time{}
	}
	return had
}

// Regain notes that the source is in contact. It reports whether something had expired.
func (g *Gate) Regain() (back bool) {
	back = g.isExpired(time.Time{})
	g.contact.Contact = Contact{Has: true}
	clear(g.contact.told)
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
