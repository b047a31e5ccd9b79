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

// Withholds reports whether a kind is not served because it has expired. What drops, serves and restores
// asks it, so a rule about what expires is here.
func (g *Gate) Withholds(kind mirror.Kind) bool {
	ended, told := g.contact.told[kind]
	return (!told || !ended.IsZero()) && g.isExpired(ended)
}

// isExpired reports whether what was last known at a time has expired: then, or at the last contact if that is later.
// Nothing expires in a freeze, but its time counts.
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

// Hold is the open hold.
type Hold struct {
	Number uint64 // no other hold of this Gate has it
	Since  time.Time
	Of     int // resources that the source had
	Why    string
	Asked  time.Time     // when the source was last asked to repeat
	Left   time.Duration // on the clock
	Ends   bool          // false: only an operator or the source ends it
	Runs   bool          // the clock runs
	For    time.Duration // guard.holdFor
}

// hold is the clock of the deletions that the guard holds. It runs while the source is in contact.
// When it is over, the source has to repeat the deletions.
type hold struct {
	Hold
	most int // resources that were held at once
	// ran is the time until running, when the clock last started. running is zero while the clock
	// is stopped.
	ran      time.Duration
	running  time.Time
	askedAt  uint64    // the newest departure when the source was first asked to repeat
	returned time.Time // when a held resource last returned
	// picked: an operator has released a part. The rest waits for the clock or another release.
	picked   bool
	reportAt time.Time // when the hold is reported, zero afterwards
}

func (h *hold) elapsed(now time.Time) time.Duration {
	if h.running.IsZero() {
		return h.ran
	}
	return h.ran + now.Sub(h.running)
}

// left returns the time left of the hold. ends is false for a hold without an end.
func (g *Gate) left() (left time.Duration, ends bool) {
	of := g.settings.Guard.HoldFor.D()
	if of == 0 {
		return 0, false
	}
	return max(of-g.hold.elapsed(g.now), 0), true
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
	h = g.hold.Hold
	h.Runs, h.For = !g.hold.running.IsZero(), g.settings.Guard.HoldFor.D()
	h.Left, h.Ends = g.left()
	return h, true
}

// Holding reports whether a hold is open.
func (g *Gate) Holding() bool { return g.hold != nil }

// Clock is what the disk has of a hold: since when, how long its clock ran, and of how many deletions.
type Clock struct {
	Since time.Time
	Ran   time.Duration
	N     int
}

// HoldClock returns what the disk has to keep of a hold.
func (g *Gate) HoldClock() Clock {
	if g.hold == nil {
		return g.before
	}
	return Clock{g.hold.Since, g.hold.elapsed(g.now), g.waiting}
}
