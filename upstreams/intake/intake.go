package intake

import (
	"fmt"
	"log/slog"
	"slices"
	"time"

	"meshrelay/config"
	"meshrelay/events"
	"meshrelay/federation"
	"meshrelay/mirror"
	"meshrelay/state"
	"meshrelay/upstreams/intake/gate"
)

const (
	// versionGrace is how long names of an emptied scope may still turn up in another scope.
	versionGrace = time.Second
	longestSleep = time.Hour
)

// Intake is the state machine of one upstream. Its methods are called one at a time.
type Intake struct {
	name                    string
	served                  *mirror.Store
	keeps                   bool // changes are written to disk
	rules                   *Rules
	limits                  config.Limits
	registry                bool // the source leaves out services without a healthy instance
	staleAfter, expireAfter time.Duration

	now time.Time // of the current step
	out Output    // of the current step

	records
	stream
	gate   *gate.Gate
	frozen *state.Frozen // the freeze of the gate, as the disk has it
	// former has the last record of each served key without a record. If the source sends such a
	// key again and it is refused, this content returns.
	former  map[mirror.Key]*record
	names   holdNames
	empty   int // served services without endpoints
	journal journal
	report  report
	contact contact

	told bool // the source has given all its content at least once since the start of the process
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
		name: u.Name, served: served, keeps: keeps, rules: rules, limits: u.Limits, registry: u.Guard.Profile == config.ProfileRegistry,
		records: newRecords(), former: map[mirror.Key]*record{}, journal: journal{dirty: map[mirror.Key]origin{}}, keeping: map[*record]keep{},
	}
	in.staleAfter, in.expireAfter = u.Staleness.StaleAfter.D(), u.Staleness.ExpireAfter.D()
	in.gate = gate.New(served, settingsOf(u), watcher{in})
	return in
}

// settingsOf returns the settings of the gate. A good istiod may have no MeshConfig to send, and a registry no healthy service.
func settingsOf(u config.Upstream) gate.Settings {
	s := gate.Settings{Guard: u.Guard, Staleness: u.Staleness, MayBeEmpty: []mirror.Kind{mirror.MeshConfig}}
	if u.Guard.Profile == config.ProfileRegistry {
		s.MayBeEmpty = append(s.MayBeEmpty, federation.ServiceEntry)
	}
	return s
}

// Step applies an event. now must not fall. After an error nothing has changed.
func (in *Intake) Step(now time.Time, e Event) (Output, error) {
	in.advance(now)
	in.out = Output{}
	out := &in.out
	e.step(in, out)
	in.expireTimers()
	out.Wake = in.nextDeadline()
	in.rejudgeRoutes(&out.Result)
	out.Events = in.reported()
	return *out, out.err
}

func (in *Intake) advance(now time.Time) {
	if in.isConnected() {
		in.connected += now.Sub(in.now)
	}
	in.now = now
	in.gate.SetNow(now)
}

func (in *Intake) isConnected() bool { return in.open || in.gate.Contact().Has }

func (e Received) step(in *Intake, out *Output) {
	in.gate.BeginUpdate()
	in.meet(e.Server)
	in.believe = e.Believe && in.rules.trusts(e.Server)
	number := in.gate.Newest()
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
		in.gate.StartRound(number)
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

// expireTimers has each owner of a deadline do what is due.
func (in *Intake) expireTimers() {
	in.endGraces(0)
	in.endKeeping()
	in.gate.ExpireTimers()
	in.withdrawPending()
}

// nextDeadline returns when expireTimers has something to do.
func (in *Intake) nextDeadline() time.Time {
	wake := in.now.Add(longestSleep)
	later := func(t time.Time) { // ignores times in the past
		if soonest := in.now.Add(time.Millisecond); t.After(in.now) && t.Before(soonest) {
			t = soonest
		}
		if t.After(in.now) && t.Before(wake) {
			wake = t
		}
	}
	in.gate.NextDeadline(later)
	if len(in.keeping) > 0 && in.isConnected() {
		later(in.now.Add(in.leftOf(keep{since: in.keptSince})))
	}
	if until, waits := in.gate.Patience(); waits && in.registry && len(in.kind(federation.ServiceEntry).pending) > 0 {
		later(until)
	}
	for _, k := range in.kinds {
		later(k.graceUntil)
	}
	return wake
}

// SetPolicy is the event that the config has other limits, guard or staleness.
type SetPolicy struct{ config.Upstream }

func (e SetPolicy) step(in *Intake, _ *Output) {
	in.limits, in.registry = e.Limits, e.Guard.Profile == config.ProfileRegistry
	in.staleAfter, in.expireAfter = e.Staleness.StaleAfter.D(), e.Staleness.ExpireAfter.D()
	if in.gate.Set(settingsOf(e.Upstream)) {
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
	in.lastUpdate, in.frozen, in.gate.Synced = meta.LastContact, meta.Frozen, meta.Synced
	if in.frozen != nil {
		in.gate.RestoreFrozen()
	}
	in.gate.RestoreHold(gate.Clock{Since: meta.HeldSince, Ran: meta.HeldRan, N: meta.Held})
	in.gate.RestoreContact(meta.LastContact, meta.InContact)
	gone := map[mirror.Kind]int{}
	served := make([]*mirror.Resource, 0, len(records))
	for i := range records {
		key := records[i].Resource.Key()
		if in.gate.Withholds(key.Kind) {
			in.dirty(key, origin{})
			gone[key.Kind]++
			continue
		}
		served = append(served, records[i].Resource)
	}
	for _, r := range served {
		in.empty += empty(r)
	}
	in.gate.Begin(served)
	if len(gone) > 0 {
		in.noteExpired(gone)
	}
	if in.gate.Synced {
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
