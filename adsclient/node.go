package adsclient

import (
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/types/known/structpb"
)

// istioVersion is the newest Istio version whose behaviour with MCP clients the relay knows.
const istioVersion = "1.32.0"

// NodeConfig describes the client. Revision and Network may be empty.
type NodeConfig struct {
	Name, Namespace string // of the relay's pod
	IP              string
	ClusterID       string // of the server's cluster, for the relay
	// OwnClusterID is the cluster of the relay itself, empty for none. Other relays leave out
	// resources from it.
	OwnClusterID string
	Revision     string // of the relay's control plane
	Network      string // of the users of the endpoints, for EndpointsNode
}

// Node returns a node as istiod expects it from a client of its api generator (PROTOCOL C2, C3,
// C12).
func Node(c NodeConfig) *corev3.Node {
	fields := map[string]*structpb.Value{
		"GENERATOR":     structpb.NewStringValue("api"),
		"NAMESPACE":     structpb.NewStringValue(c.Namespace),
		"CLUSTER_ID":    structpb.NewStringValue(c.ClusterID),
		"ISTIO_VERSION": structpb.NewStringValue(istioVersion),
		// CLUSTER_ID is the istiod's own cluster. A relay would take it for the client's.
		"RELAY_CLUSTER_ID": structpb.NewStringValue(c.OwnClusterID),
	}
	if c.Revision != "" {
		fields["ISTIO_REVISION"] = structpb.NewStringValue(c.Revision)
	}
	// An istiod leaves sidecars out of pushes for other namespaces, and waypoints out of none.
	id := strings.Join([]string{"waypoint", c.IP, c.Name + "." + c.Namespace, c.Namespace + ".svc.cluster.local"}, "~")
	return &corev3.Node{Id: id, Metadata: &structpb.Struct{Fields: fields}}
}

// EndpointsNode returns a node of a client that asks an istiod for the endpoints of all services,
// for the proxies of other clusters. Paths are in istio/istio at 1.23-dev.
//
// It is a waypoint, which an istiod leaves out of no push. The Sidecar of a namespace narrows
// what a sidecar sees (pilot/pkg/model/push_context.go getSidecarScope), and a router gets no
// pushes of services without a Gateway under PILOT_FILTER_GATEWAY_CLUSTER_CONFIG
// (pilot/pkg/xds/proxy_dependencies.go).
//
// EDS needs no GENERATOR (pilot/pkg/xds/xdsgen.go findGenerator). NETWORK makes the istiod answer
// with gateways in place of endpoints of other networks (endpoints/ep_filters.go). CLUSTER_ID is
// the cluster of those who use the endpoints (endpoint_builder.go filterIstioEndpoint).
// DISABLE_HBONE_SEND asks for addresses of workloads in an ambient mesh.
//
// With AMBIENT_ENABLE_MULTI_NETWORK (off by default) an istiod at 1.32-dev answers all but
// sidecars with internal addresses of other networks' gateways, which are of no use elsewhere.
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
