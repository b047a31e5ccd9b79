package cliview

import (
	"fmt"
	"time"

	"meshrelay/admin/view"
	"meshrelay/downstream"
)

// clientColumns are the columns of a list of clients.
var clientColumns = view.Clients.Pick("Client", "Cluster", "View", "Version", "Protocol", "Types", "State", "NACKs", "Connected", "Address")

// Clients returns clients as a table. Ages are relative to now.
func Clients(clients []downstream.ClientStatus, now time.Time) string {
	return listed("No clients are connected.\n", clientColumns, clients, now)
}

// Client describes one client in full. Ages are relative to now.
func Client(c downstream.ClientStatus, now time.Time) string {
	var p page
	p.WriteString(Clients([]downstream.ClientStatus{c}, now) + "\n")
	p.printf("Node:       %s\nConnection: %s\n", c.NodeID, c.Connection)
	if c.Listener != "" {
		p.printf("Listener:   %s\n", c.Listener)
	}
	if c.Identity != "" {
		p.printf("Identity:   %s\n", c.Identity)
	}
	p.WriteString("\n")
	p.table(tableOf(view.ClientTypes, c.Types, now))
	for _, w := range c.Types {
		if w.LastNACK != "" {
			p.printf("\nIt rejects %s: %s\n", w.TypeURL, view.OneLine(w.LastNACK))
		}
	}
	return p.String()
}

// MatchClients returns the clients whose name, node ID or connection is name.
func MatchClients(clients []downstream.ClientStatus, name string) (found []downstream.ClientStatus) {
	for _, c := range clients {
		if name == c.NodeID || name == c.Connection || name == view.ClientName(c.NodeID) {
			found = append(found, c)
		}
	}
	return found
}

// ClientSynced returns nil if at least one client called name is connected and all of them are synced. Otherwise
// it returns the reason.
func ClientSynced(clients []downstream.ClientStatus, name string) error {
	found := MatchClients(clients, name)
	if len(found) == 0 {
		return fmt.Errorf("no client %q is connected", name)
	}
	for _, c := range found {
		if state, level := view.ClientState(c); level != view.OK {
			return fmt.Errorf("client %s: %s", view.ClientName(c.NodeID), state)
		}
	}
	return nil
}
