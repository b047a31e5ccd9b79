package intake

import (
	"cmp"
	"encoding/base32"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/zeebo/xxh3"

	"meshrelay/events"
	"meshrelay/federation/services"
	"meshrelay/mirror"
	"meshrelay/state"
)

const (
	noteHeldAfter = time.Second // delays the log of a hold: a source deletes type by type
	repeatEvery   = time.Minute // between two requests to the source to repeat what it has
	maxNamedHolds = 32
	maxExamples   = 10
)

// departing are the deletions of the source that wait.
type departing struct {
	leaving      map[mirror.Key]departure
	leavingBytes int
	// former has the last record of each served key without a record. If the source sends such a
	// key again and it is refused, this content returns.
	former     map[mirror.Key]*record
	departures uint64 // the number of the newest one
	held       *hold
	before     hold      // of a former process, with only since, ran and of
	noteHeldAt time.Time // when the log reports the hold
	// renamed is set when named is out of date. lookedAt are the holds that an operator has listed, oldest
	// first.
	renamed  bool
	named    namedHold
	lookedAt []namedHold
}

// departure is a deletion that waits.
type departure struct {
	since  time.Time
	number uint64        // higher than those of all departures before it
	size   int           // of the resource, in bytes
	joined time.Duration // time of the hold's clock at the departure, zero for a departure before the hold
}

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
	picked bool
}

type namedHold struct {
	id     string
	keys   []mirror.Key // only in the newest hold
	number uint64       // of the newest departure then
}

func (h *hold) elapsed(now time.Time) time.Duration {
	if h.running.IsZero() {
		return h.ran
	}
	return h.ran + now.Sub(h.running)
}

// stop stops the clock and forgets the request to repeat.
func (h *hold) stop(now time.Time) {
	h.ran, h.running, h.asked = h.elapsed(now), time.Time{}, time.Time{}
}

// hold begins to hold all waiting deletions.
func (in *Intake) hold(why string) {
	in.held = &hold{since: in.now, of: in.of(), most: len(in.leaving), why: why}
	for key, d := range in.leaving {
		d.joined = 0 // the clock of the new hold starts at zero
		in.leaving[key] = d
		in.withdraw(key)
	}
	if b := in.before; !b.since.IsZero() && len(in.leaving) <= b.of { // with more deletions, the clock starts at zero
		in.held.since, in.held.ran = b.since, b.ran
	}
	in.before = hold{}
	if in.stale.inContact {
		in.held.running = in.now
	}
	in.noteHeldAt = in.now.Add(noteHeldAfter)
}

// left returns the time left of the hold. ends is false for a hold without an end.
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

// planHold calls later with the next deadlines of the hold.
func (in *Intake) planHold(later func(time.Time)) {
	later(in.noteHeldAt)
	if !in.stale.inContact {
		return
	}
	if left, ends := in.left(); ends && left > 0 {
		later(in.now.Add(left))
	} else if ends && !in.held.asked.IsZero() {
		later(in.held.asked.Add(repeatEvery))
	}
	later(in.held.returned.Add(guardWindow))
}

// askToRepeat asks the source to repeat what it has, once the clock is over.
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
		return // nothing was asked for, or a name is unreadable
	}
	out.Deleted = in.carryOut(in.held.askedAt)
}

// carryOut ends a hold whose time has passed. It removes the departures up to the number upTo, which the
// source has repeated. The guard judges newer ones again, and those that joined the hold late.
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

// endHold ends the hold. The guard will judge the remaining departures again.
func (in *Intake) endHold() {
	in.held, in.lookedAt = nil, nil
	in.named, in.renamed = namedHold{}, true
	in.before = hold{}
	in.tallies.forget()
}

// noteHeld logs and reports a hold once.
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
	in.note(slog.LevelWarn, "deletions held by guard", "held", len(in.leaving), "of", in.held.of, "reason", in.held.why, "for", holdFor, "see", "relay upstreams --held "+in.name)
}

