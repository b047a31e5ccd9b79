package ui

import (
	"fmt"
	"net/http"
	"slices"
	"time"

	"meshrelay/admin"
	"meshrelay/admin/view"
	"meshrelay/state"
	"meshrelay/upstreams"
	"meshrelay/upstreams/intake/records"
)

// maxRevisions is the most revisions of an upstream that are listed.
const maxRevisions = 30

func upstreamHref(name string) string { return "/upstreams/" + pathOf(name) }

func upstreamTable(ups []upstreams.Status, r *request) *Table {
	return tableOf("Upstreams", "No upstream matches.", view.Upstreams, ups, len(ups), r.now,
		func(u upstreams.Status) string { return upstreamHref(u.Name) })
}

// upstreamList lists all upstreams, a page at a time.
func (p *Pages) upstreamList(r *request) (*Page, error) {
	all := r.ups
	t := upstreamTable(nil, r)
	n := paged(t, r, all, func(u upstreams.Status) bool {
		return (contains(u.Name, r.get("q")) || contains(u.Address, r.get("q"))) && (r.get("state") != notWell || !view.IsHealthy(u))
	}, func(u upstreams.Status) []Cell { return rowOf(view.Upstreams, u, r.now, upstreamHref(u.Name)) })
	t.Summary = fmt.Sprintf("%d of %s", n, view.Count(len(all), "upstream"))
	well := countIf(all, view.IsHealthy)
	return &Page{
		Title: "Upstreams", Command: "relay upstreams", Topics: []string{topicUpstreams},
		Lead:     State{Level: view.OKIf(well == len(all), view.Warn), Text: fmt.Sprintf("%d of %s up to date", well, view.Count(len(all), "upstream"))},
		Sections: append([]Section{{ID: "list", Search: r.search("/upstreams", stateField(r)), Table: t}}, p.clusterSections(r)...),
	}, nil
}

const notWell = "not up to date"

func stateField(r *request) Field {
	return Field{Name: "state", Label: "State", Value: r.get("state"), Options: []string{notWell}}
}

// upstreamOf returns the upstream of a request.
func (p *Pages) upstreamOf(r *request) (upstreams.Status, error) {
	i := slices.IndexFunc(r.ups, func(u upstreams.Status) bool { return u.Name == r.name })
	if i < 0 {
		return upstreams.Status{}, notFound("There is no upstream %.64q.", r.name)
	}
	return r.ups[i], nil
}

// upstreamPage shows one upstream.
func (p *Pages) upstreamPage(r *request) (*Page, error) {
	u, err := p.upstreamOf(r)
	if err != nil {
		return nil, err
	}
	page := &Page{
		Title: "Upstream " + u.Name, Crumbs: []Link{{"Upstreams", "/upstreams"}}, Command: "relay upstreams " + word(u.Name), Topics: []string{topicUpstreams},
		Lead:     State{Level: view.UpstreamLevel(u), Text: fmt.Sprintf("%s, %s served", view.UpstreamState(u, r.now), view.Count(admin.Total(u.Resources), "resource"))},
		Sections: []Section{{ID: "state", Title: "State", Facts: upstreamFacts(u, r), Text: append(upstreamAdvice(u, r), State{Level: view.None, Text: "Show its events", Href: "/events?upstream=" + queryOf(u.Name)})}},
	}
	hold, err := p.hold(u, r)
	if err != nil {
		return nil, err
	}
	page.Sections = append(page.Sections, hold...)
	if len(u.Addresses) > 1 {
		t := &Table{Caption: "Addresses in order of preference", Head: []string{"Address", "State"}}
		for i, a := range u.Addresses[:min(len(u.Addresses), maxRows)] {
			t.Rows = append(t.Rows, []Cell{cell(a.Address), leveled(view.OKIf(a.LastError == "", view.Warn), view.AddressState(u.Addresses, i, r.now))})
		}
		page.Sections = append(page.Sections, Section{ID: "addresses", Title: "Addresses", Table: t})
	}
	page.Sections = append(page.Sections, Section{ID: "kinds", Title: "Resources by kind", Table: kindTable(u, r.now)})
	page.Sections = append(page.Sections, p.keptOut(u, r)...)
	page.Sections = append(page.Sections, p.history(u, r.now), Section{ID: "actions", Title: "What you can do", Actions: upstreamActions(u)})
	return page, nil
}

func upstreamFacts(u upstreams.Status, r *request) []Fact {
	facts := []Fact{
		{"State", leveled(view.UpstreamLevel(u), view.UpstreamState(u, r.now))}, {"Since", at(u.Since)}, {"Last update", at(u.LastUpdate)},
		{"Address", cell(u.Address)}, {"Cluster", cell(u.ClusterID)}, {"Type", cell(u.Type)}, {"Protocol", cell(u.Protocol)},
		{"Reconnects", number(u.Reconnects)}, {"Responses rejected", number(u.NACKs)},
	}
	if u.LastError != "" {
		facts = append(facts, Fact{"Last error", leveled(view.Warn, u.LastError)})
	}
	if u.Required {
		facts = append(facts, Fact{"Required", cell("yes: the relay is not ready while it is stale")})
	}
	return facts
}

