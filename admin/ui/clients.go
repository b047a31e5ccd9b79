package ui

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"meshrelay/admin/view"
	"meshrelay/downstream"
	"meshrelay/mirror"
)

var clientColumns = view.Clients.Pick("Client", "State", "Cluster", "View", "Version", "Protocol", "Types", "NACKs", "Connected", "Address")

func clientHref(connection string) string { return "/client?id=" + queryOf(connection) }

// clientList lists the connected clients, a page at a time.
func (p *Pages) clientList(r *request) (*Page, error) {
	all, q := p.data.Clients.Clients(), r.get("q")
	t := &Table{Caption: "Clients", Empty: "No connected client matches.", Head: headOf(clientColumns)}
	n := paged(t, r, all, func(c downstream.ClientStatus) bool {
		return (contains(c.NodeID, q) || contains(c.ClusterID, q) || contains(c.View, q) || contains(c.Address, q)) &&
			(r.get("state") != notWell || !view.IsSynced(c))
	}, func(c downstream.ClientStatus) []Cell {
		return rowOf(clientColumns, c, r.now, clientHref(c.Connection))
	})
	t.Summary = fmt.Sprintf("%d of %s", n, view.Count(len(all), "client"))
	synced := countIf(all, view.IsSynced)
	lead := State{Level: view.OKIf(synced == len(all), view.Warn), Text: fmt.Sprintf("%d of %s up to date", synced, view.Count(len(all), "client"))}
	if len(all) == 0 {
		lead = say(view.None, "No clients are connected.")
	}
	return &Page{
		Title: "Clients", Command: "relay clients", Topics: []string{topicClients}, Lead: lead,
		Sections: []Section{{ID: "list", Search: r.search("/clients", stateField(r)), Table: t}},
	}, nil
}

// clientPage shows one client and its types.
func (p *Pages) clientPage(r *request) (*Page, error) {
	all := p.data.Clients.Clients()
	i := slices.IndexFunc(all, func(c downstream.ClientStatus) bool { return c.Connection == r.get("id") })
	if i < 0 {
		return nil, notFound("No client has the connection %.200q: it may have connected again.", r.get("id"))
	}
	c := all[i]
	name := view.ClientName(c.NodeID)
	state, level := view.ClientState(c)
	page := &Page{
		Title: "Client " + cut(name), Crumbs: []Link{{"Clients", "/clients"}}, Command: "relay clients " + word(name), Topics: []string{topicClients},
		Lead: say(level, fmt.Sprintf("%s: %s of resources, connected for %s", state, view.Count(len(c.Types), "type"), view.Ago(c.Connected, r.now))),
	}
	facts := []Fact{
		{"Node", cell(c.NodeID)}, {"Connection", cell(c.Connection)}, {"Cluster", cell(c.ClusterID)}, {"Namespace", cell(c.Namespace)},
		{"View", cell(c.View)}, {"Istio version", cell(c.IstioVersion)}, {"Revision", cell(c.Revision)}, {"Protocol", cell(c.Protocol)},
		{"Address", cell(c.Address)}, {"Listener", cell(c.Listener)}, {"Connected", at(c.Connected)},
	}
	if c.Identity != "" {
		facts = append(facts, Fact{"Identity", cell(c.Identity)})
	}
	var rejections []State
	for _, w := range c.Types {
		if w.LastNACK != "" && len(rejections) < maxReasons {
			rejections = append(rejections, say(view.Bad, "It rejects "+w.TypeURL+": "+strings.Join(strings.Fields(w.LastNACK), " ")))
		}
	}
	page.Sections = []Section{
		{ID: "node", Title: "Client", Text: rejections, Facts: facts},
		{ID: "types", Title: "Types", Table: typeTable(c, r.now)},
	}
	return page, nil
}

// typeTable lists the types of a client. Types that are not synced come first.
func typeTable(c downstream.ClientStatus, now time.Time) *Table {
	types := falseFirst(c.Types, func(w downstream.TypeStatus) bool {
		_, level := view.TypeState(w)
		return level == view.OK
	})
	t := tableOf("Types that the client subscribes to", "It subscribes to nothing yet.", view.ClientTypes, types, maxRows, now,
		func(w downstream.TypeStatus) string {
			kind, _, err := mirror.ParseTypeURL(w.TypeURL)
			if err != nil {
				return ""
			}
			return "/resources?kind=" + queryOf(kind.String())
		})
	if len(types) > maxRows {
		t.Summary = fmt.Sprintf("the first %d of %d types", maxRows, len(types))
	}
	return t
}
