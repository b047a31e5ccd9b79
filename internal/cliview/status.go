package cliview

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"meshrelay/admin"
	"meshrelay/adsclient"
	"meshrelay/downstream"
	"meshrelay/state"
	"meshrelay/upstreams"
	"meshrelay/upstreams/intake"
)

// maxKeys bounds the keys that are shown of a revision.
const maxKeys = 3

// Status returns the readiness with its reasons, the age of the config, the upstreams, advice
// about them, and the clients. now is for ages.
func Status(r admin.Readiness, ups []upstreams.Status, clients []downstream.ClientStatus, now time.Time) string {
	head := "ready"
	switch {
	case !r.Ready:
		head = "not ready"
	case len(r.Reasons) > 0:
		head = "ready, degraded"
	}
	var p page
	p.WriteString(head + "\n")
	for _, reason := range r.Reasons {
		if r.Config.Error != "" { // configLine has it
			reason = strings.TrimSuffix(reason, ": "+r.Config.Error)
		}
		p.WriteString("- " + Clean(strings.Join(strings.Fields(reason), " ")) + "\n")
	}
	for _, note := range r.Notes {
		p.WriteString("note: " + Clean(strings.Join(strings.Fields(note), " ")) + "\n")
	}
	if config := configLine(r.Config, now); config != "" {
		p.WriteString("\n" + config + "\n")
	}
	p.WriteString("\n")
	p.table(upstreamTable(ups, now))
	p.WriteString(advice(ups, now) + "\n")
	if len(clients) == 0 {
		p.WriteString("No clients are connected.\n")
	} else {
		p.table(clientTable(clients, now))
	}
	return p.String()
}

// configLine returns the age of the config, and the mistakes in the file.
func configLine(c admin.ReloadStatus, now time.Time) string {
	if c.LastSuccess.IsZero() {
		return ""
	}
	line := fmt.Sprintf("config: loaded %s ago", Ago(c.LastSuccess, now))
	if len(c.NeedsRestart) > 0 {
		line += fmt.Sprintf("; restart needed for %s", Clean(strings.Join(c.NeedsRestart, ", ")))
	}
	if c.Error != "" {
		line += fmt.Sprintf("; the file can not be loaded since %s:", Ago(c.FailingSince, now))
		for _, mistake := range c.Mistakes {
			line += "\n  " + Clean(mistake)
		}
	}
	return line
}

// advice returns lines for each upstream that is held, frozen or stale, or of which not all is followed.
func advice(ups []upstreams.Status, now time.Time) string {
	var out strings.Builder
	for _, u := range ups {
		if h := u.Held; h != nil {
			fmt.Fprintf(&out, "%s: %s of %s %s held (%s). The hold ends %s. See them: relay held %s\n", u.Name, Count(h.Removals, "deletion"), Count(h.Of, "resource"),
				Agree(h.Removals, "is", "are"), h.Reason, endOfHold(*h, now), u.Name)
		}
		if f := u.Frozen; f != nil {
			fmt.Fprintf(&out, "%s: frozen%s. To unfreeze it: relay unfreeze %s\n", u.Name, freeze(*f, now), u.Name)
		}
		if len(u.Addresses) > 1 {
			standby := false // addresses behind the active one are not tried
			for _, a := range u.Addresses {
				fmt.Fprintf(&out, "%s: %s %s\n", u.Name, Clean(a.Address), addressState(a, standby, now))
				standby = standby || a.Active
			}
		}
		if u.Kubernetes != nil {
			out.WriteString(unfollowed(u.Name, u.Kubernetes))
		}
		if u.Stale {
			served := Count(admin.Total(u.Resources), "resource") + " served"
			if n := admin.Total(u.Expired); n > 0 {
				served += fmt.Sprintf(", %d expired", n)
			}
			fmt.Fprintf(&out, "%s: last in contact %s ago, %s. Check why the relay can not reach it\n", u.Name, Ago(u.StaleSince, now), served)
		}
	}
	if out.Len() == 0 {
		return ""
	}
	return "\n" + out.String()
}

// unfollowed returns a line for each kind of a cluster that is not followed, and one about fields that
// this build does not know.
func unfollowed(name string, k *upstreams.KubernetesStatus) string {
	var out strings.Builder
	for _, one := range k.Kinds {
		if one.State == "following" {
			continue
		}
		where := one.Kind
		if one.Namespace != "" {
			where += " in " + one.Namespace
		}
		fmt.Fprintf(&out, "%s: %s %s", name, Clean(where), one.State)
		if one.Reason != "" {
			out.WriteString(": " + Clean(strings.Join(strings.Fields(one.Reason), " ")))
		}
		out.WriteString("\n")
	}
	if k.UnknownFields > 0 {
		fmt.Fprintf(&out, "%s: %s %s fields that this build does not know, and leaves out\n", name, Count(k.UnknownFields, "object"), Agree(k.UnknownFields, "has", "have"))
	}
	return out.String()
}

