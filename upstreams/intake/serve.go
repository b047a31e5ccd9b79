package intake

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"meshrelay/events"
	"meshrelay/federation/services"
	"meshrelay/internal/panics"
	"meshrelay/mirror"
	"meshrelay/upstreams/intake/gate"
	"meshrelay/upstreams/intake/records"
)

// obeyAll has the gate do what the records want of all that was touched. It returns how many changes clients see.
func (in *Intake) obeyAll() (changed int) {
	ruled := false
	in.records.Wants(func(w records.Want) {
		if in.obey(w) {
			changed++
		}
		ruled = ruled || w.What == records.RuledOut
	})
	if ruled {
		in.gate.Meant()
	}
	return changed
}

// obey has the gate do what the records want of a key. It reports whether clients see a change.
func (in *Intake) obey(w records.Want) (changed bool) {
	switch w.What {
	case records.Resource:
		if in.gate.Frozen() {
			in.join(w)
		}
		if in.gate.Wants(w.Key, w.Resource) {
			var stored *mirror.Resource
			stored, changed = in.put(w.Resource, w.Origin)
			in.records.Stored(w, stored)
		}
	case records.Addresses:
		in.join(w)
	case records.Sibling:
		changed = in.serveSibling(w)
	case records.Gone, records.RuledOut:
		if in.served.Get(w.Key) == nil {
			in.records.LetGo(w.Key)
		}
		if w.What == records.Gone {
			in.gate.Gone(w.Key)
		} else {
			in.gate.RuleOut(w.Key)
		}
	case records.Unknown:
	}
	return changed
}

// join gives what is served under a key the endpoints of now.
func (in *Intake) join(w records.Want) {
	if out := in.records.Join(w, in.served.Get); out != nil {
		w.Endpoints = true
		in.put(out, w.Origin)
	}
}

// serveSibling serves what a record has beside its own key. It comes and goes with the endpoints, whatever holds the config.
func (in *Intake) serveSibling(w records.Want) (changed bool) {
	in.gate.Follow(w.Key)
	switch {
	case w.Resource == nil:
		if changed = in.gate.Drop(w.Key); changed {
			in.gate.Disown(w.Key)
		}
	case in.gate.Frozen():
		in.join(w)
	case !in.gate.Withholds(w.Key.Kind):
		_, changed = in.put(w.Resource, w.Origin)
	}
	return changed
}

// withdraw has a service of a registry that the source does not have any more served without endpoints. Discovered
// endpoints are followed further: records.Addresses.
func (in *Intake) withdraw(key mirror.Key) {
	if out := in.records.Bare(in.served.Get(key)); out != nil {
		in.put(out, records.Origin{Endpoints: true})
	}
}

// put serves a resource, and notes the change. It returns the stored resource, and whether clients see a change.
func (in *Intake) put(r *mirror.Resource, from records.Origin) (stored *mirror.Resource, changed bool) {
	key, seen := r.Key(), &in.report.changes
	stored, old, changed := in.gate.Put(key, r)
	if !changed {
		return stored, false
	}
	service, endpoint := false, false
	if p := panics.Try(func() {
		in.empty += empty(r) - empty(old)
		if from.Endpoints = in.records.SameConfig(old, r, from); old != nil && !from.Endpoints {
			service, endpoint = services.Concerns(old, r)
		}
	}); p != nil {
		from.Endpoints = false
		_ = in.records.Panicked(key.String(), p)
	}
	in.dirty(key, from)
	switch {
	case old == nil:
		seen.Note(events.Addition, key)
	case from.Endpoints:
		return stored, true
	default:
		seen.Note(events.Modification, key)
	}
	if service {
		seen.Services++
	} else if endpoint {
		seen.Endpoints++
	}
	return stored, true
}

// empty returns 1 for a service that is served without endpoints because it has none, otherwise 0. r may be nil.
func empty(r *mirror.Resource) int {
	if r != nil && services.Told(r) {
		return 1
	}
	return 0
}

// end ends an update, which gate.BeginUpdate began. It has the gate judge the deletions, and returns how many that carried
// out. syncing: the source has more to send.
func (in *Intake) end(syncing bool) (removed int) {
	removed = in.gate.EndUpdate(syncing, in.records.IsTorn())
	in.boundJournal()
	return removed
}

func (in *Intake) eachServed(f func(*mirror.Resource)) {
	for _, kind := range in.served.Kinds() {
		for _, r := range in.served.List(kind, "") {
			f(r)
		}
	}
}

