package intake

import (
	"cmp"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"meshrelay/decisions"
	"meshrelay/events"
	"meshrelay/mirror"
	"meshrelay/state"
)

// agreement is what the replicas of the relay have decided about the upstream.
//
// While a hold is open, every deletion waits: here it is joined, or the guard here supports it. Nothing that is held
// goes before the end of the hold is decided: the intake proposes an end, and carries it out when it is agreed.
type agreement struct {
	replica string
	known   bool // the decisions were read once
	decisions.Upstream
	sequence uint64    // of the newest decision about any upstream
	since    time.Time // when the open hold was first read here
	own      bool      // this replica has begun the open hold, or the guard here has supported it
	// claims: a hold in the name of this replica is its own. It has proposed one, or a former process may have.
	claims bool
	alone  []string // contents that local decisions have let go, until these are agreed
	begun  bool     // the releases from before this process were looked at
}

// Agreed is the event that the replicas have decided something about the upstream, or that the relay is one of several.
// It has all that is in effect now: what is so already does not change. The record of a decision on which they have not
// agreed yet has no sequence number.
type Agreed struct {
	Replica string // this one
	Known   bool   // Upstream has what they have decided; false: it is not known yet
	// Sequence is that of the newest decision about any upstream. Alone: there are decisions of this replica alone about
	// this one. Unfrozen: the last one about a freeze ends it.
	Sequence        uint64
	Alone, Unfrozen bool
	decisions.Upstream
	// Revision and Records are those of a rollback. Without Records, the relay does not have that content.
	Revision uint64
	Records  []state.Record
	// Operator has given the order here, nil if elsewhere.
	Operator *events.Operator
}

func (e Agreed) step(in *Intake, out *Output) {
	if in.agreed == nil {
		in.agreed = &agreement{replica: e.Replica, claims: true}
	}
	a := in.agreed
	if !e.Known && !e.Alone {
		return
	}
	opened, first := e.Hold != nil && (a.Hold == nil || a.Hold.ID != e.Hold.ID), e.Known && !a.known
	if opened || a.Hold != nil && e.Hold == nil {
		in.journal.reported = time.Time{} // so that the disk gets it
	}
	a.known, a.sequence, a.Upstream, in.report.who = a.known || e.Known, e.Sequence, e.Upstream, e.Operator
	if first && in.told {
		in.before = hold{}
	}
	in.noteReleases()
	in.agreeFrozen(e, out)
	if e.Without != nil && !in.ServedWithout() && !in.told {
		in.without = in.now.UTC()
	}
	if opened {
		if a.since, a.own = in.now, a.claims && e.Hold.Replica == a.replica; !a.own {
			in.join()
		}
	}
	a.claims = a.claims && !first && !opened
	if in.held != nil {
		out.Deleted += in.settleHold()
	}
}

// Overruled is the event that a freeze of this replica alone ends, because others have decided otherwise. The next Agreed
// ends it.
type Overruled struct{}

func (Overruled) step(in *Intake, _ *Output) {
	if in.frozen != nil && in.frozen.Decision == "" {
		in.decided(&decisions.Record{ID: "overruled"})
	}
}

// decided notes the decision of the freeze, with neither ID nor number if the replicas have not agreed on it. Others may read the former value.
func (in *Intake) decided(r *decisions.Record) {
	f := *in.frozen
	f.Decision, f.Number = r.ID, r.Sequence
	in.frozen, in.journal.reported = &f, time.Time{} // so that the disk gets it
}

// Decision returns the ID of the freeze on which replicas have agreed. It is "-" for any other freeze, and empty for none.
func (in *Intake) Decision() string {
	if in.frozen == nil {
		return ""
	}
	return cmp.Or(in.frozen.Decision, "-")
}

// noteReleases notes which releases are over here, so that they are not taken for an answer to the next accident.
func (in *Intake) noteReleases() {
	a := in.agreed
	if a.sequence > 0 {
		in.released = min(in.released, a.sequence) // the log may have begun anew
	}
	unagreed := false
	for _, r := range a.Released {
		if unagreed = unagreed || r.Sequence == 0; slices.Contains(a.alone, r.Content) {
			in.released = max(in.released, r.Sequence)
		}
	}
	if !unagreed {
		a.alone = nil
	}
}

// beginReleases notes that the releases from before this process are over, if the source has told everything and nothing
// waits for one.
func (in *Intake) beginReleases() {
	a := in.agreed
	if a == nil || a.begun || a.sequence == 0 || !in.told || in.syncing || in.unswept {
		return
	}
	if a.begun = true; len(in.leaving) == 0 {
		in.released, in.journal.reported = a.sequence, time.Time{}
	}
}

