package intake

import (
	"encoding/base32"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/zeebo/xxh3"

	"meshrelay/events"
	"meshrelay/mirror"
)

const (
	noteHeldAfter = time.Second // delays the log of a hold: a source tells type by type what is gone
	repeatEvery   = time.Minute // is how often a source is asked to repeat what it has
	maxNamedHolds = 32
	maxExamples   = 10
)

// departing are the deletions of the source that are not carried out.
type departing struct {
	leaving      map[mirror.Key]departure
	leavingBytes int
	// former are the last records of keys that are served and that no record has now. A source that
	// has such a key again, in a form that is refused, gets its last good content back.
	former     map[mirror.Key]*record
	departures uint64 // the number of the newest one
	held       *hold
	before     hold      // of the former process: since when, what its clock ran, and of how many
	noteHeldAt time.Time // when the log tells that something is held
	// renamed: named is not the name of what is leaving now. lookedAt are the holds that somebody
	// has seen, the oldest first.
	renamed  bool
	named    namedHold
	lookedAt []namedHold
}

// departure is a deletion that is not carried out.
type departure struct {
	since  time.Time
	number uint64        // higher than those of all departures before it
	size   int           // of the resource, in bytes
	joined time.Duration // what the clock of the hold had run then, zero for those that began it
}

// hold is a clock for the departures that the guard holds. It runs while the source is in contact.
// When it is over, the source has to repeat that the departures are gone.
type hold struct {
	since time.Time
	of    int
	why   string
	// ran is what the clock ran until running, since when it runs: zero while it stands still.
	ran     time.Duration
	running time.Time
	// asked is when the source was last asked to repeat, askedAt the newest departure at the first time.
	asked    time.Time
	askedAt  uint64
	returned time.Time // when the source last had something again that was held
	// picked: an operator has released a part. The rest waits for the clock or another release.
	picked bool
}

type namedHold struct {
	id     string
	keys   []mirror.Key // of the newest only
	number uint64       // of the newest departure then
}

func (h *hold) elapsed(now time.Time) time.Duration {
	if h.running.IsZero() {
		return h.ran
	}
	return h.ran + now.Sub(h.running)
}

// stop has the clock stand still, and forgets that the source was asked.
func (h *hold) stop(now time.Time) {
	h.ran, h.running, h.asked = h.elapsed(now), time.Time{}, time.Time{}
}

// hold begins to hold all departures.
func (in *Intake) hold(why string) {
	in.held = &hold{since: in.now, of: in.of(), why: why}
	for key, d := range in.leaving {
		d.joined = 0 // the clock is another one
		in.leaving[key] = d
	}
	if b := in.before; !b.since.IsZero() && len(in.leaving) <= b.of { // more have not waited for that long
		in.held.since, in.held.ran = b.since, b.ran
	}
	in.before = hold{}
	if in.stale.inContact {
		in.held.running = in.now
	}
	in.noteHeldAt = in.now.Add(noteHeldAfter)
}

// left returns what is left of the clock of the hold, and whether it has an end.
func (in *Intake) left() (left time.Duration, ends bool) {
	if in.guard.HoldFor == 0 {
		return 0, false
	}
	return max(in.guard.HoldFor.D()-in.held.elapsed(in.now), 0), true
}

func (in *Intake) isOver() bool {
	left, ends := in.left()
	return ends && left == 0
}

// planHold calls later with the times at which something will change about the hold.
func (in *Intake) planHold(later func(time.Time)) {
	later(in.noteHeldAt)
	left, ends := in.left()
	switch {
	case !ends || !in.stale.inContact:
		return
	case left > 0:
		later(in.now.Add(left))
	case !in.held.asked.IsZero():
		later(in.held.asked.Add(repeatEvery))
	}
	later(in.held.returned.Add(guardWindow))
}

// askToRepeat asks the source to repeat what it has, when the clock of the hold is over.
func (in *Intake) askToRepeat() {
	h := in.held
	if h == nil || !in.stale.inContact || !in.isOver() || !h.asked.IsZero() && in.now.Sub(h.asked) < repeatEvery {
		return
	}
	in.out.Repeat, in.out.Again = true, !h.asked.IsZero()
	if h.asked.IsZero() {
		in.note(slog.LevelInfo, "asking upstream to repeat held deletions", "held", len(in.leaving))
		h.askedAt = in.departures
	}
	h.asked = in.now
}

func (Repeated) step(in *Intake, out *Output) {
	if in.held == nil || in.held.asked.IsZero() || in.isTorn() {
		return // the hold has ended otherwise, or the contact has, or holdFor is another; or not all is readable
	}
	out.Deleted = in.carryOut(in.held.askedAt)
}

