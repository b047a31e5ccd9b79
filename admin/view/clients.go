package view

import (
	"cmp"
	"strings"
	"time"

	"meshrelay/downstream"
	"meshrelay/downstream/subscription"
	"meshrelay/sink"
)

// Clients are the columns of a table of clients.
var Clients = Columns[downstream.ClientStatus]{
	text("Client", func(c downstream.ClientStatus) string { return ClientName(c.NodeID) }),
	level("State", func(c downstream.ClientStatus, _ time.Time) (string, Level) { return ClientState(c) }),
	text("Bytes", func(c downstream.ClientStatus) string { return Bytes(int64(SentBytes(c))) }),
	number("NACKs", NACKs),
	text("View", func(c downstream.ClientStatus) string { return c.View }),
	text("Cluster", func(c downstream.ClientStatus) string { return c.ClusterID }),
	number("Types", func(c downstream.ClientStatus) int { return len(c.Types) }),
	age("Connected", func(c downstream.ClientStatus) time.Time { return c.Connected }),
	text("Protocol", func(c downstream.ClientStatus) string { return c.Protocol }),
	text("Version", ClientVersion),
	text("Address", func(c downstream.ClientStatus) string { return c.Address }),
}

// ClientTypes are the columns of a table of the types of one client.
var ClientTypes = Columns[downstream.TypeStatus]{
	text("Type", func(w downstream.TypeStatus) string { return w.TypeURL }),
	level("State", func(w downstream.TypeStatus, _ time.Time) (string, Level) { return TypeState(w) }),
	age("Sent", func(w downstream.TypeStatus) time.Time { return w.SentAt }),
	age("Acknowledged", func(w downstream.TypeStatus) time.Time { return w.AckedAt }),
	number("Responses", func(w downstream.TypeStatus) uint64 { return w.Pushes }),
	number("Bytes", func(w downstream.TypeStatus) uint64 { return w.Bytes }),
	number("NACKs", func(w downstream.TypeStatus) uint64 { return w.NACKs }),
}

// Receipts are the columns of a table of the clients of one resource.
var Receipts = Columns[downstream.Receipt]{
	text("Client", func(c downstream.Receipt) string { return ClientName(c.NodeID) }),
	level("State", func(c downstream.Receipt, _ time.Time) (string, Level) {
		return string(c.State), OKIf(HasReceived(c), Warn)
	}),
	age("Since", func(c downstream.Receipt) time.Time { return c.At }),
	text("View", func(c downstream.Receipt) string { return c.View }),
	text("Type", func(c downstream.Receipt) string { return c.TypeURL }),
}

// SinkCopies are the columns of a table of what sinks have written of one resource.
var SinkCopies = Columns[sink.Applied]{
	text("Sink", func(s sink.Applied) string { return s.Sink }),
	text("State", func(s sink.Applied) string { return s.State }),
	text("Reason", func(s sink.Applied) string { return s.Reason }),
}

// ClientName returns "pod.namespace" of an Istio node ID, "TYPE~IP~POD.NAMESPACE~DOMAIN". It returns other
// node IDs unchanged.
func ClientName(nodeID string) string {
	if parts := strings.Split(nodeID, "~"); len(parts) == 4 {
		return cmp.Or(parts[2], nodeID)
	}
	return nodeID
}

// ClientVersion returns the Istio version of a client. For a command of the relay it returns "relay get":
// istiods require a version, so the command sends the version of an istiod.
func ClientVersion(c downstream.ClientStatus) string {
	if strings.HasPrefix(ClientName(c.NodeID), downstream.ToolName+".") {
		return "relay get"
	}
	return c.IstioVersion
}

// The states of a client and of its types. A number of types stands before "rejected" and "behind".
const (
	clientSynced   = "synced"
	clientBehind   = "behind"
	clientRejected = "rejected"
	clientWaits    = "waiting for upstreams"
)

// TypeState returns the state of one type of a client.
func TypeState(w downstream.TypeStatus) (string, Level) {
	switch {
	case w.LastNACK != "":
		return clientRejected, Bad
	case !w.Synced:
		return clientBehind, Warn
	}
	return clientSynced, OK
}

// ClientState returns the state of a client. The level is OK when it has acknowledged everything.
func ClientState(c downstream.ClientStatus) (string, Level) {
	levels := map[Level]int{}
	for _, w := range c.Types {
		_, level := TypeState(w)
		levels[level]++
	}
	switch {
	case c.Held:
		return clientWaits, Warn
	case levels[Bad] > 0:
		return Count(levels[Bad], "type") + " " + clientRejected, Bad
	case levels[Warn] > 0:
		return Count(levels[Warn], "type") + " " + clientBehind, Warn
	}
	return clientSynced, OK
}

// IsSynced reports whether a client has acknowledged everything.
func IsSynced(c downstream.ClientStatus) bool {
	_, level := ClientState(c)
	return level == OK
}

// HasReceived reports whether a client has acknowledged a resource.
func HasReceived(c downstream.Receipt) bool { return c.State == subscription.Acknowledged }

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
