package downstream

import (
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc/codes"
	"k8s.io/apimachinery/pkg/labels"

	"meshrelay/downstream/refusal"
)

// client is what a node tells of itself (PROTOCOL S1, S14).
type client struct {
	nodeID, clusterID, namespace, istioVersion, revision string
	labels                                               labels.Set
	// istiod is set for what looks like the MCP client of an istiod. Such a client reads no provenance.
	istiod bool
	// unlabelled tells that there were more labels than are kept.
	unlabelled bool
}

// maxLabelBytes bounds the labels of a client that are kept after it has got its view, for
// when the rules change.
const maxLabelBytes = 16 << 10

// lean returns c as it is kept.
func (c client) lean() client {
	size := 0
	for name, value := range c.labels {
		size += len(name) + len(value)
	}
	if size > maxLabelBytes {
		c.labels, c.unlabelled = nil, true
	}
	return c
}

func parseNode(node *corev3.Node) (client, error) {
	if node.GetId() == "" {
		return client{}, refusal.New(refusal.Node, codes.InvalidArgument, "the first request of a stream must carry a node with an id")
	}
	md := node.GetMetadata().GetFields()
	c := client{
		nodeID:       refusal.Bounded(node.GetId()),
		clusterID:    refusal.Bounded(md["CLUSTER_ID"].GetStringValue()),
		namespace:    refusal.Bounded(md["NAMESPACE"].GetStringValue()),
		istioVersion: refusal.Bounded(md["ISTIO_VERSION"].GetStringValue()),
		revision:     refusal.Bounded(md["ISTIO_REVISION"].GetStringValue()),
		labels:       labels.Set{},
	}
	for name, v := range md["LABELS"].GetStructValue().GetFields() {
		c.labels[name] = v.GetStringValue()
	}
	own, relay := md["RELAY_CLUSTER_ID"]
	c.istiod = !relay && isSidecar(node.GetId())
	if relay {
		// A relay tells with CLUSTER_ID which cluster it takes this server for.
		c.clusterID = refusal.Bounded(own.GetStringValue())
	}
	if c.namespace == "" {
		c.namespace = namespaceOfID(node.GetId())
	}
	return c, nil
}

// isSidecar reports whether a node id is one of a sidecar. An istiod calls itself one;
// relays and tools do not.
func isSidecar(id string) bool {
	return strings.HasPrefix(id, "sidecar~") && strings.Count(id, "~") == 3
}

// namespaceOfID returns the namespace in a node id of the form
// type~IP~name.namespace~domain (PROTOCOL C2), empty when it has another.
func namespaceOfID(id string) string {
	parts := strings.Split(id, "~")
	if len(parts) != 4 {
		return ""
	}
	_, namespace, _ := strings.Cut(parts[2], ".")
	return namespace
}
