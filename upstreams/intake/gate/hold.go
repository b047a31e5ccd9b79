package gate

import (
	"time"

	"meshrelay/mirror"
)

const (
	reportAfter = time.Second // delays the report of a hold: a source deletes type by type
	repeatEvery = time.Minute // between two requests to the source to repeat what it has
)

// hold is the clock of the deletions that the guard holds. It runs while the source is in contact.
// When it is over, the source has to repeat the deletions.
type hold struct {
	since time.Time
	of    int
	most  int // resources that were held at once
	why   string
	// ran is the time until running, when the clock last started. running is zero while the clock
	// is stopped.
	ran     time.Duration
	running time.Time
	// asked is when the source was last asked to repeat. askedAt is the newest departure when it
	// was first asked.
	asked    time.Time
	askedAt  uint64
	returned time.Time // when a held resource last returned
	// picked: an operator has released a part. The rest waits for the clock or another release.
	picked   bool
	reportAt time.Time // when the hold is reported, zero afterwards
}

// Clock is what the disk has of a hold: since when, how long its clock ran, and of how many deletions.
type Clock struct {
	Since time.Time
	Ran   time.Duration
	N     int
}

// Hold is the open hold.
type Hold struct {
	Number uint64 // of the holds of this Gate
	Since  time.Time
	Of     int // resources that the source had
	Why    string
	Asked  time.Time     // when the source was last asked to repeat
	Left   time.Duration // on the clock
	Ends   bool          // false: only an operator or the source ends it
	Runs   bool          // the clock runs
	Lasted time.Duration
	For    time.Duration // guard.holdFor
}

func (h *hold) elapsed(now time.Time) time.Duration {
	if h.running.IsZero() {
		return h.ran
	}
	return h.ran + now.Sub(h.running)
}

// holdAll begins to hold all waiting deletions.
func (g *Gate) holdAll(why string) {
	g.holds++
	g.hold = &hold{since: g.now, of: g.of(), why: why, reportAt: g.now.Add(reportAfter)}
	for key := range g.keys {
		g.on(key, holds) // the clock of the new hold starts at zero
	}
	if b := g.before; !b.Since.IsZero() && g.waiting <= b.N { // with more deletions, the clock starts at zero
		g.hold.since, g.hold.ran = b.Since, b.Ran
	}
	g.before = Clock{}
	if g.contact.Has {
		g.hold.running = g.now
	}
}

// left returns the time left of the hold. ends is false for a hold without an end.
func (g *Gate) left() (left time.Duration, ends bool) {
	of := g.settings.Guard.HoldFor
	if of == 0 {
		return 0, false
	}
	return max(of.D()-g.hold.elapsed(g.now), 0), true
}

func (g *Gate) isOver() bool {
	left, ends := g.left()
	return ends && left == 0
}

// Hold returns the open hold; is is false if there is none.
func (g *Gate) Hold() (h Hold, is bool) {
	if g.hold == nil {
		return Hold{}, false
	}
	h = Hold{
		Number: g.holds, Since: g.hold.since, Of: g.hold.of, Why: g.hold.why, Asked: g.hold.asked,
		Runs: !g.hold.running.IsZero(), Lasted: g.now.Sub(g.hold.since), For: g.settings.Guard.HoldFor.D(),
	}
	h.Left, h.Ends = g.left()
	return h, true
}

// Holding reports whether a hold is open.
func (g *Gate) Holding() bool { return g.hold != nil }

// HoldClock returns what the disk has to keep of a hold.
func (g *Gate) HoldClock() Clock {
	if g.hold == nil {
		return g.before
	}
	return Clock{g.hold.since, g.hold.elapsed(g.now), g.waiting}
}

// RestoreHold has the next hold go on with the clock of a former process.
func (g *Gate) RestoreHold(c Clock) { g.before = c }

// askToRepeat asks the source to repeat what it has, once the clock is over.
func (g *Gate) askToRepeat() {
	h := g.hold
	if h == nil || !g.contact.Has || !g.isOver() || !h.asked.IsZero() && g.now.Sub(h.asked) < repeatEvery {
		return
	}
	again := !h.asked.IsZero()
	if !again {
		h.askedAt = g.newest
	}
	h.asked = g.now
	g.watch.Told(Happening{What: AskRepeat, N: g.waiting, Again: again})
}

// Repeated carries out what the source has repeated, if it was asked to.
func (g *Gate) Repeated() (removed int) {
	if g.hold == nil || g.hold.asked.IsZero() || g.round.unreadable {
		return 0 // nothing was asked for, or a name is unreadable
	}
	removed = g.carryOut(g.hold.askedAt)
	return removed + g.judge(false)
}

// carryOut ends a hold whose time has passed. It removes the departures up to the number upTo, which the
// source has repeated. The guard judges newer ones again, and those that joined the hold late.
func (g *Gate) carryOut(upTo uint64) (removed int) {
	latest := min(guardWindow, g.settings.Guard.HoldFor.D()/2)
	removed = g.carry(func(_ mirror.Key, e entry) bool { return e.number <= upTo && e.joined <= latest })
	if removed > 0 {
		g.watch.Told(Happening{What: CarriedOut, N: removed, Why: "guard.holdFor is over, and the upstream has repeated them", After: g.now.Sub(g.hold.since)})
	}
	g.endHold()
	return removed
}

// endHold ends the hold. The guard will judge the remaining departures again.
func (g *Gate) endHold() {
	for key := range g.keys {
		g.on(key, holdEnds)
	}
	g.hold, g.before = nil, Clock{}
	g.changes++
	g.sizes.forget()
}

// Report reports a hold that was not reported yet: with its time, or now.
func (g *Gate) Report(now bool) {
	if g.hold == nil || g.hold.reportAt.IsZero() || !now && g.now.Before(g.hold.reportAt) {
		return
	}
	g.hold.reportAt = time.Time{}
	g.watch.Told(Happening{What: HoldBegan, N: g.waiting})
}

// Release carries out the held deletions that picks has: all, if it has all.
func (g *Gate) Release(picks func(mirror.Key) bool) {
	all := true
	for key, e := range g.keys {
		all = all && (!e.state.Waits() || picks(key))
	}
	if all {
		g.letGo()
		return
	}
	g.carry(func(key mirror.Key, _ entry) bool { return picks(key) })
	g.hold.picked = true
	g.hold.reportAt = g.now // the rest has another ID
}
