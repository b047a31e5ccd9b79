package views

import (
	"cmp"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc/codes"

	"meshrelay/downstream/refusal"
)

// Client has the fields of a client's node message (PROTOCOL S1, S14).
type Client struct {
	NodeID, ClusterID, Namespace, ServiceAccount, IstioVersion, Revision string
	// Istiod is set when the client looks like an istiod. Istiods do not read provenance.
	Istiod bool
}

// ParseNode returns the fields of a node, or why it is refused.
func ParseNode(node *corev3.Node) (Client, error) {
	if node.GetId() == "" {
		return Client{}, refusal.New(refusal.Node, codes.InvalidArgument, "the first request of a stream must carry a node with an id")
	}
	md := node.GetMetadata().GetFields()
	c := Client{
		NodeID:         refusal.Bounded(node.GetId()),
		ClusterID:      refusal.Bounded(md["CLUSTER_ID"].GetStringValue()),
		Namespace:      refusal.Bounded(md["NAMESPACE"].GetStringValue()),
		ServiceAccount: refusal.Bounded(md["SERVICE_ACCOUNT"].GetStringValue()),
		IstioVersion:   refusal.Bounded(md["ISTIO_VERSION"].GetStringValue()),
		Revision:       refusal.Bounded(md["ISTIO_REVISION"].GetStringValue()),
	}
	own, relay := md["RELAY_CLUSTER_ID"]
	c.Istiod = !relay && isSidecar(node.GetId())
	if relay {
		// A relay names its own cluster in RELAY_CLUSTER_ID. Its CLUSTER_ID is the cluster in which it
		// expects this server.
		c.ClusterID = refusal.Bounded(own.GetStringValue())
	}
	c.Namespace = cmp.Or(c.Namespace, namespaceOfID(node.GetId()))
	return c, nil
}

// isSidecar reports whether a node ID is of type sidecar. Istiods use this type; relays and tools do not.
func isSidecar(id string) bool {
	return strings.HasPrefix(id, "sidecar~") && strings.Count(id, "~") == 3
}

// namespaceOfID returns the namespace in a node ID of the form type~IP~name.namespace~domain (PROTOCOL C2).
// It returns "" for any other form.
func namespaceOfID(id string) string {
	parts := strings.Split(id, "~")
	if len(parts) != 4 {
		return ""
	}
	_, namespace, _ := strings.Cut(parts[2], ".")
	return namespace
}
