package cliview

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"meshrelay/admin"
	"meshrelay/admin/view"
	"meshrelay/downstream"
	"meshrelay/orders"
	"meshrelay/upstreams"
)

// maxRows is the most upstreams, and the most clients, that a summary lists.
const maxRows = 20

// Status describes a relay: readiness with reasons, config file, upstreams and clients. If there are many
// upstreams or clients, it lists only those with problems. Ages are relative to now.
func Status(v admin.Version, r admin.Readiness, ups []upstreams.Status, clients []downstream.ClientStatus, now time.Time) string {
	var p page
	head, level := view.Ready(r)
	p.WriteString(Colored(level, head) + "\n")
	for _, reason := range r.Reasons {
		if r.Config.Error != "" { // the line about the config shows it
			reason = strings.TrimSuffix(reason, ": "+r.Config.Error)
		}
		p.printf("- %s\n", view.OneLine(reason))
	}
	for _, note := range r.Notes {
		p.printf("note: %s\n", view.OneLine(note))
	}
	if v.Name != "" || !r.Config.LastSuccess.IsZero() {
		p.WriteString("\n")
	}
	if v.Name != "" {
		p.printf("relay:  %s %s%s, up %s\n", v.Name, v.Version, memoryOf(v, now), view.Ago(v.Started, now))
	}
	p.config(r.Config, now)
	p.WriteString("\n")
	summary(&p, ups, "upstream", "relay upstreams", view.IsHealthy, view.Upstreams, now)
	p.advice(ups, now)
	p.WriteString("\n")
	if len(clients) == 0 {
		p.WriteString("No clients are connected.\n")
		return p.String()
	}
	summary(&p, clients, "client", "relay clients", view.IsSynced, clientColumns, now)
	return p.String()
}

// summary writes a table of all things if there are at most maxRows. Otherwise it writes a table of those that are
// not well, their number, and the command that lists all.
func summary[T any](p *page, all []T, thing, command string, well func(T) bool, columns view.Columns[T], now time.Time) {
	if len(all) <= maxRows {
		p.table(tableOf(columns, all, now))
		return
	}
	bad := slices.DeleteFunc(slices.Clone(all), well)
	if len(bad) > 0 {
		p.table(tableOf(columns, bad[:min(len(bad), maxRows)], now))
	}
	if more := len(bad) - maxRows; more > 0 {
		p.printf("and %d more with problems\n", more)
	}
	p.printf("%s, %d of them up to date. To list all: %s\n", view.Count(len(all), thing), len(all)-len(bad), command)
}

// memoryOf returns the memory in use, after a comma. It returns "" if now is zero, because the number always
// changes.
func memoryOf(v admin.Version, now time.Time) string {
	switch {
	case v.MemoryInUse == 0 || now.IsZero():
		return ""
	case v.MemoryLimit == 0:
		return fmt.Sprintf(", %s of memory in use", view.Bytes(int64(v.MemoryInUse)))
	}
	return fmt.Sprintf(", %s of %s in use", view.Bytes(int64(v.MemoryInUse)), view.Bytes(int64(v.MemoryLimit)))
}

// config writes the config file, when it was loaded, and its mistakes.
func (p *page) config(c admin.ReloadStatus, now time.Time) {
	if c.LastSuccess.IsZero() {
		return
	}
	p.printf("config: %s (sha256 %s), loaded %s ago", c.File, c.Hash, view.Ago(c.LastSuccess, now))
	if len(c.NeedsRestart) > 0 {
		p.printf("; restart needed for %s", strings.Join(c.NeedsRestart, ", "))
	}
	if c.Error != "" {
		p.printf("; the file can not be loaded since %s:", view.Ago(c.FailingSince, now))
		for _, mistake := range c.Mistakes {
			p.printf("\n  %s", mistake)
		}
	}
	p.WriteString("\n")
}

// advice writes lines about each upstream that is held, frozen or stale, has several addresses, or is only
// partly followed.
func (p *page) advice(ups []upstreams.Status, now time.Time) {
	var out page
	for _, u := range ups {
		if h := u.Held; h != nil {
			out.printf("%s: %s See them: relay upstreams --held %[1]s\n", u.Name, view.Hold(*h, now))
		}
		if f := u.Frozen; f != nil {
			out.printf("%s: frozen%s. To unfreeze it: relay unfreeze %[1]s\n", u.Name, view.Freeze(*f, now))
		}
		if len(u.Addresses) > 1 {
			for i, a := range u.Addresses {
				out.printf("%s: %s %s\n", u.Name, a.Address, view.AddressState(u.Addresses, i, now))
			}
		}
		for _, line := range append(view.Unfollowed(u), u.Notes...) {
			out.printf("%s: %s\n", u.Name, line)
		}
		if u.Stale {
			out.printf("%s: %s. Check why the relay can not reach it\n", u.Name, view.Stale(u, now))
		}
	}
	p.part("\n", out.String())
}

// Replicas returns a table of all replicas with lines about orders that are not in force, or nothing if there are none. Ages are
// relative to now.
func Replicas(all []orders.Replica, now time.Time) string {
	if len(all) == 0 {
		return ""
	}
	var p page
	p.WriteString("\n")
	p.table(tableOf(view.Replicas, all, now))
	for _, r := range all {
		for _, line := range view.ReplicaProblems(r) {
			p.printf("%s\n", line)
		}
	}
	return p.String()
}
