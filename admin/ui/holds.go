package ui

import (
	"fmt"
	"slices"
	"strings"

	"meshrelay/admin/view"
	"meshrelay/mirror"
	"meshrelay/upstreams/intake"
)

// maxGroups bounds the groups of a summary.
const maxGroups = 20

// holdList lists the holds of all upstreams.
func (p *Pages) holdList(r *request) (*Page, error) {
	t := &Table{
		Caption: "Holds", Head: []string{"Upstream", "Hold", "Deletions", "Of", "Why", "Held for", "Ends"},
		Empty: "No deletions are held: nothing waits for a person.",
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
			Text: []State{say(None, "An upstream that loses much at once may be broken: the relay keeps serving what it had, and holds the deletions until the upstream repeats them, or a person decides.")},
		}},
	}, nil
}

// holdPage answers: what is held, and should I release it?
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
		page.Sections = []Section{{ID: "upstream", Text: []State{{Level: None, Text: "Look at the upstream.", Href: upstreamHref(u.Name)}}}}
		return page, nil
	}
	h := all[0]
	page.Lead = say(Warn, fmt.Sprintf("%s of %s would be deleted. All of them are still served.", view.Count(h.Removals, "resource"), fmt.Sprint(h.Of)))
	page.Sections = []Section{
		{ID: "why", Title: "Why, and until when", Facts: []Fact{
			{"Hold", cell(h.ID)}, {"Why", leveled(Warn, h.Reason)}, {"Held for", at(h.Since)}, {"Ends", cell(view.EndOfHold(h.Held, r.now))},
			{"Goes through at", Cell{Cell: view.Cell{Until: h.Until}}}, {"Upstream", linked(u.Name+": "+view.UpstreamState(u, r.now), upstreamHref(u.Name))},
		}},
		p.effectOf(h),
		{ID: "deletions", Title: "What would be deleted", Search: r.search("/holds/" + pathOf(u.Name)), Table: p.deletions(h, r)},
		{ID: "actions", Title: "What you can do", Actions: []Action{releaseAction(u.Name, h.Held), freezeAction(u.Name)}},
	}
	return page, nil
}

// effectOf sums up what the release of a hold would do.
func (p *Pages) effectOf(h intake.HeldUpstream) Section {
	others := map[mirror.Key]bool{} // keys that another upstream has, too
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
	places := make([]place, 0, len(counts))
	for at := range counts {
		places = append(places, at)
	}
	slices.SortFunc(places, func(a, b place) int {
		if n := counts[b] - counts[a]; n != 0 {
			return n
		}
		return strings.Compare(a.namespace+"/"+a.kind, b.namespace+"/"+b.kind)
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
		{Level: view.OKIf(gone == 0, Bad), Text: fmt.Sprintf("%s would go from every client: no other upstream has %s.", view.Count(gone, "resource"), view.Agree(gone, "it", "them"))},
		{Level: None, Text: fmt.Sprintf("%s would be served from another upstream that has %s, too.", view.Count(taken, "resource"), view.Agree(taken, "it", "them"))},
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

// takenOver tells from which other upstream a resource would be served.
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
		Why:   "They are meant: clients lose these resources. It is refused when more is held by then.", Command: "relay release " + word(upstream) + " --hold " + h.ID + ` --reason "…"`,
		Form: form,
	}
}
