package intake

import (
	"fmt"
	"log/slog"
	"slices"
	"time"

	"meshrelay/config"
	"meshrelay/events"
	"meshrelay/mirror"
	"meshrelay/state"
)

const (
	// syncPatience is how long the deletions of a new stream wait for all its answers.
	syncPatience = 10 * time.Second
	// versionGrace is how long names of an emptied scope may still turn up in another scope.
	versionGrace = time.Second
	longestSleep = time.Hour
)

// Intake is the state machine of one upstream. Its methods are called one at a time.
type Intake struct {
	name   string
	served *mirror.Store
	keeps  bool // changes are written to disk
	rules  *Rules
	limits config.Limits
	guard  config.Guard

	now time.Time // of the current step
	out Output    // of the current step

	records
	stream
	departing
	stale   staleness
	tallies tallies
	empty   int // served services without endpoints
	journal journal
	report  report
	contact contact

	frozen *state.Frozen
	// differing has the keys under which the source of a frozen upstream has other content than the served
	// one.
	differing map[mirror.Key]struct{}
	// outdated are keys that stay served while frozen although the source need not have them: new
	// rules exclude them (true), or a rollback brought them back (false).
	outdated map[mirror.Key]bool
	// unseen are the served keys for which reconcileOver has found no record yet.
	unseen map[mirror.Key]struct{}

	synced bool // the source has given all its content at least once, also before a restart
	told   bool // the same since the start of the process
	// without is when an operator began to serve clients without the source, zero if not.
	without           time.Time
	lastUpdate        time.Time
	identity          string // of the source's cluster, empty if unknown
	root              string // the root namespaces of MeshConfigs, joined by commas, empty if unknown
	ownRoot, meshRoot string // of the last MeshConfig of the source, and of the one that is served
	// server has the identities that the server of the last update has proven.
	server     []string
	panics     uint64
	nameBuffer []byte // reused by peekName
	// keeping has the records that a registry has left out, and keptSince is when the first of them was. addressing
	// is set while only endpoints change.
	keeping    map[*record]keep
	keptSince  time.Duration
	addressing bool
	// connected is how long a stream was open, or the source in contact.
	connected time.Duration
	// fault is a hook of tests that panics.
	fault   func(*mirror.Resource)
	parents bool // rejudgeRoutes has to look
}

type stream struct {
	open bool
	// opened are the scopes that the stream has to answer, notOffered those of them that are not offered.
	opened, notOffered []string
	// syncing: some scope is not answered. opening: the stream has not answered all scopes at any time.
	// openedAt is the newest departure when the stream began. Deletions wait until syncingUntil at most.
	syncing, opening bool
	openedAt         uint64
	// torn: every scope was answered, but some answers could not be read in full.
	torn         bool
	syncingUntil time.Time
	// unswept: served resources may come from a former source or process, and were not yet compared with all
	// content of the present source.
	unswept bool
	// complete: the present source has answered every scope. completeAt is the first time.
	complete   bool
	completeAt time.Time
}

// New returns an Intake without records. keeps: the caller uses TakeChanges.
func New(u config.Upstream, served *mirror.Store, rules *Rules, keeps bool) *Intake {
	in := &Intake{
		name: u.Name, served: served, keeps: keeps, rules: rules, limits: u.Limits, guard: u.Guard, records: newRecords(),
		departing: departing{leaving: map[mirror.Key]departure{}, former: map[mirror.Key]*record{}, renamed: true},
		tallies:   tallies{byKind: map[mirror.Kind]*tally{}}, journal: journal{dirty: map[mirror.Key]origin{}},
		differing: map[mirror.Key]struct{}{}, outdated: map[mirror.Key]bool{}, keeping: map[*record]keep{},
	}
	in.stale.setRule(u.Staleness)
	return in
}

// Step applies an event. now must not fall. After an error nothing has changed.
func (in *Intake) Step(now time.Time, e Event) (Output, error) {
	in.advance(now)
	in.out = Output{}
	out := &in.out
	e.step(in, out)
	out.Wake = in.due()
	in.rejudgeRoutes(&out.Result)
	out.Events = in.reported()
	return *out, out.err
}

