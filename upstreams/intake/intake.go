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
	"meshrelay/upstreams/intake/records"
)

const longestSleep = time.Hour

// Intake is the state machine of one upstream. Its methods are called one at a time.
type Intake struct {
	cfg    settings
	served *mirror.Store
	now    time.Time // of the current step
	out    Output    // of the current step

	records *records.Records
	gate    *gate.Gate
	frozen  *state.Frozen // the freeze of the gate, as the disk has it
	names   holdNames
	empty   int // served services without endpoints
	journal journal
	report  report
	contact contact
	progress
}

type settings struct {
	name  string
	keeps bool // changes are written to disk
}

// progress is how far the source has told what it has.
type progress struct {
	told bool // the source has given all its content at least once since the start of the process
	// unswept: served resources may come from a former source or process, and were not yet compared with all
	// content of the present source.
	unswept bool
	// complete: the present source has answered every scope. completeAt is the first time.
	complete   bool
	completeAt time.Time
	lastUpdate time.Time
	connected  time.Duration // how long a stream was open, or the source in contact
	// without is when an operator began to serve clients without the source, zero if not.
	without  time.Time
	identity string // of the source's cluster, empty if unknown
}

// New returns an Intake without records. keeps: the caller uses TakeChanges.
func New(u config.Upstream, served *mirror.Store, rules *records.Rules, keeps bool) *Intake {
	in := &Intake{served: served, cfg: settings{name: u.Name, keeps: keeps}, journal: journal{dirty: map[mirror.Key]records.Origin{}}}
	in.records = records.New(u, rules, in)
	in.gate = gate.New(served, settingsOf(u), watcher{in})
	return in
}

// settingsOf returns the settings of the gate, which knows no kind by name. A good istiod may have no MeshConfig to
// send, and a registry no healthy service.
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
	e.step(in)
	in.out.Effect.finish()
	in.expireTimers()
	in.out.Wake = in.nextDeadline()
	in.records.RejudgeRoutes(&in.out.Result)
	in.out.Changed += in.obeyAll()
	if in.records.TakeNews() {
		in.journal.reported = time.Time{}
	}
	in.out.Events = in.reported()
	return in.out, in.out.err
}

func (in *Intake) advance(now time.Time) {
	if in.isConnected() {
		in.connected += now.Sub(in.now)
	}
	in.now = now
	in.gate.SetNow(now)
	in.records.SetNow(now, in.connected)
}

func (in *Intake) isConnected() bool { return in.records.IsOpen() || in.gate.Contact().Has }

// Note implements records.Teller.
func (in *Intake) Note(level slog.Level, message string, args ...any) {
	in.out.Notes = append(in.out.Notes, Note{level, message, args})
}

// Tell implements records.Teller: it adds an event to those of the step.
func (in *Intake) Tell(e events.Event) { in.report.events = append(in.report.events, e) }

func (Tick) step(*Intake) {}

// expireTimers has each owner of a deadline do what is due.
func (in *Intake) expireTimers() {
	in.endGraces(0)
	if in.isConnected() && in.records.EndKeeping() {
		in.gate.BeginUpdate()
		in.obeyAll()
	}
	in.gate.ExpireTimers()
	if in.gate.IsImpatient() {
		for _, key := range in.records.PendingServices() {
			in.withdraw(key)
		}
	}
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
	in.records.NextDeadline(in.isConnected(), later)
	return wake
}

// SetPolicy is the event that the config has other limits, guard or staleness.
type SetPolicy struct{ config.Upstream }

func (e SetPolicy) step(in *Intake) {
	in.records.SetLimits(e.Limits)
	if in.gate.Set(settingsOf(e.Upstream)) {
		in.report.by = events.ByConfig
		in.reconcileAll()
		in.end(in.records.Unsettled())
	}
}

// Succeeded is the event that a new source replaces the former one of the same name. It takes over
// the former records. Other rules import them again.
type Succeeded struct{ Rules *records.Rules }

func (e Succeeded) step(in *Intake) {
	Closed{Planned: true}.step(in)
	same, kept := in.records.Rules().Version() == e.Rules.Version(), in.records.Kept()
	in.records.SetRules(e.Rules)
	in.journal.reported = time.Time{}
	in.adopt(kept, same)
}

