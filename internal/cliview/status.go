package cliview

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"meshrelay/admin"
	"meshrelay/adsclient"
	"meshrelay/downstream"
	"meshrelay/mirror"
	"meshrelay/state"
	"meshrelay/upstreams"
	"meshrelay/upstreams/intake"
)

// maxKeys bounds the keys that are shown of a revision.
const maxKeys = 3

// Status returns the readiness with its reasons, the relay and the age of its config, the
// upstreams, advice about them, and the clients. Of many upstreams or clients it lists those that
// are not well. now is for ages.
func Status(v admin.Version, r admin.Readiness, ups []upstreams.Status, clients []downstream.ClientStatus, now time.Time) string {
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
	about := ""
	if v.Name != "" {
		about = fmt.Sprintf("relay:  %s %s%s, up %s\n", Clean(v.Name), Clean(v.Version), memoryOf(v, now), Ago(v.Started, now))
	}
	if config := configLine(r.Config, now); config != "" {
		about += config + "\n"
	}
	if about != "" {
		p.WriteString("\n" + about)
	}
	p.WriteString("\n")
	summary(&p, ups, "upstream", "relay upstreams", healthy, func(some []upstreams.Status) *table { return upstreamTable(some, now) })
	p.WriteString(advice(ups, now) + "\n")
	if len(clients) == 0 {
		p.WriteString("No clients are connected.\n")
		return p.String()
	}
	summary(&p, clients, "client", "relay clients", upToDate, func(some []downstream.ClientStatus) *table { return clientTable(some, now) })
	return p.String()
}

// maxRows bounds the upstreams, and the clients, that a summary lists.
const maxRows = 20

// summary writes a table of all things if they are few, else of those that are not well, and how
// many there are. command lists all.
func summary[T any](p *page, all []T, thing, command string, well func(T) bool, rows func([]T) *table) {
	if len(all) <= maxRows {
		p.table(rows(all))
		return
	}
	bad := slices.DeleteFunc(slices.Clone(all), well)
	if len(bad) > 0 {
		p.table(rows(bad[:min(len(bad), maxRows)]))
	}
	if more := len(bad) - maxRows; more > 0 {
		p.printf("and %d more like these\n", more)
	}
	p.printf("%s, %d of them up to date. All of them: %s\n", Count(len(all), thing), len(all)-len(bad), command)
}

// memoryOf returns the memory in use, after a comma. Without a present it has none: it always changes.
func memoryOf(v admin.Version, now time.Time) string {
	switch {
	case v.MemoryInUse == 0 || now.IsZero():
		return ""
	case v.MemoryLimit == 0:
		return fmt.Sprintf(", %s of memory in use", Bytes(int64(v.MemoryInUse)))
	}
	return fmt.Sprintf(", %s of %s in use", Bytes(int64(v.MemoryInUse)), Bytes(int64(v.MemoryLimit)))
}

// configLine returns the config file, its age, and the mistakes in it.
func configLine(c admin.ReloadStatus, now time.Time) string {
	if c.LastSuccess.IsZero() {
		return ""
	}
	line := "config: "
	if c.File != "" { // a relay of an earlier release does not tell
		line += fmt.Sprintf("%s (sha256 %s), ", Clean(c.File), Clean(c.Hash))
	}
	line += fmt.Sprintf("loaded %s ago", Ago(c.LastSuccess, now))
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

// advice returns lines for each upstream that is held, frozen or stale, or that is followed in part.
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
		out.WriteString(unfollowed(u))
		if u.Stale {
			served := Count(admin.Total(u.Resources), "resource") + " served"
			if n := admin.Total(u.Expired); n > 0 {
				served += fmt.Sprintf(", %d expired", n)
			}
			fmt.Fprintf(&out, "%s: last in contact %s, %s. Check why the relay can not reach it\n", u.Name, LastContact(u, now), served)
		}
	}
	if out.Len() == 0 {
		return ""
	}
	return "\n" + out.String()
}

// LastContact returns when a stale upstream was last in contact, as in "5m ago". A relay that was killed
// may only know a time at which it still was.
func LastContact(u upstreams.Status, now time.Time) string {
	if u.StaleLater {
		return "when the relay was killed, at most " + Ago(u.StaleSince, now) + " ago"
	}
	return Ago(u.StaleSince, now) + " ago"
}

// unfollowed returns a line for each kind of an upstream that is not followed, and one for each note.
func unfollowed(u upstreams.Status) string {
	var out strings.Builder
	for _, one := range u.Following {
		if one.Followed() {
			continue
		}
		where := one.Kind
		if one.Namespace != "" {
			where += " in " + one.Namespace
		}
		fmt.Fprintf(&out, "%s: %s %s", u.Name, Clean(where), one.State)
		if one.Reason != "" {
			out.WriteString(": " + Clean(strings.Join(strings.Fields(one.Reason), " ")))
		}
		out.WriteString("\n")
	}
	for _, note := range u.Notes {
		fmt.Fprintf(&out, "%s: %s\n", u.Name, Clean(note))
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
	t := titled("REVISION", "TIME", "AGE", "RESOURCES", "ADDED", "CHANGED", "REMOVED", "BY", "AMONG THEM")
	for _, r := range revisions {
		some := make([]string, 0, maxKeys)
		for _, key := range r.Keys[:min(len(r.Keys), maxKeys)] {
			some = append(some, shortKey(key))
		}
		among := strings.Join(some, ", ")
		if more := r.Added + r.Changed + r.Removed - len(some); more > 0 && len(some) > 0 {
			among += fmt.Sprintf(" and %d more", more)
		}
		t.add(r.ID, r.Time.UTC().Format(time.RFC3339), Ago(r.Time, now), r.Resources, r.Added, r.Changed, r.Removed, cmp.Or(r.By, "upstream"), among)
	}
	return t.String()
}

// shortKey returns a key of a revision, "+group/Kind namespace/name", with kubectl's short name of
// a well-known kind: "+se shop/db".
func shortKey(key string) string {
	group, rest, ok := strings.Cut(strings.TrimLeft(key, "+~-"), "/")
	kind, name, named := strings.Cut(rest, " ")
	if !ok || !named {
		return key
	}
	info, ok := mirror.LookupKind(mirror.Kind{Group: group, Kind: kind})
	if !ok {
		return key
	}
	short := strings.ToLower(kind)
	if len(info.ShortNames) > 0 {
		short = info.ShortNames[0]
	}
	return key[:len(key)-len(strings.TrimLeft(key, "+~-"))] + short + " " + strings.TrimPrefix(name, "/")
}

// RevisionDiff returns what a revision has changed: each resource as a difference.
func RevisionDiff(d admin.RevisionDiff, diffs Diffs) string {
	var p page
	details := differences{wanted: diffs}
	r := d.Revision
	p.printf("revision %d of %s, by %s\n", r.ID, r.Time.UTC().Format(time.RFC3339), cmp.Or(r.By, "upstream"))
	if d.Oldest {
		p.printf("It is the oldest that is kept: all that there was then is shown as added.\n")
	}
	all := Compare(d.Before, d.After)
	for _, c := range all.Changes {
		name := c.Kind + " " + c.Namespace + "/" + c.Name
		details.add("before "+name, c.Old, "after "+name, c.New)
	}
	p.WriteString(details.String() + details.rest())
	p.printf("\n%d added, %d changed, %d removed", all.Added, all.Changed, all.Removed)
	if d.More > 0 {
		p.printf(", and %d more that the relay leaves out (\"relay state export\" has what there is now)", d.More)
	}
	p.WriteString("\n")
	return p.String()
}
