// Package statusview prints the state of a relay as tables for people.
//
// The package must not know how the state is come by.
package statusview

import (
	"cmp"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"meshrelay/admin"
	"meshrelay/adsclient"
	"meshrelay/downstream"
	"meshrelay/internal/printer"
	"meshrelay/state"
	"meshrelay/upstreams"
)

// maxKeys is how many of the keys of a revision are shown.
const maxKeys = 3

// Print writes the readiness with its reasons, how old the config is, then the upstreams,
// with what to do about those that wait for somebody, and the clients. Ages are counted from
// now.
func Print(w io.Writer, r admin.Readiness, ups []upstreams.Status, clients []downstream.ClientStatus, now time.Time) error {
	head := "ready"
	switch {
	case !r.Ready:
		head = "not ready"
	case len(r.Reasons) > 0:
		head = "ready, degraded"
	}
	text := head + "\n"
	for _, reason := range r.Reasons {
		if r.Config.Error != "" { // which is said below
			reason = strings.TrimSuffix(reason, ": "+r.Config.Error)
		}
		text += "- " + printer.Clean(strings.Join(strings.Fields(reason), " ")) + "\n"
	}
	for _, note := range r.Notes {
		text += "note: " + printer.Clean(strings.Join(strings.Fields(note), " ")) + "\n"
	}
	if config := configLine(r.Config, now); config != "" {
		text += "\n" + config + "\n"
	}
	if _, err := io.WriteString(w, text+"\n"); err != nil {
		return err
	}
	if err := printer.Rows(w, upstreamRows(ups, now)); err != nil {
		return err
	}
	if _, err := io.WriteString(w, advice(ups, now)+"\n"); err != nil {
		return err
	}
	if len(clients) == 0 {
		_, err := fmt.Fprintln(w, "No clients are connected.")
		return err
	}
	return printer.Rows(w, clientRows(clients, now))
}

// configLine says how old the config is, and since when it could not be replaced.
func configLine(c admin.ReloadStatus, now time.Time) string {
	if c.LastSuccess.IsZero() {
		return ""
	}
	line := fmt.Sprintf("config: loaded %s ago", printer.Ago(c.LastSuccess, now))
	if c.Error != "" {
		line += fmt.Sprintf("; what is in the file since %s is not in force", printer.Ago(c.FailingSince, now))
	}
	if len(c.NeedsRestart) > 0 {
		line += fmt.Sprintf("; a restart is needed for %s", printer.Clean(strings.Join(c.NeedsRestart, ", ")))
	}
	if c.Error != "" {
		line += ":"
		for _, mistake := range mistakes(c.Error) {
			line += "\n  " + printer.Clean(mistake)
		}
	}
	return line
}

// mistakes returns what is wrong with a config file, each for itself. They come in one line,
// and each begins as the first does, with the file.
func mistakes(text string) []string {
	begin := text[:strings.Index(text, ":")+1]
	if begin == "" {
		return []string{text}
	}
	text = strings.ReplaceAll(text, "; "+begin, "\n"+begin)
	last := strings.LastIndex(text, "; and ") // so many more
	if last > strings.LastIndex(text, "\n") && strings.HasSuffix(text, " more") {
		text = text[:last] + "\n" + text[last+len("; "):]
	}
	return strings.Split(text, "\n")
}

// stateOf is the state of an upstream, its age, and what else is to be known.
func stateOf(u upstreams.Status, now time.Time) string {
	state := fmt.Sprintf("%s %s", u.State, printer.Ago(u.Since, now))
	if u.Stale {
		state += ", stale"
	}
	if u.Held != nil {
		state += ", held"
	}
	if u.Frozen != nil {
		state += ", frozen"
	}
	return state
}

// advice is a line for each upstream that is held, frozen or stale, with what to do.
func advice(ups []upstreams.Status, now time.Time) string {
	var out strings.Builder
	for _, u := range ups {
		if h := u.Held; h != nil {
			fmt.Fprintf(&out, "%s: %s of %s %s held (%s). The hold ends %s. See them: relay held %s\n", u.Name, printer.Count(h.Removals, "deletion"), printer.Count(h.Of, "resource"),
				printer.Agree(h.Removals, "is", "are"), h.Reason, endOfHold(*h, now), u.Name)
		}
		if f := u.Frozen; f != nil {
			at := "as it was"
			if f.Revision != 0 {
				at = fmt.Sprintf("at revision %d", f.Revision)
			}
			waiting := ""
			if f.Reason != "" {
				waiting = fmt.Sprintf(" (%s)", printer.Clean(f.Reason))
			}
			switch left := f.Until.Sub(now); {
			case f.Until.IsZero():
			case left > 0:
				waiting += fmt.Sprintf(", ends in %s", printer.Age(left))
			default:
				waiting += ", ends when it is in contact"
			}
			if f.Waiting > 0 {
				waiting += fmt.Sprintf(", %s %s changed there", printer.Count(f.Waiting, "resource"), printer.Agree(f.Waiting, "has", "have"))
			}
			fmt.Fprintf(&out, "%s: frozen %s for %s%s. To follow it again: relay unfreeze %s\n", u.Name, at, printer.Ago(f.Since, now), waiting, u.Name)
		}
		if len(u.Addresses) > 1 {
			standby := false // behind the one in use, they are not tried
			for _, a := range u.Addresses {
				fmt.Fprintf(&out, "%s: %s %s\n", u.Name, printer.Clean(a.Address), addressState(a, standby, now))
				standby = standby || a.Active
			}
		}
		if u.Stale {
			fmt.Fprintf(&out, "%s: last in contact %s ago. %s. See what keeps the relay from reaching it\n", u.Name, printer.Ago(u.StaleSince, now), whatIsServed(u))
		}
	}
	if out.Len() == 0 {
		return ""
	}
	return "\n" + out.String()
}

