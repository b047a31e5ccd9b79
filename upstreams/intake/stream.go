package intake

import (
	"fmt"
	"log/slog"
	"time"

	"meshrelay/events"
	"meshrelay/internal/panics"
	"meshrelay/mirror"
	"meshrelay/upstreams/intake/gate"
	"meshrelay/upstreams/intake/records"
)

func (e Opened) step(in *Intake) {
	in.contact.next = e.Address
	in.records.Open(e.Scopes)
	in.gate.Open()
}

func (e Closed) step(in *Intake) {
	in.records.Close()
	was := in.gate.Lose()
	in.reportClosed(e, was)
	if was {
		in.journal.reported = time.Time{}
	}
}

func (e Received) step(in *Intake) {
	in.gate.BeginUpdate()
	in.records.Meet(e.Server, e.Believe)
	number := in.gate.Newest()
	if e.Live {
		e.Updates = in.records.Whole(e.Updates)
	}
	for _, meshConfig := range []bool{true, false} { // the MeshConfig tells how to judge the rest
		for i := range e.Updates {
			if u := &e.Updates[i]; (u.Scope.Kind == mirror.MeshConfig) == meshConfig {
				n, bytes := in.gate.Waiting()
				in.records.SetHeld(records.Held{N: n, Bytes: bytes, Frozen: in.gate.Frozen()})
				in.records.Take(u, e.Unsure, &in.out.Result)
				in.out.Changed += in.obeyAll()
			}
		}
		in.reroot()
	}
	back := false
	for i := range e.Updates {
		s := e.Updates[i].Scope
		in.records.Settle(s)
		in.out.Changed += in.obeyAll()
		back = in.freshen(s.Kind) || back
	}
	in.records.ReportNotOffered()
	if e.Live && in.unswept && (!e.Unsure || !in.records.HasUnconfirmed()) {
		// Judge all that is gone together, as for the answer of a new stream.
		in.gate.StartRound(number)
		in.sweep()
	}
	in.out.Deleted = in.end(in.records.Unsettled() || e.More && in.unswept)
	if !e.Live || in.out.Changed+in.out.Deleted > 0 || !in.told {
		in.lastUpdate = in.now
	}
	in.touch(e.Live, back)
	if in.records.Repeated() {
		in.reportChanges()
		in.out.Deleted += in.gate.Repeated()
	}
	in.out.Clusters = in.records.Ask()
}

func (e Silent) step(in *Intake) {
	in.gate.BeginUpdate()
	waiting := map[mirror.Kind]bool{}
	in.gate.Each(func(key mirror.Key, s gate.State) { waiting[key.Kind] = waiting[key.Kind] || s.Waits() })
	awaited, settled := in.records.Silent(e.Scopes, func(kind mirror.Kind) bool { return waiting[kind] })
	in.out.Awaited = awaited
	in.out.Changed += in.obeyAll()
	in.out.Deleted = in.settled(settled)
}

func (e Endpoints) step(in *Intake) {
	in.gate.BeginUpdate()
	in.records.Endpoints(e, &in.out.Result)
	in.out.Changed += in.obeyAll()
	in.out.Deleted = in.settled(nil)
	in.out.Clusters = in.records.Ask()
}

func (e Rooted) step(in *Intake) {
	in.records.Rooted(e.Namespace)
	in.reroot()
}

// reroot has everything follow other root namespaces. What they rule out is no accident.
func (in *Intake) reroot() {
	if in.records.Reroot(&in.out.Result) {
		in.out.Changed += in.obeyAll()
		in.gate.Meant()
	}
}

func (Repeated) step(in *Intake) { in.out.Deleted = in.gate.Repeated() }

// settled ends an update after which some kinds need not wait any more. It returns how many deletions are carried out.
func (in *Intake) settled(kinds []mirror.Kind) (deleted int) {
	back := false
	for _, kind := range kinds {
		back = in.freshen(kind) || back
	}
	deleted = in.end(in.records.Unsettled())
	in.touch(false, back)
	return deleted
}

// touch marks the source as in contact if it has given all its content. live is set if the source has
// declared that. back is set if kinds are no longer withheld.
func (in *Intake) touch(live, back bool) {
	live = live || in.records.AllTold()
	in.noteComplete(live)
	sweeps := live && in.records.IsOpen() && in.unswept
	if live {
		back = in.regain() || back
	}
	if !sweeps && (!back || in.frozen != nil) {
		return
	}
	if sweeps {
		in.sweep()
	} else {
		in.reconcileAll()
	}
	in.end(in.records.Unsettled())
}

// sweep removes all that the present source did not confirm. It has given all its content.
func (in *Intake) sweep() {
	in.unswept = false
	in.records.Sweep()
	in.obeyAll()
	in.reconcileAll()
}

// freshen notes that the open stream has answered a kind. It reports whether that was withheld.
func (in *Intake) freshen(kind mirror.Kind) (back bool) {
	return in.records.Answers(kind) && in.gate.Freshen(kind)
}

// noteComplete notes that the source has given all its content for the first time.
func (in *Intake) noteComplete(live bool) {
	if in.complete || !live && !in.records.OnceTold() {
		return
	}
	in.complete, in.completeAt, in.told = true, in.now, true
	in.served.SetSynced()
	in.Note(slog.LevelInfo, "upstream has synced")
	in.Tell(events.Event{Type: events.Synced, By: events.ByUpstream, Text: fmt.Sprintf("resources: %d", in.gate.Size())})
}

// regain marks the source as in contact. It reports whether kinds were withheld.
func (in *Intake) regain() (back bool) {
	before := in.gate.Contact()
	if before.Has {
		return false
	}
	in.journal.reported = time.Time{}
	in.reportContact()
	if in.gate.Synced, in.told = true, true; in.frozen == nil || !in.frozen.Empty { // else clients still wait for it
		in.without = time.Time{}
	}
	if before.Stale {
		in.Note(slog.LevelInfo, "upstream is no longer stale", "since", before.Since)
	}
	return in.gate.Regain()
}

// EndGraces is the event that ends all graces before their time, for tests.
type EndGraces struct{}

func (EndGraces) step(in *Intake) { in.endGraces(longestSleep) }

// endGraces ends graces that are over after so long.
func (in *Intake) endGraces(after time.Duration) {
	if ended := in.records.EndGraces(after); len(ended) > 0 {
		in.gate.BeginUpdate()
		in.obeyAll()
		in.settled(ended)
	}
}

// Panicked is the event that the source's code panicked outside the intake.
type Panicked struct {
	What  string
	Panic *panics.Panic
}

func (e Panicked) step(in *Intake) {
	_ = in.records.Panicked(e.What, e.Panic)
}