// carryOut ends a hold whose clock is over: it removes the departures up to a number, which the
// source has repeated. It judges anew the newer ones, and those that joined the hold late.
func (in *Intake) carryOut(upTo uint64) (removed int) {
	latest := min(guardWindow, in.guard.HoldFor.D()/2)
	removed = in.carry(func(_ mirror.Key, d departure) bool { return d.number <= upTo && d.joined <= latest })
	if removed > 0 {
		const why = "guard.holdFor is over, and the upstream has repeated them"
		in.because(events.ByGuard, "guard.holdFor")
		in.reportCarriedOut(removed, why)
		in.note(slog.LevelWarn, "held deletions carried out", "reason", why,
			"removed", removed, "after", in.now.Sub(in.held.since).Round(time.Second).String())
	}
	in.endHold()
	return removed + in.judge(false)
}

// endHold forgets the hold. The departures that are left count as new.
func (in *Intake) endHold() {
	in.held, in.lookedAt = nil, nil
	in.named, in.renamed = namedHold{}, true
	in.before = hold{}
	in.tallies.forget()
}

// noteHeld logs what the guard holds, once.
func (in *Intake) noteHeld() {
	if in.held == nil || in.noteHeldAt.IsZero() || in.now.Before(in.noteHeldAt) {
		return
	}
	in.noteHeldAt = time.Time{}
	holdFor := "forever"
	if left, ends := in.left(); ends {
		holdFor = left.Round(time.Second).String()
	}
	in.namedHold()
	in.reportHold(holdFor)
	in.note(slog.LevelWarn, "deletions held by guard", "held", len(in.leaving), "of", in.held.of, "reason", in.held.why, "for", holdFor, "see", "relay held "+in.name)
}

func (in *Intake) depart(key mirror.Key) {
	if _, known := in.leaving[key]; known {
		return
	}
	in.departures++
	d := departure{since: in.now, number: in.departures}
	if in.held != nil {
		d.joined = in.held.elapsed(in.now)
	}
	if r := in.served.Get(key); r != nil {
		d.size = len(r.DeltaEntry())
	}
	in.leaving[key], in.leavingBytes = d, in.leavingBytes+d.size
	in.renamed = true
}

// stay notes that a deletion does not wait any more. It reports whether one did.
func (in *Intake) stay(key mirror.Key) bool {
	d, known := in.leaving[key]
	if !known {
		return false
	}
	delete(in.leaving, key)
	in.leavingBytes -= d.size
	in.renamed = true
	return true
}

// namedHold returns the name and the sorted keys of the departures. The name is made from the keys and
// versions alone, so that replicas which hold the same name it alike.
func (in *Intake) namedHold() namedHold {
	if !in.renamed {
		return in.named
	}
	in.renamed = false
	keys := make([]mirror.Key, 0, len(in.leaving))
	for key := range in.leaving {
		keys = append(keys, key)
	}
	slices.SortFunc(keys, mirror.CompareKeys)
	sum := xxh3.New()
	for _, key := range keys {
		r := in.stale.plain(in.served, key)
		for _, part := range []string{key.Kind.Group, key.Kind.Kind, key.Namespace, key.Name, r.Version()} {
			_, _ = sum.WriteString(part) // it never fails
			_, _ = sum.Write([]byte{0})
		}
	}
	digest := sum.Sum128().Bytes()
	in.named = namedHold{id: strings.ToLower(base32.StdEncoding.EncodeToString(digest[:5])), keys: keys, number: in.departures}
	in.lookedAt = slices.DeleteFunc(in.lookedAt, func(n namedHold) bool { return n.id == in.named.id })
	if len(in.lookedAt) >= maxNamedHolds {
		in.lookedAt = slices.Delete(in.lookedAt, 0, 1)
	}
	in.lookedAt = append(in.lookedAt, namedHold{id: in.named.id, number: in.named.number})
	return in.named
}

// grown returns an error unless what is held is what the hold of that name was, or less.
func (in *Intake) grown(id string) error {
	now := in.namedHold()
	if id == now.id {
		return nil
	}
	i := slices.IndexFunc(in.lookedAt, func(n namedHold) bool { return n.id == id })
	if i < 0 {
		return NotPossible("upstream %s: hold %.32q is not known; what is held now is %s: look again with \"relay held %s\"", in.name, id, now.id, in.name)
	}
	var more []string
	for _, key := range now.keys {
		if in.leaving[key].number > in.lookedAt[i].number {
			more = append(more, "  + "+key.String())
		}
	}
	if len(more) == 0 {
		return nil
	}
	shown := more[:min(len(more), maxShown)]
	if n := len(more) - len(shown); n > 0 {
		shown = append(shown, fmt.Sprintf("  and %d more", n))
	}
	return NotPossible("upstream %s: hold %s has grown by %d since, and is %s now: look again with \"relay held %s\"\n%s",
		in.name, id, len(more), now.id, in.name, strings.Join(shown, "\n"))
}
