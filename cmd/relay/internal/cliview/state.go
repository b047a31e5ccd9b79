package cliview

import (
	"time"

	"meshrelay/admin/view"
	"meshrelay/state"
)

// State returns the upstreams of a state as text.
func State(all []state.Contents, now time.Time) string {
	t := titled("UPSTREAM", "RESOURCES", "BYTES", "SYNCED", "LAST CONTACT", "FROZEN", "REVISIONS")
	for _, u := range all {
		contact, frozen := view.Ago(u.Meta.LastContact, now), "no"
		if u.Meta.InContact { // later than the state has it
			contact = "at most " + contact
		}
		if u.Meta.Frozen != nil {
			frozen = view.Ago(u.Meta.Frozen.Since, now)
		}
		t.add(u.Name, len(u.Records), u.Bytes, view.YesNo(u.Meta.Synced), contact, frozen, u.Revisions)
	}
	return t.String()
}