// whatIsServed says what becomes of what a stale upstream gave.
func whatIsServed(u upstreams.Status) string {
	kept, expired := total(u.Resources), total(u.Expired)
	switch {
	case kept+expired == 0:
		return "Nothing of it is served"
	case expired == 0:
		return fmt.Sprintf("%s of it %s served as %s", printer.Count(kept, "resource"), printer.Agree(kept, "is", "are"), printer.Agree(kept, "it was", "they were"))
	case kept == 0:
		return fmt.Sprintf("%s of it %s not served any more", printer.Count(expired, "resource"), printer.Agree(expired, "is", "are"))
	}
	return fmt.Sprintf("%s of it %s served as %s, %d %s not any more", printer.Count(kept, "resource"), printer.Agree(kept, "is", "are"),
		printer.Agree(kept, "it was", "they were"), expired, printer.Agree(expired, "is", "are"))
}

// total adds up counts by kind.
func total(counts map[string]int) (n int) {
	for _, c := range counts {
		n += c
	}
	return n
}

// addressState says how one of several addresses does. standby says that it is not tried,
// because one that is preferred to it is in use.
func addressState(a adsclient.AddressStatus, standby bool, now time.Time) string {
	text := "not tried"
	// An error of a connection begins with the address.
	problem := printer.Clean(strings.Join(strings.Fields(strings.TrimPrefix(a.LastError, a.Address+": ")), " "))
	switch {
	case a.Active:
		text = "in use"
	case standby && a.LastError != "":
		text = fmt.Sprintf("on standby, was down %s ago: %s", printer.Ago(a.LastAttempt, now), problem)
	case a.LastError != "":
		text = fmt.Sprintf("down, tried %s ago: %s", printer.Ago(a.LastAttempt, now), problem)
	case !a.HealthySince.IsZero():
		text = "works since " + printer.Ago(a.HealthySince, now)
	}
	return text
}

// History writes revisions as a table. Ages are counted from now.
func History(w io.Writer, revisions []state.Revision, now time.Time) error {
	if len(revisions) == 0 {
		_, err := fmt.Fprintln(w, "No revisions are kept.")
		return err
	}
	rows := [][]string{{"REVISION", "AGE", "RESOURCES", "ADDED", "CHANGED", "REMOVED", "BY", "AMONG THEM"}}
	for _, r := range revisions {
		rows = append(rows, []string{
			strconv.FormatUint(r.ID, 10), printer.Ago(r.Time, now), strconv.Itoa(r.Resources),
			strconv.Itoa(r.Added), strconv.Itoa(r.Changed), strconv.Itoa(r.Removed), cmp.Or(r.By, "upstream"), printer.OrNone(strings.Join(r.Keys[:min(len(r.Keys), maxKeys)], ", ")),
		})
	}
	return printer.Rows(w, rows)
}

func upstreamRows(ups []upstreams.Status, now time.Time) [][]string {
	rows := [][]string{{"UPSTREAM", "TYPE", "STATE", "SYNCED", "RESOURCES", "REFUSED", "DROPPED", "UPDATED", "ADDRESS"}}
	for _, u := range ups {
		typ := u.Type
		if u.Protocol != "" {
			typ += "/" + u.Protocol
		}
		synced := "no"
		if u.Synced {
			synced = "yes"
		}
		rows = append(rows, []string{
			u.Name, typ, stateOf(u, now), synced,
			strconv.Itoa(total(u.Resources)), strconv.Itoa(u.RefusedTotal), strconv.Itoa(total(u.Dropped)), printer.Ago(u.LastUpdate, now), printer.OrNone(u.Address),
		})
	}
	return rows
}

func clientRows(clients []downstream.ClientStatus, now time.Time) [][]string {
	rows := [][]string{{"CLIENT", "CLUSTER", "VIEW", "VERSION", "PROTOCOL", "TYPES", "STATE", "NACKS", "CONNECTED", "ADDRESS"}}
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
			state = printer.Count(rejected, "type") + " rejected"
		case stale > 0:
			state = printer.Count(stale, "type") + " behind"
		}
		rows = append(rows, []string{
			c.NodeID, printer.OrNone(c.ClusterID), printer.OrNone(c.View), printer.OrNone(c.IstioVersion), c.Protocol, strconv.Itoa(len(c.Types)), state,
			strconv.FormatUint(nacks, 10), printer.Ago(c.Connected, now), c.Address,
		})
	}
	return rows
}
