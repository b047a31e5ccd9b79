package cliview

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"meshrelay/admin"
	"meshrelay/upstreams"
)

// Upstreams returns upstreams as a table, with advice about them. now is for ages.
func Upstreams(ups []upstreams.Status, now time.Time) string {
	return upstreamTable(ups, now).String() + advice(ups, now)
}

// Upstream returns all about one upstream. now is for ages.
func Upstream(u upstreams.Status, now time.Time) string {
	var p page
	p.WriteString(Upstreams([]upstreams.Status{u}, now) + "\n")
	if f := u.Found; f != nil {
		p.printf("Cluster %s, found by clusters %s in %s. See: relay clusters\n\n", Clean(u.ClusterID), Clean(f.Clusters), Clean(f.Origin))
	}
	if u.LastError != "" {
		p.printf("Last error: %s\n\n", Clean(u.LastError))
	}
	if len(u.Pending) > 0 {
		p.printf("Types without an answer:\n")
		for _, t := range u.Pending {
			p.printf("  %s\n", Clean(t))
		}
		p.WriteString("\n")
	}
	kinds := slices.AppendSeq(slices.Collect(maps.Keys(u.Resources)), maps.Keys(u.Expired))
	slices.Sort(kinds)
	t := titled("KIND", "RESOURCES", "EXPIRED")
	for _, kind := range slices.Compact(kinds) {
		t.add(kind, u.Resources[kind], u.Expired[kind])
	}
	if len(t.rows) == 1 {
		p.WriteString("It has no resources.\n")
	} else {
		p.table(t)
	}
	if len(u.LeftOut) > 0 {
		p.WriteString("\n")
		t := titled("LEFT OUT", "REASON")
		for _, reason := range slices.Sorted(maps.Keys(u.LeftOut)) {
			t.add(u.LeftOut[reason], reason)
		}
		p.table(t)
		p.printf("Which ones: relay explain --left-out --upstream %s\n", u.Name)
	}
	if u.RefusedTotal > 0 {
		p.WriteString("\n")
		t := titled("REFUSED", "REASON")
		for _, r := range u.Refused {
			t.add(r.Resource, r.Reason)
		}
		p.table(t)
		if more := u.RefusedTotal - len(u.Refused); more > 0 {
			p.printf("and %d more\n", more)
		}
	}
	return p.String()
}

// healthy reports whether nothing about an upstream needs a look.
func healthy(u upstreams.Status) bool {
	return !gone(u) && u.State == upstreams.StateSynced && u.Synced && !u.Stale && u.Held == nil && u.Frozen == nil && u.RefusedTotal == 0
}

// gone reports whether an upstream is a cluster whose kubeconfig is gone.
func gone(u upstreams.Status) bool { return u.Found != nil && u.Found.State != "found" }

func upstreamTable(ups []upstreams.Status, now time.Time) *table {
	t := titled("UPSTREAM", "TYPE", "STATE", "SYNCED", "RESOURCES", "REFUSED", "LEFT OUT", "UPDATED", "ADDRESS")
	for _, u := range ups {
		typ := u.Type
		if u.Protocol != "" {
			typ += "/" + u.Protocol
		}
		t.add(u.Name, typ, upstreamState(u, now), yesNo(u.Synced), admin.Total(u.Resources), u.RefusedTotal, admin.Total(u.LeftOut), Ago(u.LastUpdate, now), u.Address)
	}
	return t
}

// upstreamState returns the state of an upstream and its age, and what makes it special.
func upstreamState(u upstreams.Status, now time.Time) string {
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
	if gone(u) {
		state += ", cluster " + u.Found.State
	}
	return state
}

// UpstreamRows returns a table of upstreams and nothing more. now is for ages.
func UpstreamRows(ups []upstreams.Status, now time.Time) string {
	return upstreamTable(ups, now).String()
}
