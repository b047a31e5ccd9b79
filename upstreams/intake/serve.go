package intake

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"meshrelay/events"
	"meshrelay/federation/services"
	"meshrelay/mirror"
	"meshrelay/upstreams/intake/gate"
)

// serve has the gate serve a record. It reports whether clients see a change.
func (in *Intake) serve(key mirror.Key, rec *record, sc *scope) (changed bool) {
	in.dropFormer(key)
	if in.gate.Frozen() {
		in.follow(key, key, rec, sc)
		in.serveSiblings(rec, sc)
	}
	if !in.gate.Wants(key, rec.resource) {
		return false
	}
	stored, changed := in.put(key, rec.resource, origin{record: rec, scope: sc, endpoints: in.addressing})
	before := rec.load(0)
	rec.resource = stored
	in.account(before, rec.load(0))
	return in.serveSiblings(rec, sc) || changed
}

// put serves a resource, which comes from o. It returns the stored resource.
func (in *Intake) put(key mirror.Key, r *mirror.Resource, o origin) (stored *mirror.Resource, changed bool) {
	return in.noted(key, r, o, in.gate.Put)
}

// noted notes what a function of the gate puts.
func (in *Intake) noted(key mirror.Key, r *mirror.Resource, o origin, put func(mirror.Key, *mirror.Resource) (*mirror.Resource, *mirror.Resource, bool)) (stored *mirror.Resource, changed bool) {
	stored, old, changed := put(key, r)
	if o.endpoints = changed && in.sameConfig(old, r, o); changed {
		in.empty += empty(r) - empty(old)
		in.dirty(key, o)
	}
	switch {
	case old == nil:
		in.report.changes.Note(events.Addition, key)
	case changed && !o.endpoints:
		in.report.changes.Note(events.Modification, key)
		switch service, endpoint := services.Concerns(old, r); {
		case service:
			in.report.changes.Services++
		case endpoint:
			in.report.changes.Endpoints++
		}
	}
	return stored, changed
}

// remove tells the gate that the source does not have a key.
func (in *Intake) remove(key mirror.Key) {
	if in.served.Get(key) == nil {
		in.dropFormer(key)
	}
	in.gate.Gone(key)
}

// expel tells the gate that the rules leave a key out.
func (in *Intake) expel(key mirror.Key) {
	if in.served.Get(key) == nil {
		in.dropFormer(key)
	}
	in.gate.RuleOut(key)
}

// watcher notes what the gate does by itself.
type watcher struct{ *Intake }

// Keeps implements gate.Watcher.
func (in watcher) Keeps(key mirror.Key) { in.withdraw(key) }

// Dropped implements gate.Watcher. The siblings of the last record of the key go with it.
func (in watcher) Dropped(key mirror.Key, old *mirror.Resource) {
	if f := in.former[key]; f != nil {
		for sibling := range f.siblings {
			in.gate.Drop(sibling)
		}
	}
	in.dropFormer(key)
	in.dirty(key, origin{})
	in.empty -= empty(old)
	in.report.changes.Note(events.Removal, key)
}

// Told implements gate.Watcher: a log line and an event for each.
func (in watcher) Told(h gate.Happening) {
	see := "relay upstreams " + in.name
	switch h.What {
	case gate.HoldBegan:
		in.reportHold()
	case gate.HoldEnded:
		in.note(slog.LevelInfo, "hold ended", "reason", h.Why)
		if !h.Unreported {
			in.tell(events.Event{Type: events.Returned, By: events.ByUpstream, Text: "hold ended", Reason: h.Why})
		}
	case gate.CarriedOut:
		args := []any{"reason", h.Why, "removed", h.N}
		if h.After > 0 {
			in.because(events.ByGuard, "guard.holdFor")
			args = append(args, "after", h.After.Round(time.Second).String())
		}
		in.report.by, in.report.reason = events.ByGuard, h.Why
		in.tell(events.Event{Type: events.CarriedOut, By: events.ByGuard, Reason: h.Why, Text: fmt.Sprintf("%d held deletions carried out", h.N)})
		in.note(slog.LevelWarn, "held deletions carried out", args...)
	case gate.Emptied:
		for kind, n := range h.Gone {
			in.note(slog.LevelWarn, "all resources of a kind removed", "kind", kind, "removed", n)
		}
	case gate.AskRepeat:
		in.out.Repeat, in.out.Again = true, h.Again
		if !h.Again {
			in.note(slog.LevelInfo, "asking upstream to repeat held deletions", "held", h.N)
		}
	case gate.BecameStale:
		since := in.gate.Contact().Since.UTC().Format(time.RFC3339)
		in.note(slog.LevelWarn, "upstream is stale", "since", since, "staleAfter", in.staleAfter)
		in.tell(events.Event{
			Type: events.Stale, By: events.ByStaleness, Text: "out of contact since " + since, Reason: fmt.Sprintf("staleAfter is %v", in.staleAfter), Command: see,
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
	in.tell(events.Event{
		Type: events.Expired, By: events.ByStaleness, Command: "relay upstreams " + in.name,
		Text: fmt.Sprintf("%d resources expired: %s", total, strings.Join(kinds, ", ")), Reason: "out of contact since " + since,
	})
	in.note(slog.LevelWarn, "resources expired", "resources", total, "kinds", strings.Join(kinds, ", "), "since", since)
}
