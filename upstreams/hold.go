package upstreams

import (
	"cmp"
	"encoding/base32"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/zeebo/xxh3"

	"meshrelay/config"
	"meshrelay/mirror"
)

const (
	// holdSaid is how long after the guard has begun to hold that is logged: a source tells
	// type by type what is gone.
	holdSaid = time.Second
	// repeatEvery is how often a source is asked to repeat what the guard holds, once the
	// clock of the hold is over.
	repeatEvery = time.Minute
	// maxNamedHolds bounds the names of a hold that are remembered.
	maxNamedHolds = 32
)

// departure is a deletion of a source that has not been carried out.
type departure struct {
	since time.Time
	// number is higher than those of all departures before it.
	number uint64
	// size is what is served of it, in bytes.
	size int
	// joined is what the clock of the hold had run when it came, zero for those with which the
	// hold began.
	joined time.Duration
}

// hold is what the guard holds back of a source: the departures, and a clock. The clock
// runs while the source is in contact. When it is over, the source has to repeat that the
// departures are gone.
//
// It belongs to a gate, and is guarded by its lock.
type hold struct {
	since time.Time
	of    int
	why   string
	// ran is what the clock ran until running, which is since when it runs: zero while it
	// stands still.
	ran     time.Duration
	running time.Time
	// asked is when the source was last asked to repeat what it has, zero before that, and
	// askedAt the number of the newest departure when it was asked first.
	asked   time.Time
	askedAt uint64
	// returned is when the source last had something again that was held, zero before that.
	returned time.Time
	// picked tells that an operator has released a part: the rest waits for the clock or
	// for another release, however little it is.
	picked bool
}

// heldBefore is what was held at the end of the former process: since when, what the clock had
// run, and how many deletions. If there are more now, they have not waited for that long.
type heldBefore struct {
	since time.Time
	ran   time.Duration
	held  int
}

// elapsed returns what the clock has run.
func (h *hold) elapsed(now time.Time) time.Duration {
	if h.running.IsZero() {
		return h.ran
	}
	return h.ran + now.Sub(h.running)
}

// start lets the clock run, stop has it stand still.
func (h *hold) start(now time.Time) {
	if h.running.IsZero() {
		h.running = now
	}
}

func (h *hold) stop(now time.Time) {
	h.ran, h.running = h.elapsed(now), time.Time{}
	h.asked = time.Time{} // whatever comes of it
}

// Clocks of a hold.
const (
	ClockRunning = "running"
	// ClockStopped: the source is out of contact.
	ClockStopped = "stopped"
	// ClockOver: the source has to repeat that the deletions are meant.
	ClockOver = "over"
	// ClockNone: only an operator, or the source, ends the hold.
	ClockNone = "none"
)

// left returns what is left of the clock of the hold, and whether it has an end.
func (g *gate) left(now time.Time) (left time.Duration, ends bool) {
	if g.guard.HoldFor == 0 {
		return 0, false
	}
	return max(g.guard.HoldFor.D()-g.held.elapsed(now), 0), true
}

// isOver reports whether the clock of the hold is.
func (g *gate) isOver(now time.Time) bool {
	left, ends := g.left(now)
	return ends && left == 0
}

// repeats reports whether the source is to be asked now to repeat what it has, and whether
// it was asked before and has not answered all. It notes that it was asked.
func (g *gate) repeats(now time.Time) (ask, again bool) {
	h := g.held
	if h == nil || !g.stale.inContact || !g.isOver(now) || !h.asked.IsZero() && now.Sub(h.asked) < repeatEvery {
		return false, false
	}
	again = !h.asked.IsZero()
	if !again {
		g.log.Info("asking the upstream to repeat held deletions", "held", len(g.leaving))
		h.askedAt = g.departures
	}
	h.asked = now
	return true, again
}

// repeated tells that the source has repeated all that it has, after it was asked to.
func (g *gate) repeated() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.held == nil || g.held.asked.IsZero() {
		return // what was held has ended otherwise, or the contact has, or holdFor is another
	}
	g.carryOut(time.Now(), g.held.askedAt)
	g.stir()
}

