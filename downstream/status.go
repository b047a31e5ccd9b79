package downstream

import (
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"meshrelay/downstream/subscription"
)

// ClientStatus is a snapshot of one connected client, as operators see it.
type ClientStatus struct {
	// Connection is unique within the process: "<node id>-<number>".
	Connection string `json:"connection"`
	// NodeID, ClusterID, Namespace, IstioVersion and Revision come from the client's node message.
	NodeID       string `json:"nodeID"`
	ClusterID    string `json:"clusterID,omitempty"`
	Namespace    string `json:"namespace,omitempty"`
	IstioVersion string `json:"istioVersion,omitempty"`
	Revision     string `json:"revision,omitempty"`
	// View is the name of the client's view, empty when views are not configured.
	View string `json:"view,omitempty"`
	// Identity is the first identity that the client has proven, empty if it has proven none.
	Identity string `json:"identity,omitempty"`
	// Address is the client's address, Listener the address to which it connected.
	Address  string `json:"address"`
	Listener string `json:"listener,omitempty"`
	// Protocol is "sotw" or "delta".
	Protocol string `json:"protocol"`
	// Connected is when the stream was opened. Each stream of a client is listed.
	Connected time.Time `json:"connected"`
	// Held is set while the client waits for the first sync of the upstreams (PROTOCOL S4).
	Held  bool         `json:"held,omitempty"`
	Types []TypeStatus `json:"types"`
}

// TypeStatus is the state of a client's subscription to one type.
type TypeStatus = subscription.Status

// HeldClusters returns the clusters that the held clients claim.
func (s *Server) HeldClusters() (clusters []string) {
	for _, c := range s.Clients() {
		if c.Held && c.ClusterID != "" && !slices.Contains(clusters, c.ClusterID) {
			clusters = append(clusters, c.ClusterID)
		}
	}
	return clusters
}

// Clients returns the status of every connected client, sorted by connection.
func (s *Server) Clients() []ClientStatus {
	conns := s.connections()
	out := make([]ClientStatus, 0, len(conns))
	for _, c := range conns {
		if st, ok := c.clientStatus(); ok {
			st.Held = !s.HasReleased()
			out = append(out, st)
		}
	}
	slices.SortFunc(out, func(a, b ClientStatus) int { return strings.Compare(a.Connection, b.Connection) })
	return out
}

// Synced counts the connected clients, and those that have acknowledged everything. Commands of the relay do not
// count.
func (s *Server) Synced() (clients, synced int) {
	released := s.HasReleased()
	for _, c := range s.connections() {
		c.mu.Lock()
		if c.view != nil && !isTool(c.client.NodeID) {
			clients++
			if released && c.subs.AwaitedSince().IsZero() {
				synced++
			}
		}
		c.mu.Unlock()
	}
	return clients, synced
}

// behindAfter is how long a client may owe an ACK before it counts as behind.
const behindAfter = 30 * time.Second

// behindMetric returns the metric of the clients that are behind.
func behindMetric(s *Server) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "relay_downstream_clients_behind",
		Help: "Connected clients that have owed an ACK for more than 30 s, and so have not what is served. Commands of the relay do not count.",
	}, func() float64 { return float64(s.behind(time.Now())) })
}

// behind counts the clients that are behind.
func (s *Server) behind(now time.Time) (n int) {
	for _, c := range s.connections() {
		if c.behind(now) {
			n++
		}
	}
	return n
}

// behind reports whether the client owes an ACK for longer than behindAfter. A client that has rejected a
// response owes an ACK, too.
func (c *conn) behind(now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	since := c.subs.AwaitedSince()
	return !since.IsZero() && now.Sub(since) > behindAfter && !isTool(c.client.NodeID)
}