// agreeFrozen freezes, unfreezes or rolls back the upstream, if that is decided and not so yet.
func (in *Intake) agreeFrozen(e Agreed, out *Output) {
	switch {
	case in.isStill() && e.Frozen == nil:
		return
	case in.isStill() && e.Frozen.ID == in.frozen.Decision:
		in.frozen = nil // the freeze begins at what is served
	case in.isStill():
		in.thaw(events.ByRelay, "another decision came first")
	}
	want, have := e.Frozen, in.frozen
	// What ends a freeze has a higher number. Without that, the log began anew and lacks it: it is proposed again.
	if have != nil && have.Decision != "" && !e.Alone && e.Sequence <= have.Number && (want == nil || want.ID != have.Decision) {
		in.decided(&decisions.Record{})
		have = in.frozen
	}
	switch {
	case want == nil && (have == nil || have.Decision == "" && !e.Unfrozen): // a freeze on which nobody has agreed is proposed
		return
	case want == nil:
		Unfreeze{Order{Force: true, Operator: e.Operator, Reason: have.Reason}}.step(in, out)
		return
	}
	o := Order{Operator: e.Operator, Reason: reasonOf(want), For: time.Duration(want.Seconds) * time.Second, To: e.Revision}
	switch {
	case in.hasAgreed(want):
	case want.Kind == decisions.Rollback && e.Records == nil:
		return
	case want.Kind == decisions.Rollback:
		Rollback{o, e.Records}.step(in, out)
	default:
		if have != nil { // it was unfrozen and frozen again meanwhile
			in.thaw(events.ByOperator, "unfreeze")
		}
		Freeze{o}.step(in, out)
	}
	if want.Sequence == 0 { // nobody has agreed on it
		want = &decisions.Record{}
	}
	if in.frozen.Decision != want.ID || in.frozen.Number != want.Sequence {
		in.decided(want)
	}
}

// reasonOf returns the reason of a decision, with its author if it comes from another replica.
func reasonOf(r *decisions.Record) string {
	if r.Reason == "" {
		return fmt.Sprintf("%s by %s at %s", r.Kind, cmp.Or(r.Who, "the relay"), r.Replica)
	}
	return r.Reason
}

// NeedsRevision reports whether a freeze that is decided is a rollback that the upstream does not have yet.
func (in *Intake) NeedsRevision(want *decisions.Record) bool {
	return want != nil && want.Kind == decisions.Rollback && !in.hasAgreed(want)
}

// hasAgreed reports whether a freeze that is decided is in effect.
func (in *Intake) hasAgreed(want *decisions.Record) bool {
	switch have := in.frozen; {
	case have == nil || have.Decision != "" && have.Decision != want.ID:
		return false
	case have.Decision == "" && want.Kind == decisions.Rollback:
		content, _ := in.ServedContent()
		return content == want.Content
	}
	return true
}

// join begins to wait for the hold of another replica. The guard here supports it only for what waits now: what was to end
// a former hold is no reason to end this one.
func (in *Intake) join() {
	hold := in.agreed.Hold
	if in.held != nil {
		in.held.own, in.held.wants = in.tooMany() != "", ""
	}
	if in.frozen == nil {
		in.note(slog.LevelWarn, "deletions held with another replica", "replica", hold.Replica, "hold", shortContent(hold.Content), "held", hold.Number, "see", "relay held "+in.name)
	}
}

// joins returns why deletions wait although the guard here would let them pass, empty if they do not.
func (in *Intake) joins() string {
	switch a := in.agreed; {
	case a == nil || a.known && a.Hold == nil:
		return ""
	case !a.known && in.before.since.IsZero():
		return ""
	case !a.known:
		return "deletions were held before the relay has started, and the decisions are not read yet"
	}
	return fmt.Sprintf("replica %s holds %d deletions", in.agreed.Hold.Replica, in.agreed.Hold.Number)
}

// judgeAgreed looks how a hold may end: nothing of it goes before its end is decided.
func (in *Intake) judgeAgreed(complete bool) (removed int) {
	in.held.own = in.held.own || in.tooMany() != ""
	switch {
	case in.isOff():
		in.want(decisions.Over, in.departures)
	case in.isNormalAgain(complete):
		in.want(decisions.Returned, in.departures)
	case complete && in.isOver():
		in.want(decisions.Over, in.openedAt)
	}
	return in.settleHold()
}

// want notes how a hold is to end. The departures up to a number may go.
func (in *Intake) want(end decisions.Kind, upTo uint64) {
	in.held.wants, in.held.wantsUpTo, in.held.wantsOf = end, upTo, in.namedHold().content
}

// settleHold lets go what is decided of the held deletions. The guard judges again what nobody holds any more.
func (in *Intake) settleHold() (removed int) {
	a := in.agreed
	if a == nil {
		return 0
	}
	for _, r := range a.Released {
		over := r.Sequence <= in.released || a.Hold != nil && r.Sequence < a.Hold.Sequence
		if isLocal := r.Sequence == 0; isLocal && slices.Contains(a.alone, r.Content) || !isLocal && over {
			continue
		}
		if upTo, has := in.numberOf(r); has {
			return in.letGoAgreed(r, upTo)
		}
	}
	if a.known && a.Hold == nil && !in.held.own {
		in.note(slog.LevelInfo, "hold ended", "reason", "the replica that held has ended it")
		in.endHold()
		return in.judge(false)
	}
	return 0
}