// adopt takes over the records of a former source or of the disk. If the rules have changed since, what they leave out goes
// without the guard.
func (in *Intake) adopt(saved []state.Record, same bool) {
	in.unswept, in.complete, in.completeAt = true, false, time.Time{}
	in.gate.Unopen()
	ruled := in.records.Adopt(saved, same)
	in.out.Changed += in.obeyAll()
	if !same {
		in.reconcileOver(ruled, true)
		in.end(true)
	}
}

// Restored is the event that the disk has data of the upstream. It is the first event.
type Restored struct{ Saved state.Saved }

func (e Restored) step(in *Intake) {
	meta := e.Saved.Meta
	in.without, in.identity = meta.ServeWithout, meta.Identity
	in.records.Restore(meta.RootNamespace, meta.Server)
	saved := in.admitted(e.Saved.Records)
	if len(saved) == 0 && !meta.Synced && meta.Frozen == nil {
		return
	}
	in.Note(slog.LevelInfo, "serving resources from disk until upstream has synced",
		"resources", len(saved), "lastContact", meta.LastContact, "frozen", meta.Frozen != nil)
	in.Tell(events.Event{Type: events.Restored, By: events.ByRelay, Text: fmt.Sprintf("%d resources served from disk until the upstream has synced", len(saved))})
	in.lastUpdate, in.frozen, in.gate.Synced = meta.LastContact, meta.Frozen, meta.Synced
	if in.frozen != nil {
		in.gate.Freeze()
	}
	in.gate.RestoreHold(gate.Clock{Since: meta.HeldSince, Ran: meta.HeldRan, N: meta.Held})
	in.gate.RestoreContact(meta.LastContact, meta.InContact)
	gone := map[mirror.Kind]int{}
	served := make([]*mirror.Resource, 0, len(saved))
	for i := range saved {
		key := saved[i].Resource.Key()
		if in.gate.Withholds(key.Kind) {
			in.dirty(key, records.Origin{})
			gone[key.Kind]++
			continue
		}
		served = append(served, saved[i].Resource)
		in.empty += empty(saved[i].Resource)
	}
	in.gate.Begin(served)
	if len(gone) > 0 {
		in.noteExpired(gone)
	}
	if in.gate.Synced {
		in.served.SetSynced()
	}
	// Frozen resources may come from rules older than meta.Fingerprint.
	in.adopt(saved, meta.Fingerprint == in.records.Rules().Version() && meta.Frozen == nil)
}

// admitted returns the records from disk that the rules admit: nearly always all.
func (in *Intake) admitted(saved []state.Record) (out []state.Record) {
	admits := in.records.Rules().Admits
	if !slices.ContainsFunc(saved, func(r state.Record) bool { return !admits(r) }) {
		return saved
	}
	for _, r := range saved {
		if admits(r) {
			out = append(out, r)
			continue
		}
		in.dirty(r.Resource.Key(), records.Origin{})
		in.Note(slog.LevelWarn, "resource on disk not served", "resource", r.Resource.Key(),
			"reason", "it has no namespace, and import.namespaces includes only some")
	}
	return out
}

// ServeWithout is the event that an operator serves clients before the source has synced.
type ServeWithout struct{ Order }

func (e ServeWithout) step(in *Intake) {
	if !e.DryRun {
		in.without = in.now.UTC()
	}
}

// Identified is the event that the identity of the source's cluster is known. The disk keeps it.
type Identified struct{ Identity string }

func (e Identified) step(in *Intake) {
	if in.identity != e.Identity {
		in.identity = e.Identity
		in.journal.reported = time.Time{}
	}
}

// Identity returns the identity of the source's cluster, empty if unknown. It outlives a restart.
func (in *Intake) Identity() string { return in.identity }

// ServedWithout reports whether an operator serves clients without the source.
func (in *Intake) ServedWithout() bool { return !in.without.IsZero() }

// Records returns what the source says.
func (in *Intake) Records() *records.Records { return in.records }

// Synced reports whether the present source has given all its content at least once.
func (in *Intake) Synced() bool { return in.complete }
