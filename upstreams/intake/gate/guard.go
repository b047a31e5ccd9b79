package gate

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"meshrelay/config"
	"meshrelay/mirror"
)

// round is what the present stream has still to answer.
type round struct {
	// syncing: some scope is not answered. opening: the stream has not answered all scopes at any time. openedAt is the
	// newest departure when the stream began. Deletions wait until the time until, at most.
	syncing, opening bool
	openedAt         uint64
	until            time.Time
	// unreadable: the stream has sent elements without a readable name. torn: so were some when every scope was answered.
	unreadable, torn bool
}

// StartRound begins to wait for all scopes. The guard will judge all deletions after the departure number together.
func (g *Gate) StartRound(number uint64) {
	g.round.syncing, g.round.opening, g.round.openedAt = true, true, number
}

// Open begins a round for a new stream.
func (g *Gate) Open() {
	if !g.round.syncing || g.waiting == 0 {
		g.round.until = g.now.Add(Patience)
	}
	g.round.unreadable = false
	g.StartRound(g.newest)
}

// Unopen forgets the round of a former source, but not until when deletions wait for it.
func (g *Gate) Unopen() { g.round = round{syncing: g.round.syncing, until: g.round.until} }

// BeginUpdate starts an update: changes until EndUpdate are judged together.
func (g *Gate) BeginUpdate() {
	if g.waiting == 0 && !g.patient() {
		g.sizes.settle() // no deletion waits, so additions until now are not new any more
		if g.round.syncing && g.round.opening {
			g.before = Clock{} // no deletion of the former hold is left
		}
	}
}

// EndUpdate judges the deletions of an update and returns how many it carried out. syncing: the source has more to send.
// unreadable: it has sent elements without a readable name.
func (g *Gate) EndUpdate(syncing, unreadable bool) (removed int) {
	r := &g.round
	if syncing && !r.syncing {
		r.until = g.now.Add(Patience)
	}
	// The first readable answer of a torn stream counts, too, unless something departed since it began.
	answered := (r.opening || r.torn && g.newest == r.openedAt) && !syncing
	r.syncing, r.unreadable = syncing, unreadable
	removed = g.judge(answered && !unreadable)
	if answered {
		g.before = Clock{}
		r.opening, r.torn = false, unreadable
	}
	return removed
}

// Repeated carries out what the source has repeated, if it was asked to.
func (g *Gate) Repeated() (removed int) {
	if g.hold == nil || g.hold.Asked.IsZero() || g.round.unreadable {
		return 0 // nothing was asked for, or a name is unreadable
	}
	removed = g.carryOut(g.hold.askedAt)
	return removed + g.judge(false)
}

// Release carries out the held deletions that picks has: all, if it has all.
func (g *Gate) Release(picks func(mirror.Key) bool) {
	if g.carry(func(key mirror.Key, _ entry) bool { return picks(key) }); g.waiting == 0 {
		g.letGo()
		return
	}
	g.hold.picked = true
	g.hold.reportAt = g.now // the rest has another ID
}

// judge carries out the waiting deletions, or holds them. complete is set when a new stream has just answered
// every scope, and all names were readable.
func (g *Gate) judge(complete bool) (removed int) {
	for {
		g.sizes.note(g.now)
		reason := ""
		switch h := g.hold; {
		case g.waiting == 0:
			if !g.patient() {
				g.sizes.settle()
			}
			if h != nil {
				g.hold = nil
				g.watch.Told(Happening{What: HoldEnded, Why: "the upstream has the resources again, or they have expired", Unreported: !h.reportAt.IsZero()})
			}
			return removed
		case g.patient() && !g.isOff():
			return removed
		case h == nil:
			if why := g.tooMany(); why != "" {
				g.holdAll(why, g.of())
				return removed
			}
			return removed + g.letGo()
		case g.isOff():
			reason = "the guard is switched off"
		case g.isNormalAgain(complete):
			reason = "the upstream has most of the held resources again"
		case complete && g.isOver(): // a new stream repeats everything
			removed += g.carryOut(g.round.openedAt)
			complete = false
			continue
		default:
			return removed
		}
		g.watch.Told(Happening{What: CarriedOut, N: g.waiting, Why: reason})
		return removed + g.letGo()
	}
}

