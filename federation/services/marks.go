package services

import (
	"google.golang.org/protobuf/encoding/protowire"

	"meshrelay/federation"
	"meshrelay/mirror"
)

// comparison tells what changes of a kind mark. Without body, each change marks the whole.
type comparison struct {
	whole          Marks // of a resource that comes or goes
	body, metadata message
}

// message tells what differences in the fields of a message mark, by the numbers of the fields. The messages
// in inner fields are compared one by one, unless their number differs.
type message struct {
	marks []Marks
	inner map[protowire.Number]message
}

const (
	reached  = MarkCluster | MarkEndpoints
	ruled    = MarkRoute | reached
	served   = MarkListener | ruled
	marksAll = served | MarkVisibility
)

// comparisons has the kinds that mean something to the services that clients reach, with the numbers of fields in
// istio.io/api. Policies of servers, such as AuthorizationPolicy, are not among them. In the metadata, 4 are the labels
// and 2 is the time of creation, which decides between several entries of a host. Compare adds endpoints and annotations.
var comparisons = map[mirror.Kind]comparison{
	federation.ServiceEntry: {
		whole: marksAll,
		body: message{
			marks: []Marks{
				1: marksAll, MarkListener | MarkRoute, served, // hosts, addresses, ports
				4: MarkCluster, reached, // location, resolution
				7: MarkVisibility, MarkCluster, MarkEndpoints, // exportTo, subjectAltNames, workloadSelector
			},
			inner: map[protowire.Number]message{3: {marks: []Marks{1: served, served, served, MarkEndpoints}}}, // 4 is targetPort
		},
		metadata: message{marks: []Marks{2: MarkVisibility, 4: MarkListener | reached}},
	},
	federation.WorkloadEntry: {
		whole:    MarkEndpoints,
		body:     message{marks: []Marks{1: MarkEndpoints, MarkEndpoints, MarkEndpoints, MarkEndpoints, MarkEndpoints, MarkEndpoints, reached}}, // 7 is serviceAccount
		metadata: message{marks: []Marks{4: MarkEndpoints}},
	},
	federation.DestinationRule: {
		whole: ruled,
		body: message{
			marks: []Marks{1: ruled, ruled, ruled, MarkVisibility, MarkVisibility}, // host, trafficPolicy, subsets, exportTo, workloadSelector
			inner: map[protowire.Number]message{2: policy, 3: {
				marks: []Marks{1: reached, MarkEndpoints, ruled}, // name, labels, trafficPolicy
				inner: map[protowire.Number]message{3: policy},
			}},
		},
	},
	federation.VirtualService: {
		whole: MarkRoute,
		body:  message{marks: []Marks{1: MarkRoute, MarkRoute, MarkRoute, MarkListener | MarkRoute, MarkListener | MarkRoute, MarkVisibility}}, // 4 and 5 are tcp and tls, 6 is exportTo
	},
	{Group: federation.ServiceEntry.Group, Kind: "Sidecar"}: {whole: MarkVisibility},
	mirror.MeshConfig: {whole: marksAll},
}

// policy is a TrafficPolicy. Its field 3 is outlierDetection, without which there is no failover, 5 portLevelSettings. Of
// loadBalancer, 2 is consistentHash, and 3 and 6 are about localities.
var policy = message{
	marks: []Marks{1: ruled, MarkCluster, reached, MarkCluster, ruled, MarkCluster, MarkCluster, MarkCluster},
	inner: map[protowire.Number]message{1: {marks: []Marks{1: MarkCluster, MarkRoute | MarkCluster, reached, MarkCluster, MarkCluster, reached, MarkCluster}}},
}