// numberOf returns the newest departure of a content that is or was held here.
func (in *Intake) numberOf(r decisions.Record) (upTo uint64, has bool) {
	in.namedHold() // is the newest of these
	i := slices.IndexFunc(in.lookedAt, func(n namedHold) bool { return n.content == r.Content })
	if i < 0 {
		return 0, false
	}
	return in.lookedAt[i].number, true
}

// letGoAgreed carries out the departures up to a number that a decision is about.
func (in *Intake) letGoAgreed(r decisions.Record, upTo uint64) (removed int) {
	if in.released = max(in.released, r.Sequence); r.Sequence == 0 {
		in.agreed.alone = append(in.agreed.alone, r.Content)
	}
	in.journal.reported = time.Time{}
	var o Order
	for _, text := range r.Parts {
		if part, err := ParsePart(text); err == nil {
			o.Only = append(o.Only, part)
		}
	}
	if len(r.Parts) > len(o.Only) {
		in.note(slog.LevelWarn, "release of a part not carried out", "reason", "a part is unknown here: a newer release has named it", "decision", r.Sequence)
		return 0
	}
	latest := time.Duration(1<<63 - 1)
	if r.Kind == decisions.Over {
		latest = min(guardWindow, in.guard.HoldFor.D()/2)
		if in.held.wants == decisions.Over && in.held.wantsOf == r.Content {
			upTo = min(upTo, in.held.wantsUpTo)
		}
	}
	named := in.namedHold().id
	removed = in.carry(func(key mirror.Key, d departure) bool { return d.number <= upTo && d.joined <= latest && o.picks(key) })
	e := events.Event{Type: events.CarriedOut, By: events.ByGuard, Reason: fmt.Sprintf("decision %d of the replicas: %s", r.Sequence, r.Kind), Text: fmt.Sprintf("%d held deletions carried out", removed)}
	if r.Kind == decisions.Release {
		e.Type, e.By, e.Hold, e.Reason = events.Released, events.ByOperator, named, r.Reason
		e.Operator, e.Text = in.report.who, fmt.Sprintf("%d held deletions carried out, %d still held", removed, len(in.leaving))
	}
	in.because(e.By, withReason(string(r.Kind), r.Reason))
	in.report.reason = e.Reason
	in.tell(e)
	in.note(slog.LevelWarn, "held deletions carried out", "reason", e.Reason, "removed", removed, "held", len(in.leaving), "who", r.Who)
	if len(r.Parts) > 0 && len(in.leaving) > 0 {
		in.held.picked, in.noteHeldAt = true, in.now // the rest has another ID
		return removed
	}
	in.endHold()
	return removed + in.judge(false)
}

// TakeBack is the event that other replicas still serve resources whose deletions a hold is about. Those that the
// source does not have are served again, and wait. Those that wait here get the content of the replica that has begun the
// hold.
type TakeBack struct {
	Hold      string // ID of the record
	Sequence  uint64 // of the newest decision when they were asked: a newer one may release what they have told
	Resources []*mirror.Resource
	Begun     int // so many, the first, come from the replica that has begun the hold
}

func (e TakeBack) step(in *Intake, out *Output) {
	if a := in.agreed; a == nil || a.Hold == nil || a.Hold.ID != e.Hold || a.sequence != e.Sequence || in.frozen != nil {
		return
	}
	in.begin()
	has := map[mirror.Key]bool{}
	in.all(func(sc *scope, name string, rec *record) {
		if rec.resource != nil {
			has[rec.resource.Key()] = true
		} else if key, ok := keyOf(sc.Kind, name); ok {
			has[in.rules.keyOf(key)] = true
		}
	})
	back := 0
	for i, r := range e.Resources {
		key := r.Key()
		served := in.served.Get(key)
		if _, waits := in.leaving[key]; waits && i < e.Begun && in.agreed.Hold.Replica != in.agreed.replica && r.Source() == in.name && !r.Equal(served) {
			in.put(key, r, origin{saved: &state.Record{Resource: r, At: in.now}})
			in.renamed = true
			continue
		}
		saved := state.Record{Resource: r, At: in.now}
		full := in.limits.MaxResources > 0 && in.resources+len(in.leaving) >= 2*in.limits.MaxResources
		if r.Source() != in.name || served != nil || has[key] || in.stale.withholds(key.Kind) || full || !in.rules.admits(saved) {
			continue
		}
		in.put(key, r, origin{saved: &saved})
		in.depart(key)
		back++
	}
	if back > 0 {
		in.tallies.settle() // they were served before
		in.because(events.ByGuard, "hold of another replica")
		in.note(slog.LevelWarn, "deleted resources served again", "reason", in.joins(), "resources", back)
	}
	out.Deleted = in.end(in.unsettled())
}