func (in *Intake) servedKeys() map[mirror.Key]struct{} {
	keys := make(map[mirror.Key]struct{}, in.gate.Size())
	in.eachServed(func(r *mirror.Resource) { keys[r.Key()] = struct{}{} })
	return keys
}

// reconcileAll has all that is served follow the records. Served keys without a record are gone.
func (in *Intake) reconcileAll() {
	if in.gate.Frozen() {
		in.gate.Recount()
	}
	in.reconcileOver(in.servedKeys(), false)
}

// reconcileOver has all names follow the records. Those of keys that have no record are gone. meant: a change of the config
// removes them, so the guard does not judge that.
func (in *Intake) reconcileOver(keys map[mirror.Key]struct{}, meant bool) {
	in.records.All(func(w records.Want) {
		delete(keys, w.Key)
		in.obey(w)
	})
	if meant {
		in.because(events.ByConfig, "config")
	}
	ruled := meant
	for key := range keys {
		ruled = in.gate.Unwanted(key, meant, in.unswept) || ruled
	}
	if !in.gate.Frozen() {
		in.gate.Recount()
		if ruled {
			in.gate.Meant()
		}
	}
}

// watcher notes what the gate does by itself.
type watcher struct{ *Intake }

// Keeps implements gate.Watcher.
func (in watcher) Keeps(key mirror.Key) { in.withdraw(key) }

// Dropped implements gate.Watcher. The siblings of the last record of the key go with it.
func (in watcher) Dropped(key mirror.Key, old *mirror.Resource) {
	for sibling := range in.records.LetGo(key) {
		in.gate.Drop(sibling)
	}
	in.dirty(key, records.Origin{})
	in.empty -= empty(old)
	in.report.changes.Note(events.Removal, key)
}

// Told implements gate.Watcher: a log line and an event for each.
func (in watcher) Told(h gate.Happening) {
	see := "relay upstreams " + in.cfg.name
	switch h.What {
	case gate.HoldBegan:
		in.reportHold()
	case gate.HoldEnded:
		in.Note(slog.LevelInfo, "hold ended", "reason", h.Why)
		if !h.Unreported {
			in.Tell(events.Event{Type: events.Returned, By: events.ByUpstream, Text: "hold ended", Reason: h.Why})
		}
	case gate.CarriedOut:
		args := []any{"reason", h.Why, "removed", h.N}
		if h.After > 0 {
			in.because(events.ByGuard, "guard.holdFor")
			args = append(args, "after", h.After.Round(time.Second).String())
		}
		in.report.by, in.report.reason = events.ByGuard, h.Why
		in.Tell(events.Event{Type: events.CarriedOut, By: events.ByGuard, Reason: h.Why, Text: fmt.Sprintf("%d held deletions carried out", h.N)})
		in.Note(slog.LevelWarn, "held deletions carried out", args...)
	case gate.Emptied:
		for kind, n := range h.Gone {
			in.Note(slog.LevelWarn, "all resources of a kind removed", "kind", kind, "removed", n)
		}
	case gate.AskRepeat:
		in.records.Repeat(h.Again)
		in.out.Repeat = true
		if !h.Again {
			in.Note(slog.LevelInfo, "asking upstream to repeat held deletions", "held", h.N)
		}
	case gate.BecameStale:
		since := in.gate.Contact().Since.UTC().Format(time.RFC3339)
		in.Note(slog.LevelWarn, "upstream is stale", "since", since, "staleAfter", in.gate.Staleness().StaleAfter.D())
		in.Tell(events.Event{
			Type: events.Stale, By: events.ByStaleness, Text: "out of contact since " + since, Reason: fmt.Sprintf("staleAfter is %v", in.gate.Staleness().StaleAfter.D()), Command: see,
		})
	case gate.Expired:
		in.noteExpired(h.Gone)
	}
}

func (in *Intake) noteExpired(gone map[mirror.Kind]int) {
	in.because(events.ByStaleness, "staleness")
	total, kinds := 0, make([]string, 0, len(gone))
	for kind, n := range gone {
		total += n
		kinds = append(kinds, fmt.Sprintf("%s (%d)", kind, n))
	}
	slices.Sort(kinds)
	since := in.gate.Contact().Since.UTC().Format(time.RFC3339)
	in.Tell(events.Event{
		Type: events.Expired, By: events.ByStaleness, Command: "relay upstreams " + in.cfg.name,
		Text: fmt.Sprintf("%d resources expired: %s", total, strings.Join(kinds, ", ")), Reason: "out of contact since " + since,
	})
	in.Note(slog.LevelWarn, "resources expired", "resources", total, "kinds", strings.Join(kinds, ", "), "since", since)
}
