package ui

import (
	"fmt"
	"slices"
	"strings"

	"meshrelay/federation/conflicts"
)

// conflictPage answers: who shadows what?
func (p *Pages) conflictPage(r *request) (*Page, error) {
	keys, hosts := p.data.Conflicts()
	page := &Page{
		Title: "Conflicts", Command: "relay conflicts", Topics: []string{topicResources},
		Lead: State{Level: goodIf(keys+hosts == 0, None), Text: fmt.Sprintf("%s in several upstreams, %s claimed by several resources", count(keys, "resource"), count(hosts, "host"))},
	}
	ups := make([]string, 0, len(r.upstreams()))
	for _, u := range r.upstreams()[:min(len(r.upstreams()), maxRows)] {
		ups = append(ups, u.Name)
	}
	search := r.search("/conflicts",
		Field{Name: "upstream", Label: "Upstream", Value: r.get("upstream"), Options: ups},
		Field{Name: "outcome", Label: "Outcome", Value: r.get("outcome"), Options: []string{string(conflicts.Shadowed), string(conflicts.United), string(conflicts.Rejected)}},
	)
	page.Sections = []Section{
		{ID: "keys", Title: "Resources that several upstreams have", Search: search, Table: p.contestTable(r)},
		{ID: "hosts", Title: "Hosts that several resources claim", Table: p.hostTable(r)},
	}
	if all := p.data.NotFollowed(); len(all) > 0 {
		t := &Table{Caption: "Resources whose hosts are not checked", Head: []string{"Resource", "Kind", "Served from", "Hosts", "Why"}}
		for _, n := range all[:min(len(all), maxGroups)] {
			t.Rows = append(t.Rows, []Cell{
				linked(n.Namespace+"/"+n.Name, resourceHref(n.Kind.String(), n.Namespace, n.Name)), cell(n.Kind.Kind), cell(n.Source), number(n.Hosts), cell(n.Reason),
			})
		}
		t.Summary = fmt.Sprintf("%d of %d", len(t.Rows), len(all))
		page.Sections = append(page.Sections, Section{ID: "unchecked", Title: "Not checked", Table: t})
	}
	return page, nil
}

func (p *Pages) contestTable(r *request) *Table {
	t := &Table{Caption: "Resources that several upstreams have", Head: []string{"Resource", "Kind", "Served from", "Outcome", "United", "Not served", "Since", "Why"}, Empty: "No two upstreams have the same resource."}
	all := p.data.Contests()
	n := 0
	for _, c := range all {
		involved := func(name string) bool {
			return name == c.Winner || slices.Contains(c.United, name) || slices.Contains(c.Losers, name)
		}
		if r.get("q") != "" && !r.named(c.Kind.String(), c.Namespace, c.Name) ||
			r.get("upstream") != "" && !involved(r.get("upstream")) || r.get("outcome") != "" && r.get("outcome") != string(c.Outcome) {
			continue
		}
		if n++; n <= r.offset() || n > r.offset()+maxRows {
			continue
		}
		t.Rows = append(t.Rows, []Cell{
			linked(orDash(c.Namespace)+"/"+c.Name, resourceHref(c.Kind.String(), c.Namespace, c.Name)), cell(c.Kind.Kind), cell(c.Winner),
			leveled(contestLevel(c.Outcome), string(c.Outcome)), cell(strings.Join(c.United, ", ")), cell(strings.Join(c.Losers, ", ")), at(c.Since), cell(c.Reason),
		})
	}
	if len(all) > 0 {
		t.Summary = fmt.Sprintf("%d of %s", n, count(len(all), "resource"))
	}
	if n > r.offset()+maxRows {
		t.Next = r.with("from", fmt.Sprint(r.offset()+maxRows))
	}
	return t
}

func contestLevel(o conflicts.Outcome) Level {
	if o == conflicts.Rejected {
		return Bad
	}
	return None
}

// hostTable lists contested hosts.
func (p *Pages) hostTable(r *request) *Table {
	t := &Table{Caption: "Hosts that several resources claim", Head: []string{"Host", "Kind", "Claimed by", "Since", "Why not united"}, Empty: "No two resources claim the same host."}
	all, n := p.data.HostConflicts(), 0
	for _, c := range all {
		var claims []string
		matches := contains(c.Host, r.get("q"))
		for _, claim := range c.Claims {
			matches = matches || r.named("", claim.Namespace, claim.Name)
			if n >= maxRows/2 {
				continue // it only counts
			}
			if len(claims) < maxReasons {
				claims = append(claims, fmt.Sprintf("%s/%s from %s", claim.Namespace, claim.Name, claim.Source))
			}
		}
		if more := c.More + len(c.Claims) - len(claims); more > 0 {
			claims = append(claims, fmt.Sprintf("and %d more", more))
		}
		if !matches {
			continue
		}
		if n++; n > maxRows/2 {
			continue
		}
		first := c.Claims[0]
		t.Rows = append(t.Rows, []Cell{
			linked(c.Host, resourceHref(c.Kind.String(), first.Namespace, first.Name)), cell(c.Kind.Kind), cell(strings.Join(claims, ", ")), at(c.Since), cell(p.data.Apart(c)),
		})
	}
	if n > 0 {
		t.Summary = fmt.Sprintf("%d of %s", len(t.Rows), count(n, "host"))
		if n > len(t.Rows) {
			t.Summary += "; search to see others, or: " + p.here("relay conflicts")
		}
	}
	return t
}
