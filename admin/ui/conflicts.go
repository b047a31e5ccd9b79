package ui

import (
	"fmt"
	"slices"

	"meshrelay/admin/view"
	"meshrelay/federation/conflicts"
)

// conflictPage shows the resources and hosts on which upstreams conflict.
func (p *Pages) conflictPage(r *request) (*Page, error) {
	keys, hosts := p.data.Conflicts()
	page := &Page{
		Title: "Conflicts", Command: "relay conflicts", Topics: []string{topicResources},
		Lead: State{Level: view.OKIf(keys+hosts == 0, view.None), Text: fmt.Sprintf("%s in several upstreams, %s claimed by several resources", view.Count(keys, "resource"), view.Count(hosts, "host"))},
	}
	search := r.search("/conflicts",
		r.upstreamField(),
		Field{Name: "outcome", Label: "Outcome", Value: r.get("outcome"), Options: []string{string(conflicts.Shadowed), string(conflicts.United), string(conflicts.Rejected), string(conflicts.Unowned)}},
	)
	page.Sections = []Section{
		{ID: "keys", Title: "Resources that several upstreams have", Search: search, Table: p.contestTable(r)},
		{ID: "hosts", Title: "Hosts that several resources claim", Table: p.hostTable(r)},
	}
	return page, nil
}

var conflictColumns = view.KeyConflicts.Pick("Name", "Namespace", "Kind", "Served from", "Outcome", "United", "Not served", "Since", "Reason")

func (p *Pages) contestTable(r *request) *Table {
	t := &Table{Caption: "Resources that several upstreams have", Head: headOf(conflictColumns), Empty: "No two upstreams have the same resource."}
	all, upstream, outcome := p.data.Contests(), r.get("upstream"), r.get("outcome")
	n := paged(t, r, all, func(c conflicts.KeyConflict) bool {
		return (r.get("q") == "" || r.named(c.Kind.String(), c.Namespace, c.Name)) && (outcome == "" || outcome == string(c.Outcome)) &&
			(upstream == "" || upstream == c.Winner || slices.Contains(c.United, upstream) || slices.Contains(c.Losers, upstream))
	}, func(c conflicts.KeyConflict) []Cell {
		return rowOf(conflictColumns, c, r.now, resourceHref(c.Kind.String(), c.Namespace, c.Name))
	})
	if len(all) > 0 {
		t.Summary = fmt.Sprintf("%d of %s", n, view.Count(len(all), "resource"))
	}
	return t
}

// hostTable lists hosts that several resources claim.
func (p *Pages) hostTable(r *request) *Table {
	t := &Table{Caption: "Hosts that several resources claim", Head: headOf(view.HostConflicts), Empty: "No two resources claim the same host."}
	n := 0
	for _, c := range p.data.HostConflicts() {
		if !contains(c.Host, r.get("q")) && !slices.ContainsFunc(c.Claims, func(claim conflicts.Claim) bool { return r.named("", claim.Namespace, claim.Name) }) {
			continue
		}
		if n++; n > maxRows/2 {
			continue
		}
		c.Apart = p.data.Apart(c)
		t.Rows = append(t.Rows, rowOf(view.HostConflicts, c, r.now, resourceHref(c.Kind.String(), c.Claims[0].Namespace, c.Claims[0].Name)))
	}
	if n > 0 {
		t.Summary = fmt.Sprintf("%d of %s", len(t.Rows), view.Count(n, "host"))
	}
	if n > len(t.Rows) {
		t.Summary += "; search for others, or list all: " + p.here("relay conflicts")
	}
	return t
}
