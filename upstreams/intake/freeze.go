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
	waits := in.freeze(e.Order)
	in.tellOrder(e.Order, "", events.Event{Type: events.Frozen, Text: fmt.Sprintf("what is served stays as it is, resources: %d%s", in.gate.Size(), waits), Command: "relay unfreeze " + in.cfg.name})
}

// freeze freezes the upstream. Held deletions are not carried out: waits tells of them.
func (in *Intake) freeze(o Order) (waits string) {
	if in.gate.Holding() {
		held, _ := in.gate.Waiting()
		waits = fmt.Sprintf("; %d held deletions wait for the end of the freeze", held)
	}
	f := &state.Frozen{Since: o.Since, Revision: o.To, Reason: o.Reason, Order: o.ID}
	if f.Since.IsZero() {
		f.Since = in.now.UTC()
	}
	f.Empty = f.Revision == 0 && (o.Empty || !in.served.HasSynced())
	in.frozen = f
	in.gate.Freeze()
	in.journal.reported = time.Time{} // so that the disk gets it
	return waits
}

// Unfreeze is the event that an upstream follows its source again. The guard judges the deletions. What
// has expired meanwhile goes in the same step.
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
	if in.showUnfrozen(&in.out.Effect); e.DryRun {
		return
	}
	in.tellOrder(e.Order, "unfreeze", events.Event{Type: events.Unfrozen, Text: "the upstream is followed again"})
	in.frozen = nil
	in.gate.Thaw()
	if in.told {
		in.without = time.Time{}
	}
	in.journal.reported = time.Time{}
	in.reconcileAll()
	in.end(in.records.Unsettled())
}

// showUnfrozen sets the effect that an unfreeze has.
func (in *Intake) showUnfrozen(e *Effect) {
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
}

// Rollback is the event that an operator serves the resources of an earlier revision, frozen.
type Rollback struct {
	Order
	Records []state.Record
}

func (e Rollback) step(in *Intake) {
	revision := in.records.Present(in.admitted(e.Records))
	waits := ""
	if !e.DryRun {
		waits = in.freeze(e.Order)
	}
	if in.serveOnly(revision, e.DryRun); e.DryRun {
		return
	}
	in.gate.Settle()
	in.tellOrder(e.Order, fmt.Sprintf("rollback to %d", e.To), events.Event{
		Type: events.RolledBack, Text: fmt.Sprintf("to revision %d, and frozen there: %d resources%s", e.To, len(revision), waits), Command: "relay unfreeze " + in.cfg.name,
	})
	in.Note(slog.LevelWarn, "rolled back by operator, frozen", "revision", e.To, "resources", len(revision))
	in.reconcileAll()
	in.end(in.records.Unsettled())
}

// serveOnly serves records, and nothing else, and sets the effect of that. It changes nothing else in a dry run.
func (in *Intake) serveOnly(revision []state.Record, dryRun bool) {
	effect, present := &in.out.Effect, in.servedKeys()
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
	effect := &in.out.Effect
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
	if e.DryRun {
		return
	}
	in.tellOrder(e.Order, "release", events.Event{
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
		in.tellOrder(o, "", events.Event{Type: events.Released, Text: "root namespaces are now " + now + ", before " + in.records.Roots()})
		in.records.SetRoots(now)
		in.reroot()
	}
	return true
}
