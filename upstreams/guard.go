package upstreams

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"meshrelay/config"
	"meshrelay/mirror"
)

// judge carries deletions out, or holds them. complete tells that a new stream has just
// answered everything.
func (g *gate) judge(now time.Time, complete bool) (removed int) {
	g.tallies.note(now)
	if len(g.leaving) == 0 {
		if !g.syncing || !now.Before(g.syncingUntil) {
			g.tallies.settle()
		}
		if g.held != nil {
			g.log.Info("no deletions held any more", "reason", "the upstream has the resources again, or they have expired")
			g.held, g.lookedAt = nil, nil
			g.stir()
		}
		return 0
	}
	if g.syncing && now.Before(g.syncingUntil) && !g.isOff() {
		return 0
	}
	if g.held != nil {
		reason := ""
		switch {
		case g.isOff():
			reason = "the guard is switched off"
		case g.isNormalAgain(now, complete):
			reason = "the upstream has most of what was held again"
		case complete && g.isOver(now):
			return g.carryOut(now, g.openedAt) // a new stream repeats everything
		default:
			return 0
		}
		g.log.Warn("held deletions carried out", "reason", reason, "removed", len(g.leaving))
		return g.letGo()
	}
	why := g.tooMany(now)
	if why == "" {
		return g.letGo()
	}
	g.held = &hold{since: now, of: g.of(), why: why}
	for key, d := range g.leaving {
		d.joined = 0 // the clock is another one
		g.leaving[key] = d
	}
	if !g.before.since.IsZero() && len(g.leaving) <= g.before.held {
		g.held.since, g.held.ran = g.before.since, g.before.ran
	}
	g.before = heldBefore{}
	if g.stale.inContact {
		g.held.start(now)
	}
	g.toSay = now.Add(holdSaid)
	g.stir()
	return 0
}

// isNormalAgain reports whether a source of which deletions are held has so much of that again
// that the guard would have let the rest pass. Where nothing has returned, nothing has changed:
// that the minute is over, or the stream another one, makes no accident a deletion.
//
// A new stream tells that as a whole. On a live one things return bit by bit, so that what has
// not returned yet looks like what is gone: it waits until nothing has returned for a while.
// What is held for ever goes when a person wants it, or is had again; and so does the rest of
// what a person has released in part.
func (g *gate) isNormalAgain(now time.Time, complete bool) bool {
	if _, ends := g.left(now); !ends || g.held.returned.IsZero() || g.held.picked || g.syncing {
		return false
	}
	quiet := g.stale.inContact && now.Sub(g.held.returned) >= guardWindow
	return (complete || quiet) && g.tooMany(now) == ""
}

// tooMany returns why the deletions at hand are more than the guard lets pass, or nothing.
func (g *gate) tooMany(now time.Time) string {
	byKind := map[mirror.Kind]int{}
	for key := range g.leaving {
		byKind[key.Kind]++
	}
	return g.tooManyOf(byKind, now)
}

// tooManyOf is tooMany for so many deletions of each kind.
func (g *gate) tooManyOf(byKind map[mirror.Kind]int, now time.Time) string {
	g.tallies.note(now)
	all, n := &g.tallies.all, 0
	for _, of := range byKind {
		n += of
	}
	had, most := g.had(n), all.peaks.most
	if g.exceeds(n, had) {
		return fmt.Sprintf("%d of %d resources at once", n, had)
	}
	if lost := most - (all.size - n); g.exceeds(lost, most) {
		return fmt.Sprintf("%d of %d resources within %v", lost, most, guardWindow)
	}
	if g.guard.Empty == config.EmptyHold {
		return g.emptied(byKind, n)
	}
	return ""
}

// emptied returns what the deletions at hand leave nothing of, or nothing. n is how many they
// are. A MeshConfig, which an istiod without any config has, does not count.
func (g *gate) emptied(byKind map[mirror.Kind]int, n int) string {
	n -= byKind[mirror.MeshConfig]
	size := g.tallies.all.size - g.tallies.kind(mirror.MeshConfig).size
	if n > 0 && n == size && g.opening && g.synced {
		return "it comes back with nothing"
	}
	var kinds []string
	for kind, of := range byKind {
		t := g.tallies.kind(kind)
		had := t.had(of)
		if !g.synced {
			had = t.size
		}
		every := of >= had && had >= fewest || of == t.size && t.peaks.most >= fewest
		if kind != mirror.MeshConfig && every {
			kinds = append(kinds, kind.Kind)
		}
	}
	if len(kinds) == 0 {
		return ""
	}
	slices.Sort(kinds)
	return fmt.Sprintf("every %s would go", strings.Join(kinds, ", every "))
}

// isOff reports whether the guard lets everything pass.
func (g *gate) isOff() bool { return g.guard.Percent >= 100 && g.guard.Empty != config.EmptyHold }

func (g *gate) exceeds(n, of int) bool { return n > g.guard.Count && n*100 > g.guard.Percent*of }

// had returns how many resources the source had before n deletions.
func (g *gate) had(n int) int {
	if !g.synced {
		return g.tallies.all.size // it had nothing before
	}
	return g.tallies.all.had(n)
}

// of returns what the deletions at hand are a share of.
func (g *gate) of() int {
	if had := g.had(len(g.leaving)); g.exceeds(len(g.leaving), had) {
		return had
	}
	return max(g.tallies.all.size, g.tallies.all.peaks.most)
}

// letGo carries out all deletions at hand.
func (g *gate) letGo() (removed int) {
	removed = g.carry(func(mirror.Key, departure) bool { return true })
	if g.held != nil {
		g.endHold()
	}
	g.tallies.settle()
	g.before = heldBefore{}
	g.tallies.note(time.Now())
	return removed
}

// manyGone is how many resources of a kind have to vanish at once, and leave none, for
// that to be worth a warning.
const manyGone = 5

// sayEmptied warns of kinds of which nothing is left. It may be meant, and it is what a
// misconfigured upstream looks like (PROTOCOL C8).
func (g *gate) sayEmptied(removed map[mirror.Kind]int) {
	for kind, n := range removed {
		if n >= manyGone && g.store.Counts()[kind] == 0 {
			g.log.Warn("upstream has nothing left of a kind; all of it was removed", "kind", kind, "removed", n)
		}
	}
}