// patient reports whether deletions wait for the answers of a stream.
func (g *Gate) patient() bool { return g.round.syncing && g.now.Before(g.round.until) }

// IsImpatient reports whether a stream has still to answer, and deletions do not wait for that any more.
func (g *Gate) IsImpatient() bool { return g.round.syncing && !g.patient() }

// isOff reports whether the guard lets everything pass.
func (g *Gate) isOff() bool {
	return g.settings.Guard.Percent >= 100 && g.settings.Guard.Empty != config.EmptyHold
}

// isNormalAgain reports whether the source has enough of the held resources again: the guard would let the
// remaining deletions pass. Some resources must have returned, or half of them if the hold has no end: time
// alone, or a new stream alone, does not prove that the remaining deletions are no accident.
//
// A new stream sends everything at once. On a live stream resources return bit by bit, so the rest waits
// until nothing has returned for guardWindow, and until all names are readable. The rest of a partial release
// waits for an operator or for the source.
func (g *Gate) isNormalAgain(complete bool) bool {
	h := g.hold
	if _, ends := g.left(); !ends && 2*g.waiting > h.most || h.returned.IsZero() || h.picked || g.round.syncing || g.round.unreadable {
		return false
	}
	quiet := g.contact.Has && g.now.Sub(h.returned) >= guardWindow
	return (complete || quiet) && g.tooMany() == ""
}

// tooMany returns why the guard does not let the waiting deletions pass, empty if it does.
func (g *Gate) tooMany() string {
	byKind := map[mirror.Kind]int{}
	for key, e := range g.keys {
		if e.state.Waits() {
			byKind[key.Kind]++
		}
	}
	return g.TooMany(byKind)
}

// TooMany returns why the guard would not let so many deletions of each kind pass, empty if it would.
func (g *Gate) TooMany(byKind map[mirror.Kind]int) string {
	g.sizes.note(g.now)
	all, n := &g.sizes.all, 0
	for _, of := range byKind {
		n += of
	}
	had, most := g.had(n), all.most
	if g.exceeds(n, had) {
		return fmt.Sprintf("%d of %d resources at once", n, had)
	}
	if lost := most - (all.size - n); g.exceeds(lost, most) {
		return fmt.Sprintf("%d of %d resources within %v", lost, most, guardWindow)
	}
	if g.settings.Guard.Empty == config.EmptyHold {
		return g.emptied(byKind, n)
	}
	return ""
}

// emptied describes the upstream or the kinds that n deletions would leave empty. It returns "" if they leave
// none empty. Kinds that may be empty do not count.
func (g *Gate) emptied(byKind map[mirror.Kind]int, n int) string {
	size := g.sizes.all.size
	for _, kind := range g.settings.MayBeEmpty {
		n -= byKind[kind]
		size -= g.sizes.kind(kind).size
	}
	if n > 0 && n == size && g.round.opening && g.Synced {
		return "it comes back with nothing"
	}
	var kinds []string
	for kind, of := range byKind {
		t := g.sizes.kind(kind)
		had := t.had(of)
		if !g.Synced {
			had = t.size
		}
		every := of >= had && had >= fewest || of == t.size && t.most >= fewest
		if every && !slices.Contains(g.settings.MayBeEmpty, kind) {
			kinds = append(kinds, kind.Kind)
		}
	}
	if len(kinds) == 0 {
		return ""
	}
	slices.Sort(kinds)
	return fmt.Sprintf("every %s would go", strings.Join(kinds, ", every "))
}

func (g *Gate) exceeds(n, of int) bool {
	return n > g.settings.Guard.Count && n*100 > g.settings.Guard.Percent*of
}

// had returns the number of resources before n deletions.
func (g *Gate) had(n int) int {
	if !g.Synced {
		return g.sizes.all.size // nothing counts as new before the first sync
	}
	return g.sizes.all.had(n)
}

// of returns the number of resources with which the waiting deletions are compared.
func (g *Gate) of() int {
	if had := g.had(g.waiting); g.exceeds(g.waiting, had) {
		return had
	}
	return max(g.sizes.all.size, g.sizes.all.most)
}
