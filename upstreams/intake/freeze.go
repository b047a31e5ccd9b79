package intake

import (
	"fmt"
	"log/slog"
	"time"

	"meshrelay/events"
	"meshrelay/mirror"
	"meshrelay/state"
	"meshrelay/upstreams/intake/gate"
	"meshrelay/upstreams/intake/records"
)

// Freeze is the event that an operator freezes what is served, until Unfreeze. With an ID it may replace another freeze.
type Freeze struct{ Order }

func (e Freeze) step(in *Intake) {
	if in.frozen != nil && e.ID == "" {
		in.out.err = NotPossible("upstream %s is frozen already, since %s: \"relay unfreeze %s\" ends that", in.cfg.name, in.frozen.Since.UTC().Format(time.RFC3339), in.cfg.name)
		return
	}
	in.out.Effect = Effect{Kept: in.gate.Size()}
	if e.DryRun {
		return
	}
	waits := in.endsHold()
	in.freeze(e.Order)
	in.tellOrder(e.Order, events.Event{Type: events.Frozen, Text: fmt.Sprintf("what is served stays as it is, resources: %d%s", in.gate.Size(), waits), Command: "relay unfreeze " + in.cfg.name})
}

// endsHold returns how a freeze changes a hold, empty when nothing is held.
func (in *Intake) endsHold() string {
	if !in.gate.Holding() {
		return ""
	}
	held, _ := in.gate.Waiting()
	return fmt.Sprintf("; %d held deletions wait for the end of the freeze", held)
}

// freeze freezes the upstream. Held deletions are not carried out.
func (in *Intake) freeze(o Order) {
	f := &state.Frozen{Since: o.Since, Revision: o.To, Reason: o.Reason, Order: o.ID}
	if f.Since.IsZero() {
		f.Since = in.now.UTC()
	}
	f.Empty = f.Revision == 0 && (o.Empty || !in.served.HasSynced())
	in.frozen = f
	in.gate.Freeze()
	in.journal.reported = time.Time{} // so that the disk gets it
}

// Unfreeze is the event that an upstream follows its source again. The guard judges the deletions.
type Unfreeze struct{ Order }

func (e Unfreeze) step(in *Intake) {
	switch {
	case in.frozen == nil:
		in.out.err = NotPossible("upstream %s is not frozen", in.cfg.name)
		return
	case !e.Force && !in.gate.Contact().Has:
		in.out.err = NotPossible("upstream %s is out of contact: wait for it, or use --force to follow its last known content", in.cfg.name)
		return
	}
	in.out.Effect = in.unfreezing()
	if !e.DryRun {
		in.tellOrder(e.Order, events.Event{Type: events.Unfrozen, Text: "the upstream is followed again"})
		in.thaw(events.ByOperator, withReason("unfreeze", e.Reason))
	}
}

func (in *Intake) unfreezing() (e Effect) {
	has := map[mirror.Key]bool{}
	for key := range in.records.Keys() {
		has[key] = true
	}
	gone := map[mirror.Kind]int{}
	judged := 0
	in.gate.Each(func(key mirror.Key, s gate.State) {
		e.count(key, in.served.Get(key) != nil, has[key])
		if !has[key] && s != gate.RuledOut { // the guard does not judge removals by new rules
			gone[key.Kind]++
			judged++
		}
	})
	if judged > 0 && in.gate.TooMany(gone) != "" {
		e.Held = judged
	}
	e.Kept = in.gate.Size() - e.Changed - e.Removed
	e.finish()
	return e
}

// thaw ends a freeze. cause is the cause of the next revision.
func (in *Intake) thaw(by events.By, cause string) {
	in.frozen = nil
	in.gate.Thaw()
	if in.told {
		in.without = time.Time{}
	}
	in.because(by, cause)
	in.journal.reported = time.Time{}
	in.reconcileAll()
	in.end(in.records.Unsettled())
}

// Rollback is the event that an operator serves the resources of an earlier revision, frozen.
type Rollback struct {
	Order
	Records []state.Record
}

