package cliview

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"meshrelay/downstream"
)

// Clients returns clients as a table. now is for ages.
func Clients(clients []downstream.ClientStatus, now time.Time) string {
	if len(clients) == 0 {
		return "No clients are connected.\n"
	}
	return clientTable(clients, now).String()
}

// Client returns all about one client. now is for ages.
func Client(c downstream.ClientStatus, now time.Time) string {
	var p page
	p.WriteString(Clients([]downstream.ClientStatus{c}, now) + "\n")
	p.printf("Node:       %s\nConnection: %s\n", Clean(c.NodeID), Clean(c.Connection))
	if c.Listener != "" {
		p.printf("Listener:   %s\n", Clean(c.Listener))
	}
	p.WriteString("\n")
	t := titled("TYPE", "STATE", "SENT", "ACKNOWLEDGED", "RESPONSES", "BYTES", "NACKS")
	for _, w := range c.Types {
		t.add(w.TypeURL, typeState(w), Ago(w.SentAt, now), Ago(w.AckedAt, now), w.Pushes, w.Bytes, w.NACKs)
	}
	p.table(t)
	for _, w := range c.Types {
		if w.LastNACK != "" {
			p.printf("\nIt rejects %s: %s\n", Clean(w.TypeURL), Clean(strings.Join(strings.Fields(w.LastNACK), " ")))
		}
	}
	return p.String()
}

// MatchClients returns the clients whose name, node ID or connection is name.
func MatchClients(clients []downstream.ClientStatus, name string) (found []downstream.ClientStatus) {
	for _, c := range clients {
		if name == c.NodeID || name == c.Connection || name == clientName(c.NodeID) {
			found = append(found, c)
		}
	}
	return found
}

// ClientSynced returns nil when all clients of a name have what they asked for, and there is one; else
// why not.
func ClientSynced(clients []downstream.ClientStatus, name string) error {
	found := MatchClients(clients, name)
	if len(found) == 0 {
		return fmt.Errorf("no client %q is connected", name)
	}
	for _, c := range found {
		if !upToDate(c) {
			return fmt.Errorf("client %s: %s", clientName(c.NodeID), clientState(c))
		}
	}
	return nil
}

// clientName returns the pod and namespace of a node ID of Istio, "TYPE~IP~POD.NAMESPACE~DOMAIN",
// and other node IDs whole.
func clientName(nodeID string) string {
	if parts := strings.Split(nodeID, "~"); len(parts) == 4 {
		return cmp.Or(parts[2], nodeID)
	}
	return nodeID
}

// ClientVersion returns the version of a client. That in the node of a command is for istiods, and not its
// own.
func ClientVersion(c downstream.ClientStatus) string {
	if strings.HasPrefix(clientName(c.NodeID), downstream.ToolName+".") {
		return "relay get"
	}
	return c.IstioVersion
}

// upToDate reports whether a client has what it asked for, and has accepted it.
func upToDate(c downstream.ClientStatus) bool { return clientState(c) == synced }

const synced = "synced"

func typeState(w downstream.TypeStatus) string {
	switch {
	case w.LastNACK != "":
		return "rejected"
	case !w.Synced:
		return "behind"
	}
	return synced
}

func clientState(c downstream.ClientStatus) string {
	states := map[string]int{}
	for _, w := range c.Types {
		states[typeState(w)]++
	}
	switch {
	case c.Held:
		return "waiting for upstreams"
	case states["rejected"] > 0:
		return Count(states["rejected"], "type") + " rejected"
	case states["behind"] > 0:
		return Count(states["behind"], "type") + " behind"
	}
	return synced
}

func clientTable(clients []downstream.ClientStatus, now time.Time) *table {
	t := titled("CLIENT", "CLUSTER", "VIEW", "VERSION", "PROTOCOL", "TYPES", "STATE", "NACKS", "CONNECTED", "ADDRESS")
	for _, c := range clients {
		t.add(clientName(c.NodeID), c.ClusterID, c.View, ClientVersion(c), c.Protocol, len(c.Types), clientState(c), NACKs(c), Ago(c.Connected, now), c.Address)
	}
	return t
}

// ClientRows returns a table of clients whose first columns matter most. now is for ages.
func ClientRows(clients []downstream.ClientStatus, now time.Time) string {
	t := titled("CLIENT", "STATE", "BYTES", "NACKS", "VIEW", "CLUSTER", "TYPES", "CONNECTED", "PROTOCOL", "VERSION")
	for _, c := range clients {
		t.add(clientName(c.NodeID), clientState(c), Bytes(int64(SentBytes(c))), NACKs(c), c.View, c.ClusterID, len(c.Types), Ago(c.Connected, now), c.Protocol, ClientVersion(c))
	}
	return t.String()
}

// SentBytes returns the size of all responses to a client.
func SentBytes(c downstream.ClientStatus) (n uint64) {
	for _, t := range c.Types {
		n += t.Bytes
	}
	return n
}

// NACKs returns how many responses a client has rejected.
func NACKs(c downstream.ClientStatus) (n uint64) {
	for _, t := range c.Types {
		n += t.NACKs
	}
	return n
}

// Trouble returns how much a client needs a look: 0 for not at all.
func Trouble(c downstream.ClientStatus) (most int) {
	for _, w := range c.Types {
		switch typeState(w) {
		case "rejected":
			most = max(most, 3)
		case "behind":
			most = max(most, 2)
		}
	}
	if c.Held {
		most = max(most, 1)
	}
	return most
}