func (in *Intake) depart(key mirror.Key) {
	if _, known := in.leaving[key]; known {
		return
	}
	in.departures++
	d := departure{since: in.now, number: in.departures}
	if in.held != nil {
		d.joined, in.held.most = in.held.elapsed(in.now), max(in.held.most, len(in.leaving)+1)
		in.withdraw(key)
	}
	if r := in.served.Get(key); r != nil {
		d.size = len(r.DeltaEntry())
	}
	in.leaving[key], in.leavingBytes = d, in.leavingBytes+d.size
	in.renamed = true
}

// stay cancels a waiting deletion. It reports whether there was one.
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

// namedHold returns the ID and the sorted keys of the waiting deletions. The ID is a hash of the
// keys and versions, so that it is the same on all replicas.
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
		r, version := in.served.Get(key), ""
		f := in.former[key]
		if f == nil { // it is served without a record, from the disk or by a rollback
			f = &record{}
		}
		if !in.rules.isAddressed(r, f.original, f.relayed) { // addresses are no part of it
			version = r.Version()
		}
		addContent(sum, key, version)
	}
	in.named = namedHold{id: textOf(sum)[:8], keys: keys, number: in.departures}
	in.lookedAt = slices.DeleteFunc(in.lookedAt, func(n namedHold) bool { return n.id == in.named.id })
	if len(in.lookedAt) >= maxNamedHolds {
		in.lookedAt = slices.Delete(in.lookedAt, 0, 1)
	}
	in.lookedAt = append(in.lookedAt, namedHold{id: in.named.id, number: in.named.number})
	return in.named
}

// Holding reports whether the guard holds deletions.
func (in *Intake) Holding() bool { return in.held != nil }

// HoldIDs returns the IDs that the open hold has had, the newest first.
func (in *Intake) HoldIDs() (ids []string) {
	if in.held == nil {
		return nil
	}
	in.namedHold()
	for _, n := range slices.Backward(in.lookedAt) {
		ids = append(ids, n.id)
	}
	return ids
}

// HoldSince returns when the open hold has begun, zero if it has and had another ID.
func (in *Intake) HoldSince(id string) time.Time {
	if !slices.Contains(in.HoldIDs(), id) {
		return time.Time{}
	}
	return in.held.since
}

// ContentOf identifies the keys and versions of records, alike on all replicas. Addresses are no part of it, and neither are
// siblings, which come with them.
func (im *Rules) ContentOf(all []state.Record) string {
	all = slices.SortedFunc(slices.Values(all), func(a, b state.Record) int { return mirror.CompareKeys(a.Resource.Key(), b.Resource.Key()) })
	sum := xxh3.New()
	for _, rec := range all {
		r, original := rec.Resource, cmp.Or(rec.Original, rec.Resource)
		if r.HasAnnotation(mirror.SiblingAnnotation) {
			continue
		}
		if im.isAddressed(r, original, im.believed(original)) {
			if im.isMade(original) {
				r = original // its ports go with the endpoints
			}
			if bare, err := services.Without(r); err == nil {
				r = bare
			}
		}
		addContent(sum, rec.Resource.Key(), r.Version())
	}
	return textOf(sum)
}

// addContent adds a resource to the sum of a content.
func addContent(sum *xxh3.Hasher, key mirror.Key, version string) {
	for _, part := range []string{key.Kind.Group, key.Kind.Kind, key.Namespace, key.Name, version} {
		_, _ = sum.WriteString(part) // it never fails
		_, _ = sum.Write([]byte{0})
	}
}

func textOf(sum *xxh3.Hasher) string {
	digest := sum.Sum128().Bytes()
	return strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(digest[:]))
}

// grown returns an error if more is held than when the hold had this ID.
func (in *Intake) grown(id string) error {
	now := in.namedHold()
	if id == now.id {
		return nil
	}
	i := slices.IndexFunc(in.lookedAt, func(n namedHold) bool { return n.id == id })
	if i < 0 {
		return NotPossible("upstream %s: hold %.32q is not known; what is held now is %s: look again with \"relay upstreams --held %s\"", in.name, id, now.id, in.name)
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
	return NotPossible("upstream %s: hold %s has grown by %d since, and is %s now: look again with \"relay upstreams --held %s\"\n%s",
		in.name, id, len(more), now.id, in.name, strings.Join(shown, "\n"))
}