func (in *Intake) advance(now time.Time) {
	if in.isConnected() {
		in.connected += now.Sub(in.now)
	}
	in.now = now
}

func (in *Intake) isConnected() bool { return in.open || in.stale.inContact }

func (e Received) step(in *Intake, out *Output) {
	in.begin()
	in.meet(e.Server)
	in.believe = e.Believe && in.rules.trusts(e.Server)
	number := in.departures
	for _, meshConfig := range []bool{true, false} { // the MeshConfig tells how to judge the rest
		for i := range e.Updates {
			if u := &e.Updates[i]; (u.Scope.Kind == mirror.MeshConfig) == meshConfig {
				in.takeUpdate(u, e.Unsure, &out.Result)
			}
		}
		in.reroot(&out.Result)
	}
	back := false
	for i := range e.Updates {
		k, sc := in.scope(e.Updates[i].Scope)
		in.reportRefused(sc)
		in.dropUnopened(k)
		in.settle(k)
		back = in.freshen(k) || back
	}
	if len(in.notOffered) > 0 {
		in.reportNotOffered()
	}
	if e.Live && in.unswept && (!e.Unsure || !in.hasUnconfirmed()) {
		// Judge all that is gone together, as for the answer of a new stream.
		in.startStream(number)
		in.sweep()
	}
	out.Deleted = in.end(in.unsettled() || e.More && in.unswept)
	if !e.Live || out.Changed+out.Deleted > 0 || !in.told {
		in.lastUpdate = in.now
	}
	in.touch(e.Live, back)
	out.Clusters = in.discovery.ask()
}

// takeUpdate applies an update. After a panic it refuses the rest of it.
func (in *Intake) takeUpdate(u *Update, unsure bool, out *Result) {
	k, sc := in.scope(u.Scope)
	defer func() {
		if p := mirror.Recovered(recover()); p != nil {
			out.Unread, sc.torn = true, true
			out.Refuse(u.Scope.Name, in.panicked(u.Scope.Name, p))
		}
	}()
	first := k.unanswered[sc.Name] || sc.silent
	if !u.Part {
		delete(k.unanswered, sc.Name)
		sc.answered, sc.silent = true, false
	}
	if sc.parts == nil {
		if sc.generation++; sc.generation == unconfirmed {
			sc.generation++
		}
	}
	if u.Complete {
		in.replace(k, sc, u, first, unsure, out)
	} else {
		in.patch(k, sc, u, out)
	}
}

func (in *Intake) note(level slog.Level, message string, args ...any) {
	in.out.Notes = append(in.out.Notes, Note{level, message, args})
}

func (Tick) step(*Intake, *Output) {}

// due runs expired timers and returns the next deadline.
func (in *Intake) due() time.Time {
	wake := in.now.Add(longestSleep)
	later := func(t time.Time) { // ignores times in the past
		if soonest := in.now.Add(time.Millisecond); t.After(in.now) && t.Before(soonest) {
			t = soonest
		}
		if t.After(in.now) && t.Before(wake) {
			wake = t
		}
	}
	in.endGraces(0)
	in.expire()
	in.endKeeping(later)
	if len(in.leaving) > 0 || in.held != nil {
		in.judge(false)
	}
	in.withdrawPending(later)
	in.noteHeld()
	if len(in.leaving) > 0 && in.held == nil && in.syncing {
		later(in.syncingUntil)
	}
	if in.held != nil {
		in.askToRepeat()
		in.planHold(later)
	}
	for _, k := range in.kinds {
		if !k.graceUntil.IsZero() {
			later(k.graceUntil)
		}
	}
	in.stale.plan(later)
	return wake
}

// SetPolicy is the event that the config has other limits, guard or staleness.
type SetPolicy struct{ config.Upstream }

func (e SetPolicy) step(in *Intake, _ *Output) {
	in.limits, in.guard = e.Limits, e.Guard
	if in.held != nil && !in.isOver() {
		in.held.asked = time.Time{} // holdFor is longer now: ignore the answer to the earlier request
	}
	in.stale.setRule(e.Staleness)
	back := in.stale.reconsider(in.now)
	if back && in.frozen == nil {
		in.report.by = events.ByConfig
		in.reconcileAll()
		in.end(in.unsettled())
	}
}

