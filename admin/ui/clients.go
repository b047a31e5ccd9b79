package ui

import (
	"fmt"
	"slices"
	"strings"

	"meshrelay/downstream"
	"meshrelay/internal/cliview"
)

// clientList lists the connected clients, a page at a time.
func (p *Pages) clientList(r *request) (*Page, error) {
	all := p.data.Clients.Clients()
	q, n, behind := r.get("q"), 0, 0
	t := &Table{
		Caption: "Clients", Empty: "No connected client matches.",
		Head: []string{"Client", "State", "Cluster", "View", "Version", "Protocol", "Types", "Rejected", "Connected", "Address"},
	}
	for _, c := range all {
		state, ok := cliview.ClientState(c)
		if !ok {
			behind++
		}
		matches := contains(c.NodeID, q) || contains(c.ClusterID, q) || contains(c.View, q) || contains(c.Address, q)
		if !matches || r.get("state") == notWell && ok {
			continue
		}
		if n++; n <= r.offset() || n > r.offset()+maxRows {
			continue
		}
		nacks := uint64(0)
		for _, w := range c.Types {
			nacks += w.NACKs
		}
		t.Rows = append(t.Rows, []Cell{
			linked(cliview.ClientName(c.NodeID), "/client?id="+queryOf(c.Connection)), leveled(goodIf(ok, Warn), state), cell(c.ClusterID), cell(c.View), cell(cliview.ClientVersion(c)),
			cell(c.Protocol), number(len(c.Types)), number(nacks), at(c.Connected), cell(c.Address),
		})
	}
	t.Summary = fmt.Sprintf("%d of %s", n, count(len(all), "client"))
	if n > r.offset()+maxRows {
		t.Next = r.with("from", fmt.Sprint(r.offset()+maxRows))
	}
	lead := State{Level: goodIf(behind == 0, Warn), Text: fmt.Sprintf("%d of %s up to date", len(all)-behind, count(len(all), "client"))}
	if len(all) == 0 {
		lead = say(None, "No clients are connected.")
	}
	return &Page{
		Title: "Clients", Command: "relay clients", Topics: []string{topicClients}, Lead: lead,
		Sections: []Section{{ID: "list", Search: r.search("/clients", stateField(r)), Table: t}},
	}, nil
}

// clientPage answers: what did this client get?
func (p *Pages) clientPage(r *request) (*Page, error) {
	all := p.data.Clients.Clients()
	i := slices.IndexFunc(all, func(c downstream.ClientStatus) bool { return c.Connection == r.get("id") })
	if i < 0 {
		return nil, notFound("No client has the connection %.200q: it may have connected anew.", r.get("id"))
	}
	c := all[i]
	state, ok := cliview.ClientState(c)
	page := &Page{
		Title: "Client " + cut(cliview.ClientName(c.NodeID)), Crumbs: []Link{{"Clients", "/clients"}}, Command: "relay clients " + word(cliview.ClientName(c.NodeID)), Topics: []string{topicClients},
		Lead: say(goodIf(ok, Warn), fmt.Sprintf("%s: %s of resources, connected for %s", state, count(len(c.Types), "type"), cliview.Ago(c.Connected, r.now))),
	}
	facts := []Fact{
		{"Node", cell(c.NodeID)}, {"Connection", cell(c.Connection)}, {"Cluster", cell(c.ClusterID)}, {"Namespace", cell(c.Namespace)},
		{"View", cell(c.View)}, {"Istio version", cell(c.IstioVersion)}, {"Revision", cell(c.Revision)}, {"Protocol", cell(c.Protocol)},
		{"Address", cell(c.Address)}, {"Listener", cell(c.Listener)}, {"Connected", at(c.Connected)},
	}
	var rejections []State
	for _, w := range c.Types {
		if w.LastNACK != "" && len(rejections) < maxReasons {
			rejections = append(rejections, say(Bad, "It rejects "+w.TypeURL+": "+strings.Join(strings.Fields(w.LastNACK), " ")))
		}
	}
	page.Sections = []Section{
		{ID: "node", Title: "What it tells of itself", Text: rejections, Facts: facts},
		{ID: "types", Title: "What it got", Table: typeTable(c)},
	}
	return page, nil
}

// typeTable lists what a client has been sent, the types that need a look first.
func typeTable(c downstream.ClientStatus) *Table {
	t := &Table{Caption: "Types that the client subscribes to", Head: []string{"Type", "State", "Sent", "Acknowledged", "Responses", "Bytes", "Rejected", "Version sent"}, Empty: "It has subscribed to nothing yet."}
	types := slices.Clone(c.Types)
	slices.SortStableFunc(types, func(a, b downstream.TypeStatus) int {
		_, aOK := cliview.TypeState(a)
		_, bOK := cliview.TypeState(b)
		switch {
		case aOK == bOK:
			return 0
		case bOK:
			return -1
		}
		return 1
	})
	for _, w := range types[:min(len(types), maxRows)] {
		state, ok := cliview.TypeState(w)
		t.Rows = append(t.Rows, []Cell{
			linked(w.TypeURL, "/resources?kind="+queryOf(kindOfType(w.TypeURL))), leveled(goodIf(ok, Warn), state), at(w.SentAt), at(w.AckedAt),
			number(w.Pushes), number(w.Bytes), number(w.NACKs), cell(w.SentVersion[:min(len(w.SentVersion), 16)]),
		})
	}
	if len(types) > maxRows {
		t.Summary = fmt.Sprintf("the first %d of %d types", maxRows, len(types))
	}
	return t
}

// kindOfType returns "group/Kind" of a type URL "group/version/Kind".
func kindOfType(typeURL string) string {
	parts := strings.Split(typeURL, "/")
	if len(parts) != 3 {
		return typeURL
	}
	return parts[0] + "/" + parts[2]
}
