package downstream

import (
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc/codes"
	"k8s.io/apimachinery/pkg/labels"

	"meshrelay/downstream/refusal"
)

// client has the fields of a client's node message (PROTOCOL S1, S14).
type client struct {
	nodeID, clusterID, namespace, serviceAccount, istioVersion, revision string
	labels                                                               labels.Set
	// istiod is set when the client looks like an istiod. Istiods do not read provenance.
	istiod bool
	// unlabelled is set when lean has dropped the labels.
	unlabelled bool
}

// maxLabelBytes bounds the labels that the relay keeps of a connected client. It needs them when the rules
// change.
const maxLabelBytes = 16 << 10

// lean returns c without labels if they are larger than maxLabelBytes.
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
		nodeID:         refusal.Bounded(node.GetId()),
		clusterID:      refusal.Bounded(md["CLUSTER_ID"].GetStringValue()),
		namespace:      refusal.Bounded(md["NAMESPACE"].GetStringValue()),
		serviceAccount: refusal.Bounded(md["SERVICE_ACCOUNT"].GetStringValue()),
		istioVersion:   refusal.Bounded(md["ISTIO_VERSION"].GetStringValue()),
		revision:       refusal.Bounded(md["ISTIO_REVISION"].GetStringValue()),
		labels:         labels.Set{},
	}
	for name, v := range md["LABELS"].GetStructValue().GetFields() {
		c.labels[name] = v.GetStringValue()
	}
	own, relay := md["RELAY_CLUSTER_ID"]
	c.istiod = !relay && isSidecar(node.GetId())
	if relay {
		// A relay names its own cluster in RELAY_CLUSTER_ID. Its CLUSTER_ID is the cluster in which it
		// expects this server.
		c.clusterID = refusal.Bounded(own.GetStringValue())
	}
	if c.namespace == "" {
		c.namespace = namespaceOfID(node.GetId())
	}
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