// Succeeded is the event that a new source replaces the former one of the same name. It takes over
// the former records. Other rules import them again.
type Succeeded struct{ Rules *Rules }

func (e Succeeded) step(in *Intake, _ *Output) {
	in.closed(Closed{Planned: true})
	same, records := in.rules.Version() == e.Rules.Version(), in.kept()
	in.rules = e.Rules.withRoot(in.root)
	in.journal.reported = time.Time{}
	in.adopt(records, same)
}

// Restored is the event that the disk has data of the upstream. It is the first event.
type Restored struct{ Saved state.Saved }

func (e Restored) step(in *Intake, _ *Output) {
	meta := e.Saved.Meta
	in.without, in.identity, in.root, in.server = meta.ServeWithout, meta.Identity, meta.RootNamespace, meta.Server
	in.rules = in.rules.withRoot(in.root)
	records := in.admitted(e.Saved.Records)
	if len(records) == 0 && !meta.Synced && meta.Frozen == nil {
		return
	}
	in.note(slog.LevelInfo, "serving resources from disk until upstream has synced",
		"resources", len(records), "lastContact", meta.LastContact, "frozen", meta.Frozen != nil)
	in.tell(events.Event{Type: events.Restored, By: events.ByRelay, Text: fmt.Sprintf("%d resources served from disk until the upstream has synced", len(records))})
	in.lastUpdate, in.frozen, in.synced = meta.LastContact, meta.Frozen, meta.Synced
	in.before = hold{since: meta.HeldSince, ran: meta.HeldRan, of: meta.Held}
	in.stale.restore(meta.LastContact, meta.InContact, in.now, in.frozen == nil)
	gone := map[mirror.Kind]int{}
	served := make([]*mirror.Resource, 0, len(records))
	for i := range records {
		key := records[i].Resource.Key()
		if in.stale.withholds(key.Kind) {
			in.dirty(key, origin{})
			gone[key.Kind]++
			continue
		}
		served = append(served, records[i].Resource)
	}
	for _, r := range served {
		in.empty += empty(r)
	}
	in.served.Begin(served)
	for kind, n := range in.served.Counts() {
		in.tallies.add(kind, n)
	}
	if len(gone) > 0 {
		in.because(events.ByStaleness, "staleness")
		in.noteExpired(gone)
	}
	if in.synced {
		in.served.SetSynced()
	}
	// Frozen resources may come from rules older than meta.Fingerprint.
	in.adopt(records, meta.Fingerprint == in.rules.Version() && meta.Frozen == nil)
}

// admitted returns the records from disk that the rules admit: nearly always all.
func (in *Intake) admitted(records []state.Record) (out []state.Record) {
	if !slices.ContainsFunc(records, func(r state.Record) bool { return !in.rules.admits(r) }) {
		return records
	}
	for _, r := range records {
		if in.rules.admits(r) {
			out = append(out, r)
			continue
		}
		in.dirty(r.Resource.Key(), origin{})
		in.note(slog.LevelWarn, "resource on disk not served", "resource", r.Resource.Key(),
			"reason", "it has no namespace, and import.namespaces includes only some")
	}
	return out
}

// ServeWithout is the event that an operator serves clients before the source has synced.
type ServeWithout struct{ Order }

func (e ServeWithout) step(in *Intake, _ *Output) {
	if !e.DryRun {
		in.without = in.now.UTC()
	}
}

// Identified is the event that the identity of the source's cluster is known. The disk keeps it.
type Identified struct{ Identity string }

func (e Identified) step(in *Intake, _ *Output) {
	if in.identity != e.Identity {
		in.identity = e.Identity
		in.journal.reported = time.Time{}
	}
}

// Identity returns the identity of the source's cluster, empty if unknown. It outlives a restart.
func (in *Intake) Identity() string { return in.identity }

// ServedWithout reports whether an operator serves clients without the source.
func (in *Intake) ServedWithout() bool { return !in.without.IsZero() }

// Synced reports whether the present source has given all its content at least once.
func (in *Intake) Synced() bool { return in.complete }
