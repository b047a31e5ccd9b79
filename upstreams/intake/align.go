package intake

import (
	"fmt"
	"log/slog"

	"meshrelay/decisions"
	"meshrelay/events"
	"meshrelay/state"
)

// Still is the event that what is served stays as it is, so that the record of a freeze with this ID can name it, or that
// this is over. A freeze on which the replicas agree ends it, too.
type Still struct {
	ID   string
	Over bool
}

func (e Still) step(in *Intake, _ *Output) {
	switch {
	case in.frozen == nil && !e.Over:
		in.freeze(&state.Frozen{Decision: e.ID})
	case in.isStill() && in.frozen.Decision == e.ID && e.Over:
		in.thaw(events.ByRelay, "freeze not recorded")
	}
}

// isStill reports whether the upstream is frozen by Still alone.
func (in *Intake) isStill() bool { return in.frozen != nil && in.frozen.Since.IsZero() }

// Lacks reports whether the content of a freeze or rollback that is decided is another one than what is served.
func (in *Intake) Lacks(want *decisions.Record) bool {
	if want == nil || want.Content == "" || in.agreed == nil || in.agreed.Frozen == nil || in.agreed.Frozen.ID != want.ID {
		return false
	}
	content, _ := in.ServedContent()
	return content != want.Content
}

// Align is the event that another replica has the content of a freeze or rollback that is decided.
type Align struct {
	Want    *decisions.Record
	Records []state.Record
}

func (e Align) step(in *Intake, out *Output) {
	if !in.Lacks(e.Want) {
		return
	}
	if in.frozen == nil || in.frozen.Decision != e.Want.ID { // a rollback to what was not known here
		in.freeze(&state.Frozen{Since: in.now.UTC(), Reason: reasonOf(e.Want)})
		in.decided(e.Want)
	}
	records := in.present(in.admitted(e.Records))
	effect := in.serveOnly(records, false)
	in.because(events.ByRelay, fmt.Sprintf("decision %d of the replicas: %s", e.Want.Sequence, e.Want.Kind))
	in.note(slog.LevelWarn, "content of another replica served", "reason", "decision "+string(e.Want.Kind)+" of replica "+e.Want.Replica, "changed", effect.Changed, "removed", effect.Removed)
	in.reconcileAll()
	out.Deleted = in.end(in.unsettled())
}

// serveOnly serves records, and nothing else. It changes nothing in a dry run.
func (in *Intake) serveOnly(records []state.Record, dryRun bool) (effect Effect) {
	present := in.servedKeys()
	for i := range records {
		r := &records[i]
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
		if !had {
			in.outdated[key] = false // until the source has it
		}
		in.put(key, r.Resource, origin{saved: r})
	}
	for key := range present {
		effect.count(key, true, false)
		if !dryRun {
			in.drop(key)
		}
	}
	effect.finish()
	if !dryRun {
		in.tallies.settle()
	}
	return effect
}