func (e Rollback) step(in *Intake) {
	revision := in.records.Present(in.admitted(e.Records))
	waits := in.endsHold()
	if !e.DryRun {
		in.freeze(e.Order)
	}
	effect := in.serveOnly(revision, e.DryRun)
	if in.out.Effect = effect; e.DryRun {
		return
	}
	in.because(events.ByOperator, withReason(fmt.Sprintf("rollback to %d", e.To), e.Reason))
	in.tellOrder(e.Order, events.Event{
		Type: events.RolledBack, Text: fmt.Sprintf("to revision %d, and frozen there: %d resources%s", e.To, len(revision), waits), Command: "relay unfreeze " + in.cfg.name,
	})
	in.Note(slog.LevelWarn, "rolled back by operator, frozen", "revision", e.To, "resources", len(revision))
	in.reconcileAll()
	in.end(in.records.Unsettled())
}

// serveOnly serves records, and nothing else. It changes nothing in a dry run.
func (in *Intake) serveOnly(revision []state.Record, dryRun bool) (effect Effect) {
	present := in.servedKeys()
	for i := range revision {
		r := &revision[i]
		key := r.Resource.Key()
		_, had := present[key]
		if !had || !in.served.Get(key).Equal(r.Resource) {
			effect.count(key, had, true)
		} else {
			effect.Kept++
		}
		delete(present, key)
		if dryRun {
			continue
		}
		in.put(r.Resource, records.Origin{Disk: r})
		if !had {
			in.gate.RollBack(key)
		}
	}
	for key := range present {
		effect.count(key, true, false)
		if !dryRun {
			in.gate.Drop(key)
		}
	}
	effect.finish()
	if !dryRun {
		in.gate.Settle()
	}
	return effect
}

// Frozen returns the freeze or rollback, nil if there is none. It is immutable.
func (in *Intake) Frozen() *state.Frozen { return in.frozen }

// Release is the event that an operator carries out held deletions: all, or those that the order
// picks.
type Release struct{ Order }

func (e Release) step(in *Intake) {
	if !in.gate.Holding() {
		if !in.releaseRoots(e.Order) {
			in.out.err = NotPossible("upstream %s: nothing is held", in.cfg.name)
		}
		return
	}
	if !e.DryRun {
		in.gate.Report(true) // before its release, even a refused one
	}
	if e.Hold != "" {
		if err := in.grown(e.Hold); err != nil {
			in.out.err = err
			return
		}
	}
	effect := Effect{}
	for _, key := range in.namedHold().keys {
		if e.picks(key) {
			effect.count(key, true, false)
		}
	}
	if effect.Removed == 0 {
		in.out.err = NotPossible("upstream %s: nothing that is held is of these kinds and namespaces: see \"relay upstreams --held %s\"", in.cfg.name, in.cfg.name)
		return
	}
	held, _ := in.gate.Waiting()
	effect.Kept, effect.Held = in.gate.Size()-effect.Removed, held-effect.Removed
	effect.finish()
	in.out.Effect = effect
	if e.DryRun {
		return
	}
	in.because(events.ByOperator, withReason("release", e.Reason))
	in.tellOrder(e.Order, events.Event{
		Type: events.Released, Hold: in.namedHold().id, Text: fmt.Sprintf("%d held deletions carried out, %d still held", effect.Removed, effect.Held),
	})
	in.Note(slog.LevelWarn, "held deletions released by operator", "hold", in.namedHold().id, "removed", effect.Removed, "held", effect.Held)
	in.gate.Release(e.picks)
}

// releaseRoots has only those root namespaces count that MeshConfigs name now. It reports whether others did.
func (in *Intake) releaseRoots(o Order) bool {
	now := in.records.NamedRoots()
	if !o.All || now == "" {
		return false
	}
	if !o.DryRun {
		in.tellOrder(o, events.Event{Type: events.Released, Text: "root namespaces are now " + now + ", before " + in.records.Roots()})
		in.records.SetRoots(now)
		in.reroot()
	}
	return true
}
