package intake

import (
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
)

// Assignments is what is known of the endpoints of clusters.
type Assignments interface {
	// Known returns the endpoints of a cluster, nil when none were ever told.
	Known(cluster string) *endpointv3.ClusterLoadAssignment
	// Settled reports whether nothing more is waited for.
	Settled(cluster string) bool
}

// Endpoints is the event that other endpoints of some clusters are known. The services that
// have one of the clusters are imported anew.
type Endpoints struct {
	// From has the endpoints, from now on.
	From Assignments
	// Clusters are those that have changed.
	Clusters []string
}
