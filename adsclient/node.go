package adsclient

import (
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/types/known/structpb"
)

// istioVersion is the version that the relay presents itself with: the newest whose
// behaviour towards MCP clients it was built for.
const istioVersion = "1.32.0"

// NodeConfig is what a node tells of the client.
type NodeConfig struct {
	// Name and Namespace are of the client's pod, or stand for it.
	Name, Namespace string
	// IP is the client's own address.
	IP string
	// ClusterID is the cluster that the client speaks for.
	ClusterID string
	// OwnClusterID is the cluster that the client itself is in, empty when it is in none.
	// Other relays leave out what came from there.
	OwnClusterID string
	// Revision is the control plane revision of the client; may be empty.
	Revision string
	// Network is, for EndpointsNode, the network of those who will use the endpoints; may
	// be empty.
	Network string
}

// Node returns a node as istiod expects one of a client of its api generator
// (PROTOCOL C2, C3, C12).
func Node(c NodeConfig) *corev3.Node {
	fields := map[string]*structpb.Value{
		"GENERATOR":     structpb.NewStringValue("api"),
		"NAMESPACE":     structpb.NewStringValue(c.Namespace),
		"CLUSTER_ID":    structpb.NewStringValue(c.ClusterID),
		"ISTIO_VERSION": structpb.NewStringValue(istioVersion),
		// An istiod is told, as CLUSTER_ID, the cluster that it is itself in; to a relay that
		// would say that the client is there.
		"RELAY_CLUSTER_ID": structpb.NewStringValue(c.OwnClusterID),
	}
	if c.Revision != "" {
		fields["ISTIO_REVISION"] = structpb.NewStringValue(c.Revision)
	}
	// A sidecar would be left out of pushes that do not concern its namespace, a
	// waypoint is left out of none.
	id := strings.Join([]string{"waypoint", c.IP, c.Name + "." + c.Namespace, c.Namespace + ".svc.cluster.local"}, "~")
	return &corev3.Node{Id: id, Metadata: &structpb.Struct{Fields: fields}}
}

// EndpointsNode returns a node as an istiod expects one of a client that asks for the
// endpoints of all services, to hand them to the proxies of other clusters. Paths are in
// istio/istio at 1.23-dev, unless another version is named.
//
// The type is waypoint, for nothing else sees all endpoints as a sidecar in another cluster
// would:
//   - A sidecar sees what the Sidecar of its namespace, or of the root namespace, lets it
//     see (pilot/pkg/model/push_context.go getSidecarScope): where a mesh narrows that by
//     default, the answer is empty.
//   - A router gets no pushes of services that no Gateway leads to, where
//     PILOT_FILTER_GATEWAY_CLUSTER_CONFIG is on (pilot/pkg/xds/proxy_dependencies.go), and
//     at 1.32-dev is led to the waypoints of services that want that of ingresses
//     (pilot/pkg/xds/endpoints/endpoint_builder.go findServiceWaypoint).
//   - A waypoint is left out of no push. It does not see services that are not exported to
//     its namespace; a client of the api generator in the same namespace gets no
//     ServiceEntries of those either (pilot/pkg/networking/apigen/apigen.go).
//
// One case is not for it: with AMBIENT_ENABLE_MULTI_NETWORK (off by default) an istiod tells
// all but sidecars of other networks' gateways by internal addresses, of no use elsewhere
// (endpoints/ep_filters.go at 1.32-dev).
//
// GENERATOR is not sent. With "api" or without, EDS comes from the generator of endpoints
// (pilot/pkg/xds/xdsgen.go findGenerator, pilot/pkg/bootstrap/discovery.go), and without,
// nothing depends on being let near the api generator (PROTOCOL C20).
//
// NETWORK makes the istiod answer with what is reachable from there: its gateways in place
// of endpoints of other networks (endpoints/ep_filters.go EndpointsByNetworkFilter).
// CLUSTER_ID is for the cluster of those who will use the endpoints: endpoints of services
// that are local to another cluster, or not exported by it, are left out
// (endpoint_builder.go filterIstioEndpoint). DISABLE_HBONE_SEND asks for addresses of
// workloads in an ambient mesh, not for internal addresses of a tunnel
// (endpoint_builder.go buildEnvoyLbEndpoint). No locality is sent: priorities are for the
// consumers' own istiods to settle.
func EndpointsNode(c NodeConfig) *corev3.Node {
	n := Node(c)
	delete(n.Metadata.Fields, "GENERATOR")
	delete(n.Metadata.Fields, "RELAY_CLUSTER_ID")
	n.Metadata.Fields["DISABLE_HBONE_SEND"] = structpb.NewStringValue("true")
	if c.ClusterID == "" {
		delete(n.Metadata.Fields, "CLUSTER_ID")
	}
	if c.Network != "" {
		n.Metadata.Fields["NETWORK"] = structpb.NewStringValue(c.Network)
	}
	return n
}

func toValidUTF8(s string) string { return strings.ToValidUTF8(s, "�") }