// freeze describes a freeze: its revision, age, reason, end, and the changes that wait.
func freeze(f intake.Frozen, now time.Time) string {
	text := ""
	if f.Revision != 0 {
		text = fmt.Sprintf(" at revision %d", f.Revision)
	}
	text += " for " + Ago(f.Since, now)
	if f.Reason != "" {
		text += fmt.Sprintf(" (%s)", Clean(f.Reason))
	}
	switch left := f.Until.Sub(now); {
	case f.Until.IsZero():
	case left > 0:
		text += fmt.Sprintf(", ends in %s", Age(left))
	default:
		text += ", ends when it is in contact"
	}
	if f.Waiting > 0 {
		text += fmt.Sprintf(", %s changed there", Count(f.Waiting, "resource"))
	}
	return text
}

// addressState describes one of several addresses. standby tells that an address before it is
// active, so that it is not tried.
func addressState(a adsclient.AddressStatus, standby bool, now time.Time) string {
	text := "not tried"
	// An error of a connection begins with the address.
	problem := Clean(strings.Join(strings.Fields(strings.TrimPrefix(a.LastError, a.Address+": ")), " "))
	switch {
	case a.Active:
		text = "in use"
	case standby && a.LastError != "":
		text = fmt.Sprintf("on standby, was down %s ago: %s", Ago(a.LastAttempt, now), problem)
	case a.LastError != "":
		text = fmt.Sprintf("down, tried %s ago: %s", Ago(a.LastAttempt, now), problem)
	case !a.HealthySince.IsZero():
		text = "works since " + Ago(a.HealthySince, now)
	}
	return text
}

// History returns revisions as a table. now is for ages.
func History(revisions []state.Revision, now time.Time) string {
	if len(revisions) == 0 {
		return "No revisions are kept.\n"
	}
	t := titled("REVISION", "AGE", "RESOURCES", "ADDED", "CHANGED", "REMOVED", "BY", "AMONG THEM")
	for _, r := range revisions {
		t.add(r.ID, Ago(r.Time, now), r.Resources, r.Added, r.Changed, r.Removed, cmp.Or(r.By, "upstream"), strings.Join(r.Keys[:min(len(r.Keys), maxKeys)], ", "))
	}
	return t.String()
}

func upstreamTable(ups []upstreams.Status, now time.Time) *table {
	t := titled("UPSTREAM", "TYPE", "STATE", "SYNCED", "RESOURCES", "REFUSED", "DROPPED", "UPDATED", "ADDRESS")
	for _, u := range ups {
		typ := u.Type
		if u.Protocol != "" {
			typ += "/" + u.Protocol
		}
		state := fmt.Sprintf("%s %s", u.State, Ago(u.Since, now))
		if u.Stale {
			state += ", stale"
		}
		if u.Held != nil {
			state += ", held"
		}
		if u.Frozen != nil {
			state += ", frozen"
		}
		t.add(u.Name, typ, state, yesNo(u.Synced), admin.Total(u.Resources), u.RefusedTotal, admin.Total(u.Dropped), Ago(u.LastUpdate, now), u.Address)
	}
	return t
}

func clientTable(clients []downstream.ClientStatus, now time.Time) *table {
	t := titled("CLIENT", "CLUSTER", "VIEW", "VERSION", "PROTOCOL", "TYPES", "STATE", "NACKS", "CONNECTED", "ADDRESS")
	for _, c := range clients {
		stale, rejected, nacks := 0, 0, uint64(0)
		for _, t := range c.Types {
			nacks += t.NACKs
			switch {
			case t.LastNACK != "":
				rejected++
			case !t.Synced:
				stale++
			}
		}
		state := "synced"
		switch {
		case c.Held:
			state = "waiting for upstreams"
		case rejected > 0:
			state = Count(rejected, "type") + " rejected"
		case stale > 0:
			state = Count(stale, "type") + " behind"
		}
		t.add(c.NodeID, c.ClusterID, c.View, c.IstioVersion, c.Protocol, len(c.Types), state, nacks, Ago(c.Connected, now), c.Address)
	}
	return t
}
