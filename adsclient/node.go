package adsclient

import (
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/types/known/structpb"
)

// istioVersion is the version that the relay presents itself with: the newest whose
// behaviour towards MCP clients it was built for.
const istioVersion = "1.32.0"

// NodeConfig is what a node says of the client.
type NodeConfig struct {
	// Name and Namespace are of the client's pod, or stand for it.
	Name, Namespace string
	// IP is the client's own address.
	IP string
	// ClusterID is the cluster that the client speaks for.
	ClusterID string
	// Revision is the control plane revision of the client; may be empty.
	Revision string
}

// Node returns a node as istiod expects one of a client of its api generator
// (PROTOCOL C2, C3, C12).
func Node(c NodeConfig) *corev3.Node {
	fields := map[string]*structpb.Value{
		"GENERATOR":     structpb.NewStringValue("api"),
		"NAMESPACE":     structpb.NewStringValue(c.Namespace),
		"CLUSTER_ID":    structpb.NewStringValue(c.ClusterID),
		"ISTIO_VERSION": structpb.NewStringValue(istioVersion),
	}
	if c.Revision != "" {
		fields["ISTIO_REVISION"] = structpb.NewStringValue(c.Revision)
	}
	// A sidecar would be left out of pushes that do not concern its namespace, a
	// waypoint is left out of none.
	id := strings.Join([]string{"waypoint", c.IP, c.Name + "." + c.Namespace, c.Namespace + ".svc.cluster.local"}, "~")
	return &corev3.Node{Id: id, Metadata: &structpb.Struct{Fields: fields}}
}

func toValidUTF8(s string) string { return strings.ToValidUTF8(s, "�") }
