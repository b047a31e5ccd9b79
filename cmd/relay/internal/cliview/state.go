package cliview

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"meshrelay/admin/view"
	"meshrelay/cmd/relay/internal/stateio"
	"meshrelay/state"
)

// shownRevisions bounds the revisions that State shows of an upstream.
const shownRevisions = 10

// State returns the upstreams of a state as text. With detailed, it adds the kinds and newest revisions of the
// first upstream.
func State(all stateio.Inspection, detailed bool, now time.Time) string {
	t := titled("UPSTREAM", "RESOURCES", "BYTES", "SYNCED", "LAST CONTACT", "FROZEN", "REVISIONS")
	for _, u := range all.Upstreams {
		t.add(u.Name, u.Resources, u.Bytes, view.YesNo(u.Synced), lastWritten(u, now), frozenFor(u.Frozen, now), len(u.Revisions))
	}
	text := t.String()
	if !detailed {
		return text
	}
	u := all.Upstreams[0]
	t = titled("KIND", "RESOURCES")
	for _, kind := range slices.Sorted(maps.Keys(u.Kinds)) {
		t.add(kind, u.Kinds[kind])
	}
	return text + "\n" + t.String() + "\n" + History(u.Revisions[:min(len(u.Revisions), shownRevisions)], now)
}

func frozenFor(f *state.Frozen, now time.Time) string {
	switch {
	case f == nil:
		return "no"
	case f.Revision != 0:
		return fmt.Sprintf("%s, at revision %d", view.Ago(f.Since, now), f.Revision)
	}
	return view.Ago(f.Since, now)
}

// lastWritten returns when an upstream was last in contact, as the state has it.
func lastWritten(u stateio.InspectedUpstream, now time.Time) string {
	if u.InContact {
		return "at most " + view.Ago(u.LastContact, now)
	}
	return view.Ago(u.LastContact, now)
}
