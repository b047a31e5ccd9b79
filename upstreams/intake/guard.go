package intake

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"meshrelay/config"
	"meshrelay/events"
	"meshrelay/federation"
	"meshrelay/mirror"
)

// manyGone is how many removed resources of a kind are worth a warning, if none is left.
const manyGone = 5

// judge carries out the waiting deletions, or holds them. complete is set when a new stream has just answered
// every scope, and all names were readable.
func (in *Intake) judge(complete bool) (removed int) {
	in.tallies.note(in.now)
	if len(in.leaving) == 0 {
		if !in.syncing || !in.now.Before(in.syncingUntil) {
			in.tallies.settle()
		}
		if in.held != nil {
			const why = "the upstream has the resources again, or they have expired"
			in.note(slog.LevelInfo, "hold ended", "reason", why)
			if in.noteHeldAt.IsZero() { // otherwise the hold was never reported
				in.tell(events.Event{Type: events.Returned, By: events.ByUpstream, Text: "hold ended", Reason: why})
			}
			in.held, in.lookedAt = nil, nil
		}
		return 0
	}
	if in.syncing && in.now.Before(in.syncingUntil) && !in.isOff() {
		return 0
	}
	if in.held != nil {
		return in.judgeHold(complete)
	}
	why := in.tooMany()
	if why == "" {
		return in.letGo()
	}
	in.hold(why)
	return 0
}

func (in *Intake) judgeHold(complete bool) (removed int) {
	reason := ""
	switch {
	case in.isOff():
		reason = "the guard is switched off"
	case in.isNormalAgain(complete):
		reason = "the upstream has most of the held resources again"
	case complete && in.isOver():
		return in.carryOut(in.openedAt) // a new stream repeats everything
	default:
		return 0
	}
	in.note(slog.LevelWarn, "held deletions carried out", "reason", reason, "removed", len(in.leaving))
	in.reportCarriedOut(len(in.leaving), reason)
	return in.letGo()
}

// isNormalAgain reports whether the source has enough of the held resources again: the guard would let the
// remaining deletions pass. Some resources must have returned, or half of them if the hold has no end: time
// alone, or a new stream alone, does not prove that the remaining deletions are no accident.
//
// A new stream sends everything at once. On a live stream resources return bit by bit, so the rest waits
// until nothing has returned for guardWindow, and until all names are readable. The rest of a partial release
// waits for an operator or for the source.
func (in *Intake) isNormalAgain(complete bool) bool {
	if _, ends := in.left(); !ends && 2*len(in.leaving) > in.held.most || in.held.returned.IsZero() || in.held.picked || in.syncing || in.isTorn() {
		return false
	}
	quiet := in.stale.inContact && in.now.Sub(in.held.returned) >= guardWindow
	return (complete || quiet) && in.tooMany() == ""
}

// tooMany returns why the guard does not let the waiting deletions pass, empty if it does.
func (in *Intake) tooMany() string {
	byKind := map[mirror.Kind]int{}
	for key := range in.leaving {
		byKind[key.Kind]++
	}
	return in.tooManyOf(byKind)
}

// tooManyOf does the same for given numbers of deletions by kind.
func (in *Intake) tooManyOf(byKind map[mirror.Kind]int) string {
	in.tallies.note(in.now)
	all, n := &in.tallies.all, 0
	for _, of := range byKind {
		n += of
	}
	had, most := in.had(n), all.most
	if in.exceeds(n, had) {
		return fmt.Sprintf("%d of %d resources at once", n, had)
	}
	if lost := most - (all.size - n); in.exceeds(lost, most) {
		return fmt.Sprintf("%d of %d resources within %v", lost, most, guardWindow)
	}
	if in.guard.Empty == config.EmptyHold {
		return in.emptied(byKind, n)
	}
	return ""
}

// emptied describes the upstream or the kinds that n deletions would leave empty. It returns "" if they leave
// none empty. MeshConfig does not count, because even an istiod without any config has one, and neither do the
// ServiceEntries of a registry, which has none while no service is healthy.
func (in *Intake) emptied(byKind map[mirror.Kind]int, n int) string {
	size := in.tallies.all.size
	for _, kind := range []mirror.Kind{mirror.MeshConfig, federation.ServiceEntry} {
		if in.mayBeEmpty(kind) {
			n -= byKind[kind]
			size -= in.tallies.kind(kind).size
		}
	}
	if n > 0 && n == size && in.opening && in.synced {
		return "it comes back with nothing"
	}
	var kinds []string
	for kind, of := range byKind {
		t := in.tallies.kind(kind)
		had := t.had(of)
		if !in.synced {
			had = t.size
		}
		every := of >= had && had >= fewest || of == t.size && t.most >= fewest
		if !in.mayBeEmpty(kind) && every {
			kinds = append(kinds, kind.Kind)
		}
	}
	if len(kinds) == 0 {
		return ""
	}
	slices.Sort(kinds)
	return fmt.Sprintf("every %s would go", strings.Join(kinds, ", every "))
}

func (in *Intake) mayBeEmpty(kind mirror.Kind) bool {
	return kind == mirror.MeshConfig || kind == federation.ServiceEntry && in.isRegistry()
}

// isOff reports whether the guard lets everything pass.
func (in *Intake) isOff() bool { return in.guard.Percent >= 100 && in.guard.Empty != config.EmptyHold }

func (in *Intake) exceeds(n, of int) bool {
	return n > in.guard.Count && n*100 > in.guard.Percent*of
}

// had returns the number of resources before n deletions.
func (in *Intake) had(n int) int {
	if !in.synced {
		return in.tallies.all.size // nothing counts as new before the first sync
	}
	return in.tallies.all.had(n)
}

// of returns the number of resources with which the waiting deletions are compared.
func (in *Intake) of() int {
	if had := in.had(len(in.leaving)); in.exceeds(len(in.leaving), had) {
		return had
	}
	return max(in.tallies.all.size, in.tallies.all.most)
}

func (in *Intake) letGo() (removed int) {
	removed = in.carry(func(mirror.Key, departure) bool { return true })
	if in.held != nil {
		in.endHold()
	}
	in.tallies.settle()
	in.before = hold{}
	in.tallies.note(in.now)
	return removed
}

// carry carries out the deletions that which picks.
func (in *Intake) carry(which func(mirror.Key, departure) bool) (removed int) {
	byKind := map[mirror.Kind]int{}
	for key, d := range in.leaving {
		if !which(key, d) {
			continue
		}
		if in.drop(key) {
			removed++
			byKind[key.Kind]++
		}
		in.stay(key)
	}
	// A misconfigured upstream looks like this (PROTOCOL C8).
	for kind, n := range byKind {
		if n >= manyGone && in.served.Counts()[kind] == 0 {
			in.note(slog.LevelWarn, "all resources of a kind removed", "kind", kind, "removed", n)
		}
	}
	return removed
}
