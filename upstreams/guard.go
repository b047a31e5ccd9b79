package upstreams

import (
	"fmt"
	"time"

	"meshrelay/mirror"
)

// judge lets deletions pass, or holds them. complete says that a new stream has just
// answered everything.
func (g *gate) judge(now time.Time, complete bool) (removed int) {
	g.peaks.note(now, g.size)
	if len(g.leaving) == 0 {
		if !g.syncing || !now.Before(g.syncingUntil) {
			g.added = 0
		}
		if g.held != nil {
			g.log.Info("nothing is held any more: the upstream has it again, or it has expired")
			g.held = nil
			g.stir()
		}
		return 0
	}
	if g.syncing && now.Before(g.syncingUntil) && g.guard.Percent < 100 {
		return 0
	}
	if h := g.held; h != nil {
		switch {
		case g.guard.Percent >= 100:
			g.log.Warn("deletions that were held go through now: the guard lets everything pass", "removed", len(g.leaving))
		case g.isNormalAgain(now, complete):
			g.log.Info("the upstream has again most of what its guard has held; the rest is removed", "removed", len(g.leaving))
		case !h.Until.IsZero() && !now.Before(h.Until):
			g.because("guard.holdFor")
			g.log.Warn("deletions that were held go through now: guard.holdFor is over", "removed", len(g.leaving), "held", now.Sub(h.Since).Round(time.Second))
		default:
			h.Removals = len(g.leaving)
			return 0
		}
		return g.letGo()
	}
	if !g.tooMany(now) {
		return g.letGo()
	}
	since := now
	if !g.heldBefore.IsZero() {
		since, g.heldBefore = g.heldBefore, time.Time{}
	}
	g.held = &Held{Since: since, Until: g.holdUntil(since), Removals: len(g.leaving), Of: g.of()}
	g.returned, g.toSay = now, now.Add(holdSaid)
	g.stir()
	return 0
}

// holdSaid is how long after the guard has begun to hold that is logged: a source says type by
// type what is gone.
const holdSaid = time.Second

// sayHeld logs what the guard holds, once.
func (g *gate) sayHeld(now time.Time) {
	if g.held == nil || g.toSay.IsZero() || now.Before(g.toSay) {
		return
	}
	g.toSay = time.Time{}
	until := "released"
	if !g.held.Until.IsZero() {
		until = g.held.Until.UTC().Format(time.RFC3339)
	}
	g.log.Warn("the upstream removes so much at once that it is held back; what is meant goes through with: relay release "+g.name,
		"removals", len(g.leaving), "of", g.held.Of, "until", until)
}

// isNormalAgain reports whether a source of which deletions are held is as usual, but for
// deletions that the guard would have let pass.
//
// A new stream says that as a whole. On a live one things return bit by bit, so that what has
// not returned yet looks like what is gone: it waits until nothing has returned for a while.
// What is held for ever goes when a person says so, or is had again.
func (g *gate) isNormalAgain(now time.Time, complete bool) bool {
	return !g.held.Until.IsZero() && !g.syncing && (complete || now.Sub(g.returned) >= guardWindow) && !g.tooMany(now)
}

// tooMany reports whether the deletions at hand are more than the guard lets pass.
func (g *gate) tooMany(now time.Time) bool {
	g.peaks.note(now, g.size)
	left := g.size - len(g.leaving)
	return g.exceeds(len(g.leaving), g.had()) || g.exceeds(g.peaks.most-left, g.peaks.most)
}

func (g *gate) exceeds(n, of int) bool { return n > g.guard.Count && n*100 > g.guard.Percent*of }

// had returns how many resources the source had before the deletions at hand: what has come
// with them, or since, does not make them fewer.
func (g *gate) had() int {
	if !g.synced {
		return g.size // it had nothing before
	}
	return max(g.size-g.added, len(g.leaving))
}

// of returns what the deletions at hand are a share of.
func (g *gate) of() int {
	if g.exceeds(len(g.leaving), g.had()) {
		return g.had()
	}
	return max(g.size, g.peaks.most)
}

func (g *gate) holdUntil(since time.Time) time.Time {
	if g.guard.HoldFor == 0 {
		return time.Time{}
	}
	return since.Add(g.guard.HoldFor.D())
}

// letGo removes what is leaving.
func (g *gate) letGo() (removed int) {
	byKind := map[mirror.Kind]int{}
	for key := range g.leaving {
		if g.drop(key) {
			removed++
			byKind[key.Kind]++
		}
		if g.keeps {
			g.passed[key] = nil
		}
	}
	clear(g.leaving)
	g.added = 0
	g.sayEmptied(byKind)
	if g.held != nil {
		g.held = nil
		g.peaks = peaks{}
		g.stir()
	}
	g.heldBefore = time.Time{}
	g.peaks.note(time.Now(), g.size)
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

// release lets through what is held.
func (g *gate) release() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.held == nil {
		return fmt.Errorf("%w: upstream %s: nothing is held", ErrNotPossible, g.name)
	}
	g.because("release")
	g.log.Warn("deletions that were held are released by an operator", "removed", len(g.leaving))
	g.letGo()
	return nil
}