// upstreamAdvice describes a hold, a freeze, staleness, types without an answer, and notes.
func upstreamAdvice(u upstreams.Status, r *request) (list []State) {
	if h := u.Held; h != nil {
		list = append(list, say(view.Warn, view.Hold(*h, r.now)))
	}
	if f := u.Frozen; f != nil {
		list = append(list, say(view.Warn, "frozen"+view.Freeze(*f, r.now)))
	}
	if u.Stale {
		list = append(list, say(view.Warn, "stale: "+view.Stale(u, r.now)))
	}
	if u.Endpoints != nil && u.Endpoints.LastError != "" {
		list = append(list, say(view.Warn, "the endpoints of its services may be old: "+u.Endpoints.LastError))
	}
	for i, typ := range u.Pending {
		if i == maxReasons {
			return append(list, say(view.Warn, fmt.Sprintf("and %d more types without an answer", len(u.Pending)-i)))
		}
		list = append(list, say(view.Warn, "no answer yet for "+typ))
	}
	for _, line := range slices.Concat(first(view.Unfollowed(u), maxRows), first(u.Told.Lines(u.Name), maxRows)) {
		list = append(list, say(view.Warn, line))
	}
	for _, note := range u.Notes {
		list = append(list, say(view.None, note))
	}
	return list
}

func kindTable(u upstreams.Status, now time.Time) *Table {
	kinds := view.Kinds(u)
	t := tableOf("Resources of the upstream by kind", "It has no resources.", view.KindCounts, kinds, maxRows, now,
		func(k view.KindCount) string {
			return "/resources?kind=" + queryOf(k.Kind) + "&upstream=" + queryOf(u.Name)
		})
	if len(kinds) > maxRows {
		t.Summary = fmt.Sprintf("the first %d of %d kinds", maxRows, len(kinds))
	}
	return t
}

// keptOut lists the resources that are refused, and those that import rules leave out.
func (p *Pages) keptOut(u upstreams.Status, r *request) (sections []Section) {
	if u.RefusedTotal > 0 {
		t := tableOf("Resources whose newest content is refused", "", view.Refusals, u.Refused, maxRows/2, r.now, func(records.Refusal) string { return "" })
		t.Summary = fmt.Sprintf("%d of %d refused; the last good content is still served", len(t.Rows), u.RefusedTotal)
		sections = append(sections, Section{ID: "refused", Title: "Refused", Table: t})
	}
	if len(u.LeftOut) == 0 {
		return sections
	}
	t := tableOf("Resources that import rules leave out, by rule", "", view.RuleCounts, view.Rules(u), len(u.LeftOut), r.now, func(view.RuleCount) string { return "" })
	t.Summary = "to list them: " + p.here("relay explain --left-out --upstream "+word(u.Name))
	return append(sections, Section{ID: "rules", Title: "Left out", Table: t})
}

// history lists the kept revisions of an upstream.
func (p *Pages) history(u upstreams.Status, now time.Time) Section {
	s := Section{ID: "history", Title: "History"}
	revisions, err := p.data.History(u.Name)
	if err != nil {
		s.Text = []State{say(view.None, err.Error())}
		if admin.StatusOf(err) >= http.StatusInternalServerError {
			s.Text = []State{say(view.Warn, "The history can not be read: "+err.Error())}
		}
		return s
	}
	t := tableOf("Revisions, newest first", "No revisions are kept.", view.Revisions, revisions, maxRevisions, now, func(state.Revision) string { return "" })
	command := "relay history " + word(u.Name)
	t.Summary = fmt.Sprintf("%d of %s; to list all: %s; to show the changes of one: %s", len(t.Rows), view.Count(len(revisions), "revision"), p.here(command), p.here(command+" REVISION --diff"))
	s.Table = t
	return s
}

func upstreamActions(u upstreams.Status) (list []Action) {
	name := word(u.Name)
	if h := u.Held; h != nil {
		list = append(list, Action{
			Title: fmt.Sprintf("Release these %s", view.Count(h.Removals, "deletion")),
			Why:   "Do this if the deletions are intended: clients lose these resources. The relay refuses if the hold has grown.", Command: "relay release " + name + " --hold " + h.ID + ` --reason "…"`,
		})
	}
	if u.Frozen != nil {
		list = append(list, Action{"Unfreeze " + u.Name, "The current resources of the upstream are served again. The guard checks the deletions.", "relay unfreeze " + name + ` --reason "…"`})
	} else {
		list = append(list, Action{"Freeze " + u.Name, "Its resources stay as they are served now, whatever the upstream does. A hold stays, too.", "relay freeze " + name + ` --reason "…"`})
	}
	if u.FirstSync != nil && u.FirstSync.Awaited {
		list = append(list, Action{"Serve without " + u.Name, "Clients wait for its first sync. This serves them without its resources.", "relay serve-without " + name})
	}
	return append(list, Action{"Roll back " + u.Name, "Its resources are served as they were at a revision of its history, and stay frozen.", "relay rollback " + name + ` --to REVISION --reason "…"`})
}