// carryOut ends a hold whose clock is over: it removes the departures up to a number, which
// the source has repeated. Those that are newer are judged anew, and so are those that came
// so much later than the others that they have not been held for long.
func (g *gate) carryOut(now time.Time, upTo uint64) (removed int) {
	latest := min(guardWindow, g.guard.HoldFor.D()/2)
	removed = g.carry(func(_ mirror.Key, d departure) bool { return d.number <= upTo && d.joined <= latest })
	if removed > 0 {
		g.because("guard.holdFor")
		g.log.Warn("held deletions carried out", "reason", "guard.holdFor is over, and the upstream has repeated them",
			"removed", removed, "after", now.Sub(g.held.since).Round(time.Second).String())
	}
	g.endHold()
	return removed + g.judge(now, false)
}

// endHold forgets the hold. What is leaving still is judged as if it were new.
func (g *gate) endHold() {
	g.held, g.lookedAt = nil, nil
	g.named, g.renamed = namedHold{}, true
	g.before = heldBefore{}
	g.tallies.forget()
	g.stir()
}

// sayHeld logs what the guard holds, once.
func (g *gate) sayHeld(now time.Time) {
	if g.held == nil || g.toSay.IsZero() || now.Before(g.toSay) {
		return
	}
	g.toSay = time.Time{}
	holdFor := "forever"
	if left, ends := g.left(now); ends {
		holdFor = left.Round(time.Second).String()
	}
	g.log.Warn("deletions held by guard", "held", len(g.leaving), "of", g.held.of, "reason", g.held.why, "for", holdFor, "see", "relay held "+g.name)
}

// HeldDeletion is one deletion that a guard holds back.
type HeldDeletion struct {
	// Kind is "group/Kind". The resource is served as Namespace and Name.
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	// Version is that of the content which is served until the deletion is carried out.
	Version string `json:"version"`
	// Created is when the resource was created, where the source tells it.
	Created time.Time `json:"created,omitzero"`
	// Since is when the source deleted it.
	Since time.Time `json:"since"`
}

// HeldUpstream is all that the guard of one upstream holds back, sorted by kind, namespace
// and name.
type HeldUpstream struct {
	Upstream string `json:"upstream"`
	Held
	Deletions []HeldDeletion `json:"deletions"`
}

// heldDeletions returns what is held, and false when nothing is.
func (g *gate) heldDeletions() (HeldUpstream, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.held == nil {
		return HeldUpstream{}, false
	}
	out := HeldUpstream{Upstream: g.name, Held: g.describeHold(time.Now())}
	for _, key := range g.departing() {
		r := g.stale.plain(g.store, key)
		out.Deletions = append(out.Deletions, HeldDeletion{
			Kind: key.Kind.String(), Namespace: key.Namespace, Name: key.Name,
			Version: r.Version(), Created: r.Metadata().CreateTime, Since: g.leaving[key].since,
		})
	}
	return out, true
}

// describeHold returns the hold as a status shows it.
func (g *gate) describeHold(now time.Time) Held {
	h := g.held
	out := Held{ID: g.holdID(), Since: h.since, Clock: ClockNone, Reason: h.why, Asked: h.asked, Removals: len(g.leaving), Of: h.of}
	if left, ends := g.left(now); ends {
		switch {
		case left == 0:
			out.Clock = ClockOver
		case h.running.IsZero():
			out.Clock, out.Left = ClockStopped, left.Round(time.Second).String()
		default:
			out.Clock, out.Until = ClockRunning, now.Add(left)
		}
	}
	for _, key := range g.departing()[:min(len(g.leaving), maxExamples)] {
		out.Examples = append(out.Examples, key.String())
	}
	return out
}

// departing returns the keys of the departures, sorted by kind, namespace and name.
func (g *gate) departing() []mirror.Key {
	g.nameHold()
	return g.named.keys
}

// namedHold is a hold as it was when somebody looked at it.
type namedHold struct {
	id     string
	keys   []mirror.Key // of the newest only
	number uint64       // of the newest departure then
}

// holdID returns the name of what is held. It is made from the sorted keys and versions
// alone, so that replicas which hold the same name it alike.
func (g *gate) holdID() string {
	g.nameHold()
	return g.named.id
}

