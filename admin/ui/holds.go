package ui

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"meshrelay/admin/view"
	"meshrelay/mirror"
	"meshrelay/upstreams/intake"
)

// maxGroups is the most groups in a summary.
const maxGroups = 20

// holdList lists the holds of all upstreams.
func (p *Pages) holdList(r *request) (*Page, error) {
	t := &Table{
		Caption: "Holds", Head: []string{"Upstream", "Hold", "Deletions", "Of", "Why", "Held for", "Ends"},
		Empty: "No deletions are held.",
	}
	n := 0
	for _, u := range r.ups {
		if h := u.Held; h != nil {
			if n++; n > maxRows {
				continue
			}
			t.Rows = append(t.Rows, []Cell{
				linked(u.Name, "/holds/"+pathOf(u.Name)), cell(h.ID), number(h.Removals), number(h.Of), leveled(Warn, h.Reason), at(h.Since), cell(view.EndOfHold(*h, r.now)),
			})
		}
	}
	if n > maxRows {
		t.Summary = fmt.Sprintf("the first %d of %d; all of them: %s", maxRows, n, p.here("relay held"))
	}
	return &Page{
		Title: "Holds", Command: "relay held", Topics: []string{topicUpstreams},
		Lead: State{Level: view.OKIf(n == 0, Warn), Text: fmt.Sprintf("%s waiting for a decision", view.Count(n, "hold"))},
		Sections: []Section{{
			ID: "list", Table: t,
			Text: []State{say(None, "An upstream that deletes many resources at once may be broken. The relay still serves these resources. It holds the deletions until the upstream repeats them, or an operator decides.")},
		}},
	}, nil
}

// holdPage shows a hold: its deletions, and the effect of a release.
func (p *Pages) holdPage(r *request) (*Page, error) {
	u, err := p.upstreamOf(r)
	if err != nil {
		return nil, err
	}
	page := &Page{Title: "Hold of " + u.Name, Crumbs: []Link{{"Holds", "/holds"}}, Command: "relay held " + word(u.Name), Topics: []string{topicUpstreams}}
	all, err := p.data.Held(u.Name)
	if err != nil {
		return nil, err
	}
	if len(all) == 0 {
		page.Lead = say(OK, "No deletions of upstream "+u.Name+" are held.")
		page.Sections = []Section{{ID: "upstream", Text: []State{{Level: None, Text: "Show the upstream.", Href: upstreamHref(u.Name)}}}}
		return page, nil
	}
	h := all[0]
	page.Lead = say(Warn, fmt.Sprintf("%s of %s would be deleted. All of them are still served.", view.Count(h.Removals, "resource"), fmt.Sprint(h.Of)))
	page.Sections = []Section{
		{ID: "why", Title: "Reason and end", Facts: []Fact{
			{"Hold", cell(h.ID)}, {"Why", leveled(Warn, h.Reason)}, {"Held for", at(h.Since)}, {"Ends", cell(view.EndOfHold(h.Held, r.now))},
			{"Goes through at", Cell{Cell: view.Cell{Until: h.Until}}}, {"Upstream", linked(u.Name+": "+view.UpstreamState(u, r.now), upstreamHref(u.Name))},
		}},
		p.effectOf(h),
		{ID: "deletions", Title: "What would be deleted", Search: r.search("/holds/" + pathOf(u.Name)), Table: p.deletions(h, r)},
		{ID: "actions", Title: "What you can do", Actions: []Action{releaseAction(u.Name, h.Held), freezeAction(u.Name)}},
	}
	return page, nil
}

// effectOf counts what the release of a hold would delete.
func (p *Pages) effectOf(h intake.HeldUpstream) Section {
	others := map[mirror.Key]bool{} // keys that another upstream also has
	for _, c := range p.data.Contests() {
		others[c.Key] = c.Winner != "" && c.Winner != h.Upstream || hasOther(c.United, h.Upstream) || hasOther(c.Losers, h.Upstream)
	}
	taken := 0
	type place struct{ kind, namespace string }
	counts := map[place]int{}
	for _, d := range h.Deletions {
		if key, ok := keyOf(d.Kind, d.Namespace, d.Name); ok && others[key] {
			taken++
		}
		counts[place{d.Kind, d.Namespace}]++
	}
	places := slices.SortedFunc(maps.Keys(counts), func(a, b place) int {
		return cmp.Or(counts[b]-counts[a], strings.Compare(a.namespace+"/"+a.kind, b.namespace+"/"+b.kind))
	})
	t := &Table{Caption: "Held deletions by namespace and kind", Head: []string{"Namespace", "Kind", "Deletions"}}
	for _, at := range places[:min(len(places), maxGroups)] {
		t.Rows = append(t.Rows, []Cell{linked(orDash(at.namespace), "/holds/"+pathOf(h.Upstream)+"?q="+queryOf(at.namespace+"/")), cell(at.kind), number(counts[at])})
	}
	if len(places) > maxGroups {
		t.Summary = fmt.Sprintf("the largest %d of %d groups", maxGroups, len(places))
	}
	gone := len(h.Deletions) - taken
	return Section{ID: "effect", Title: "What a release would do", Table: t, Text: []State{
		{Level: view.OKIf(gone == 0, Bad), Text: fmt.Sprintf("%s would be deleted at every client: no other upstream has %s.", view.Count(gone, "resource"), view.Agree(gone, "it", "them"))},
		{Level: None, Text: fmt.Sprintf("%s would be served from another upstream that also has %s.", view.Count(taken, "resource"), view.Agree(taken, "it", "them"))},
		{Level: None, Text: fmt.Sprintf("%s connected now.", view.Count(len(p.data.Clients.Clients()), "client"))},
	}}
}

func hasOther(names []string, upstream string) bool {
	return slices.ContainsFunc(names, func(name string) bool { return name != upstream })
}

var deletionColumns = view.Deletions.Pick("Name", "Namespace", "Kind", "Age", "Held")

// deletions lists held deletions, a page at a time.
func (p *Pages) deletions(h intake.HeldUpstream, r *request) *Table {
	t := &Table{Caption: "Held deletions", Head: append(headOf(deletionColumns), "Then served from"), Empty: "Nothing matches."}
	n := paged(t, r, h.Deletions, func(d intake.HeldDeletion) bool { return r.named(d.Kind, d.Namespace, d.Name) },
		func(d intake.HeldDeletion) []Cell {
			return append(rowOf(deletionColumns, d, r.now, resourceHref(d.Kind, d.Namespace, d.Name)), p.takenOver(h.Upstream, d))
		})
	t.Summary = fmt.Sprintf("%d of %s", n, view.Count(len(h.Deletions), "deletion"))
	return t
}

// takenOver returns another upstream that would serve a resource, or "nobody".
func (p *Pages) takenOver(upstream string, d intake.HeldDeletion) Cell {
	if key, ok := keyOf(d.Kind, d.Namespace, d.Name); ok {
		for _, c := range p.data.Resources.Resolve(key).Copies {
			if c.Source != upstream {
				return leveled(OK, c.Source)
			}
		}
	}
	return leveled(Bad, "nobody")
}

func releaseAction(upstream string, h intake.Held) Action {
	form := orderForm("release", upstream, true)
	form.Hidden = append(form.Hidden, Field{Name: "hold", Value: h.ID})
	return Action{
		Title: fmt.Sprintf("Release these %s", view.Count(h.Removals, "deletion")),
		Why:   "Do this if the deletions are intended: clients lose these resources. The relay refuses if the hold has grown.", Command: "relay release " + word(upstream) + " --hold " + h.ID + ` --reason "…"`,
		Form: form,
	}
}
