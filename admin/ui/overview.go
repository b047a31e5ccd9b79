package ui

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"meshrelay/admin"
	"meshrelay/admin/view"
	"meshrelay/downstream"
	"meshrelay/events"
	"meshrelay/upstreams"
)

const (
	maxReasons = 10
	// maxSummary is the most upstreams on the overview.
	maxSummary = 20
)

// overview shows whether everything is synced.
func (p *Pages) overview(r *request) (*Page, error) {
	ready, ups, clients := r.ready, r.ups, p.data.Clients.Clients()
	synced := countIf(clients, view.IsSynced)
	lead := r.head
	lead.Text = fmt.Sprintf("%s: %d of %s up to date, %d of %s up to date", lead.Text, countIf(ups, view.IsHealthy), view.Count(len(ups), "upstream"), synced, view.Count(len(clients), "client"))
	if synced < len(clients) && lead.Level == view.OK {
		lead.Level = view.Warn
	}
	keys, hosts := p.data.Conflicts()
	served := p.served()
	return &Page{
		Title: "Overview", Lead: lead, Command: "relay status", Topics: []string{topicUpstreams, topicClients, topicResources, topicConfig, topicEvents},
		Sections: []Section{
			{ID: "reasons", Title: "Problems", Text: p.reasons(ready, ups)},
			{
				ID: "graph", Title: "From upstreams to clients", Graph: drawGraph(ups, clients, served, keys, r),
				Text: []State{
					{Level: view.OKIf(keys == 0, view.None), Text: fmt.Sprintf("%s in several upstreams", view.Count(keys, "resource")), Href: "/conflicts"},
					{Level: view.OKIf(hosts == 0, view.None), Text: fmt.Sprintf("%s claimed by several resources", view.Count(hosts, "host")), Href: "/conflicts#hosts"},
				},
			},
			{ID: "upstreams", Title: "Upstreams", Table: upstreamSummary(ups, r)},
			{ID: "clients", Title: "Clients", Table: clientSummary(clients)},
			{ID: "last", Title: "Last events", Table: p.lastEvents()},
		},
	}, nil
}

// reasons lists the holds, the problems and the notes.
func (p *Pages) reasons(ready admin.Readiness, ups []upstreams.Status) (list []State) {
	level := view.Warn
	if !ready.Ready {
		level = view.Bad
	}
	for _, u := range ups {
		if u.Held != nil && len(list) < maxReasons {
			list = append(list, State{
				Level: view.Warn, Href: upstreamHref(u.Name) + "#hold",
				Text: fmt.Sprintf("%s of upstream %s %s for a decision: see the hold", view.Count(u.Held.Removals, "deletion"), u.Name, view.Agree(u.Held.Removals, "waits", "wait")),
			})
		}
	}
	for i, reason := range ready.Reasons {
		if i == maxReasons {
			list = append(list, say(level, fmt.Sprintf("and %d more: %s", len(ready.Reasons)-i, p.here("relay status"))))
			break
		}
		s := say(level, reason)
		if name, _, ok := strings.Cut(strings.TrimPrefix(reason, "upstream "), ": "); ok && strings.HasPrefix(reason, "upstream ") {
			s.Href = upstreamHref(name)
		} else if at, ok := strings.CutPrefix(reason, "at "); ok {
			s.Href = upstreamHref(at[:strings.IndexAny(at+":", ",:")])
		}
		list = append(list, s)
	}
	for _, note := range ready.Notes[:min(len(ready.Notes), maxReasons)] {
		list = append(list, say(view.None, "note: "+note))
	}
	if len(list) == 0 {
		list = []State{say(view.OK, "None.")}
	}
	return list
}

// upstreamSummary lists all upstreams if they are few, and otherwise those with problems.
func upstreamSummary(ups []upstreams.Status, r *request) *Table {
	shown := ups
	if len(ups) > maxSummary {
		shown = slices.DeleteFunc(slices.Clone(ups), view.IsHealthy)
	}
	t := upstreamTable(shown[:min(len(shown), maxSummary)], r)
	if len(t.Rows) < len(ups) {
		t.Summary, t.Next = fmt.Sprintf("%d of %s, those with problems first", len(t.Rows), view.Count(len(ups), "upstream")), "/upstreams"
	}
	return t
}

// group has the clients of one view or, without a view, of one cluster.
type group struct {
	name      string
	n, behind int
}

// groups counts clients by view or cluster. Groups with clients that are behind come first.
func groups(clients []downstream.ClientStatus) []*group {
	byName := map[string]*group{}
	for _, c := range clients {
		name := cmp.Or(c.View, c.ClusterID, "no cluster")
		if c.View != "" {
			name = "view " + name
		}
		g := byName[name]
		if g == nil {
			g = &group{name: name}
			byName[name] = g
		}
		g.n++
		if !view.IsSynced(c) {
			g.behind++
		}
	}
	return slices.SortedFunc(maps.Values(byName), func(a, b *group) int { return cmp.Or(cmp.Compare(b.behind, a.behind), cmp.Compare(a.name, b.name)) })
}

func clientSummary(clients []downstream.ClientStatus) *Table {
	t := &Table{Caption: "Clients by view, or by cluster if they have no view", Head: []string{"View or cluster", "Clients", "Not up to date"}, Empty: "No clients are connected."}
	all := groups(clients)
	for _, g := range all[:min(len(all), maxSummary)] {
		t.Rows = append(t.Rows, []Cell{
			{view.Cell{Text: cut(g.name), Level: view.OKIf(g.behind == 0, view.Warn)}, "/clients?q=" + queryOf(strings.TrimPrefix(g.name, "view "))}, number(g.n), number(g.behind),
		})
	}
	t.Summary, t.Next = view.Count(len(clients), "client"), ""
	if len(all) > maxSummary {
		t.Summary += fmt.Sprintf(" in %d more groups", len(all)-maxSummary)
	}
	return t
}

func (p *Pages) lastEvents() *Table {
	t := eventTable(p.data.Events(events.Query{Limit: maxLast, Filter: events.Filter{NoTools: true}}).Events)
	t.Next = "/events"
	return t
}
