package downstream

import (
	"slices"
	"strings"
	"time"

	"meshrelay/downstream/subscription"
)

// ClientStatus is a snapshot of one connected client, as operators see it.
type ClientStatus struct {
	// Connection is unique within the process: "<node id>-<number>".
	Connection string `json:"connection"`
	// NodeID and the fields after it are what the client tells of itself.
	NodeID       string `json:"nodeID"`
	ClusterID    string `json:"clusterID,omitempty"`
	Namespace    string `json:"namespace,omitempty"`
	IstioVersion string `json:"istioVersion,omitempty"`
	Revision     string `json:"revision,omitempty"`
	// View is the name of the client's view, empty when views are not configured.
	View string `json:"view,omitempty"`
	// Address is the client's remote address; Listener the address it connected to.
	Address  string `json:"address"`
	Listener string `json:"listener,omitempty"`
	// Protocol is "sotw" or "delta".
	Protocol string `json:"protocol"`
	// Connected is when the stream was opened. A client with several streams is listed once for each.
	Connected time.Time `json:"connected"`
	// Held tells that the client waits for the sources to sync (PROTOCOL S4).
	Held  bool         `json:"held,omitempty"`
	Types []TypeStatus `json:"types"`
}

// TypeStatus is what a client has been sent of one type.
type TypeStatus = subscription.Status

// HeldClusters returns the clusters that held clients claim to be in.
func (s *Server) HeldClusters() (clusters []string) {
	for _, c := range s.Clients() {
		if c.Held && c.ClusterID != "" && !slices.Contains(clusters, c.ClusterID) {
			clusters = append(clusters, c.ClusterID)
		}
	}
	return clusters
}

// Clients returns the status of every connected client, by connection.
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
