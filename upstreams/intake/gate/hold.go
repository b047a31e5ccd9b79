package gate

import (
	"time"

	"meshrelay/mirror"
)

const (
	reportAfter = time.Second // delays the report of a hold: a source deletes type by type
	repeatEvery = time.Minute // between two requests to the source to repeat what it has
	// manyGone is how many removed resources of a kind are worth a warning, if none is left.
	manyGone = 5
)

// holdAll begins to hold all waiting deletions, of so many resources.
func (g *Gate) holdAll(why string, of int) {
	g.hold = &hold{Hold: Hold{Number: g.changes, Since: g.now, Of: of, Why: why}, reportAt: g.now.Add(reportAfter)}
	for key := range g.keys {
		g.on(key, holds) // the clock of the new hold starts at zero
	}
	if b := g.before; !b.Since.IsZero() && g.waiting <= b.N { // with more deletions, the clock starts at zero
		g.hold.Since, g.hold.ran = b.Since, b.Ran
	}
	g.before = Clock{}
	if g.contact.Has {
		g.hold.running = g.now
	}
}

// RestoreHold has the next hold go on with the clock of a former process.
func (g *Gate) RestoreHold(c Clock) { g.before = c }

// askToRepeat asks the source to repeat what it has, once the clock is over.
func (g *Gate) askToRepeat() {
	h := g.hold
	if h == nil || !g.contact.Has || !g.isOver() || !h.Asked.IsZero() && g.now.Sub(h.Asked) < repeatEvery {
		return
	}
	again := !h.Asked.IsZero()
	if !again {
		h.askedAt = g.newest
	}
	h.Asked = g.now
	g.watch.Told(Happening{What: AskRepeat, N: g.waiting, Again: again})
}

// Report reports a hold that was not reported yet: with its time, or now.
func (g *Gate) Report(now bool) {
	if g.hold == nil || g.hold.reportAt.IsZero() || !now && g.now.Before(g.hold.reportAt) {
		return
	}
	g.hold.reportAt = time.Time{}
	g.watch.Told(Happening{What: HoldBegan, N: g.waiting})
}

// carryOut ends a hold whose time has passed. It removes the departures up to the number upTo, which the
// source has repeated. The guard judges newer ones again, and those that joined the hold late.
func (g *Gate) carryOut(upTo uint64) (removed int) {
	latest := min(guardWindow, g.settings.Guard.HoldFor.D()/2)
	removed = g.carry(func(_ mirror.Key, e entry) bool { return e.number <= upTo && e.joined <= latest })
	if removed > 0 {
		g.watch.Told(Happening{What: CarriedOut, N: removed, Why: "guard.holdFor is over, and the upstream has repeated them", After: g.now.Sub(g.hold.Since)})
	}
	g.endHold()
	return removed
}

// letGo carries out all deletions that wait.
func (g *Gate) letGo() (removed int) {
	removed = g.carry(func(mirror.Key, entry) bool { return true })
	g.endHold()
	g.sizes.settle()
	g.sizes.note(g.now)
	return removed
}

// carry carries out the deletions that which picks.
func (g *Gate) carry(which func(mirror.Key, entry) bool) (removed int) {
	byKind := map[mirror.Kind]int{}
	for key, e := range g.keys {
		if e.state.Waits() && which(key, e) {
			g.on(key, passes)
			removed++
			byKind[key.Kind]++
		}
	}
	// A misconfigured upstream looks like this (PROTOCOL C8).
	for kind, n := range byKind {
		if n < manyGone || g.SizeOf(kind) > 0 {
			delete(byKind, kind)
		}
	}
	if len(byKind) > 0 {
		g.watch.Told(Happening{What: Emptied, Gone: byKind})
	}
	return removed
}

// endHold ends the hold, if there is one. The guard will judge the remaining departures again.
func (g *Gate) endHold() {
	if g.before = (Clock{}); g.hold == nil {
		return
	}
	for key := range g.keys {
		g.on(key, holdEnds)
	}
	g.hold = nil
	g.changes++
	g.sizes.forget()
}