// nameHold works out the name and the sorted keys of the hold, unless they are known.
func (g *gate) nameHold() {
	if !g.renamed {
		return
	}
	g.renamed = false
	keys := make([]mirror.Key, 0, len(g.leaving))
	for key := range g.leaving {
		keys = append(keys, key)
	}
	slices.SortFunc(keys, func(a, b mirror.Key) int {
		return cmp.Or(mirror.CompareKinds(a.Kind, b.Kind), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	sum := xxh3.New()
	for _, key := range keys {
		r := g.stale.plain(g.store, key)
		for _, part := range []string{key.Kind.Group, key.Kind.Kind, key.Namespace, key.Name, r.Version()} {
			_, _ = sum.WriteString(part) // it never fails
			_, _ = sum.Write([]byte{0})
		}
	}
	digest := sum.Sum128().Bytes()
	g.named = namedHold{id: strings.ToLower(base32.StdEncoding.EncodeToString(digest[:5])), keys: keys, number: g.departures}
	g.lookedAt = slices.DeleteFunc(g.lookedAt, func(n namedHold) bool { return n.id == g.named.id })
	if len(g.lookedAt) >= maxNamedHolds {
		g.lookedAt = slices.Delete(g.lookedAt, 0, 1)
	}
	g.lookedAt = append(g.lookedAt, namedHold{id: g.named.id, number: g.named.number})
}

// depart notes a deletion that waits.
func (g *gate) depart(key mirror.Key, now time.Time) {
	if _, known := g.leaving[key]; known {
		return
	}
	g.departures++
	d := departure{since: now, number: g.departures}
	if g.held != nil {
		d.joined = g.held.elapsed(now)
	}
	if r := g.store.Get(key); r != nil {
		d.size = len(r.DeltaEntry())
	}
	g.leaving[key], g.leavingBytes = d, g.leavingBytes+d.size
	g.renamed = true
}

// stay notes that a deletion does not wait any more. It reports whether one did.
func (g *gate) stay(key mirror.Key) bool {
	d, known := g.leaving[key]
	if !known {
		return false
	}
	delete(g.leaving, key)
	g.leavingBytes -= d.size
	g.renamed = true
	return true
}

// errHeldFull is why what is new is refused while deletions are held.
var errHeldFull = fmt.Errorf("%w limits.maxResources or limits.maxBytes, twice, with the deletions that its guard holds", errFull)

// room returns an error when a source has nothing like a resource and has so many, with so many
// bytes, that with the deletions that wait they would be more than twice its limits. Else a
// source whose names come and go would have the relay hold them without end. The caller is
// between begin and end.
func (g *gate) room(l config.Limits, key mirror.Key, resources, bytes int) error {
	if len(g.leaving) == 0 {
		return nil
	}
	if _, returns := g.leaving[key]; returns {
		return nil
	}
	if l.MaxResources > 0 && resources+len(g.leaving) >= 2*l.MaxResources || l.MaxBytes > 0 && bytes+g.leavingBytes > 2*l.MaxBytes {
		return fmt.Errorf(overLimit+"%w: see \"relay held %s\"", errHeldFull, g.name)
	}
	return nil
}

// carry carries out the departures that which picks.
func (g *gate) carry(which func(mirror.Key, departure) bool) (removed int) {
	byKind := map[mirror.Kind]int{}
	for key, d := range g.leaving {
		if !which(key, d) {
			continue
		}
		if g.drop(key) {
			removed++
			byKind[key.Kind]++
		}
		if g.keeps {
			g.passed[key] = nil
		}
		g.stay(key)
	}
	g.sayEmptied(byKind)
	return removed
}

// grown returns an error unless what is held is what the hold of that name was, or less.
func (g *gate) grown(id string) error {
	if id == g.holdID() {
		return nil
	}
	i := slices.IndexFunc(g.lookedAt, func(n namedHold) bool { return n.id == id })
	if i < 0 {
		return fmt.Errorf("%w: upstream %s: hold %.32q is not known; what is held now is %s: look again with \"relay held %s\"", ErrNotPossible, g.name, id, g.holdID(), g.name)
	}
	var more []string
	for _, key := range g.departing() {
		if g.leaving[key].number > g.lookedAt[i].number {
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
	return fmt.Errorf("%w: upstream %s: hold %s has grown by %d since, and is %s now: look again with \"relay held %s\"\n%s",
		ErrNotPossible, g.name, id, len(more), g.holdID(), g.name, strings.Join(shown, "\n"))
}
