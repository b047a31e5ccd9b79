package e2e

import (
	"cmp"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/types/known/structpb"
)

const (
	cdsType = "type.googleapis.com/envoy.config.cluster.v3.Cluster"
	edsType = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"
)

// proxy identifies an Envoy that asks an istiod. Kind, the first word of its node's ID, is
// sidecar when empty; name is client, namespace default, and address 127.0.0.1 when empty.
type proxy struct {
	kind, name, namespace, address, network, cluster string
	labels                                           map[string]string
	capturesDNS                                      bool
}

// String returns "KIND NAME.NAMESPACE".
func (p proxy) String() string {
	return fmt.Sprintf("%s %s.%s", cmp.Or(p.kind, "sidecar"), cmp.Or(p.name, "client"), cmp.Or(p.namespace, "default"))
}

func (p proxy) node() *corev3.Node {
	kind, namespace := cmp.Or(p.kind, "sidecar"), cmp.Or(p.namespace, "default")
	labels := map[string]*structpb.Value{}
	for k, v := range p.labels {
		labels[k] = structpb.NewStringValue(v)
	}
	metadata := map[string]*structpb.Value{
		"NAMESPACE":     structpb.NewStringValue(namespace),
		"ISTIO_VERSION": structpb.NewStringValue("1.23.0"),
		"LABELS":        structpb.NewStructValue(&structpb.Struct{Fields: labels}),
	}
	if p.network != "" {
		metadata["NETWORK"] = structpb.NewStringValue(p.network)
	}
	if p.cluster != "" {
		metadata["CLUSTER_ID"] = structpb.NewStringValue(p.cluster)
	}
	if p.capturesDNS {
		metadata["DNS_CAPTURE"] = structpb.NewStringValue("true")
	}
	return &corev3.Node{
		Id: fmt.Sprintf("%s~%s~%s.%s~%s.svc.cluster.local",
			kind, cmp.Or(p.address, "127.0.0.1"), cmp.Or(p.name, "client"), namespace, namespace),
		Metadata: &structpb.Struct{Fields: metadata},
	}
}

// envoy is a client proxy's ADS stream, SotW as Envoy's default is. It keeps the newest
// clusters and their endpoints.
type envoy struct {
	t      *testing.T
	send   func(*discoveryv3.DiscoveryRequest) error
	follow bool // the clusters of CDS rather than a fixed list

	mu          sync.Mutex
	asked       []string // clusters whose endpoints it wants
	held        map[string]*clusterv3.Cluster
	assignments map[string]*endpointv3.ClusterLoadAssignment
	last        map[string]*discoveryv3.DiscoveryResponse // by type
	count       map[string]int                            // of responses by type
	err         error
}

// envoy connects as the proxy. It asks for the endpoints of the clusters named, without
// CDS; without names, for all clusters and then for their endpoints, as an Envoy does.
func (c *xdsClient) envoy(p proxy, clusters ...string) *envoy {
	c.t.Helper()
	s, err := c.stub.StreamAggregatedResources(c.ctx)
	if err != nil {
		c.t.Fatal(err)
	}
	e := &envoy{
		t: c.t, send: s.Send, follow: len(clusters) == 0, asked: clusters,
		held: map[string]*clusterv3.Cluster{}, assignments: map[string]*endpointv3.ClusterLoadAssignment{},
		last: map[string]*discoveryv3.DiscoveryResponse{}, count: map[string]int{},
	}
	first := &discoveryv3.DiscoveryRequest{Node: p.node(), TypeUrl: cdsType}
	if !e.follow {
		first.TypeUrl, first.ResourceNames = edsType, clusters
	}
	if err := s.Send(first); err != nil {
		c.t.Fatal(err)
	}
	go func() {
		for {
			resp, err := s.Recv()
			if err == nil {
				err = e.take(resp)
			}
			if err != nil {
				e.mu.Lock()
				e.err = err
				e.mu.Unlock()
				return
			}
		}
	}()
	return e
}

// take keeps a response, acknowledges it, and asks for what follows from it.
func (e *envoy) take(resp *discoveryv3.DiscoveryResponse) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch resp.TypeUrl {
	case cdsType:
		e.held = map[string]*clusterv3.Cluster{}
		for _, r := range resp.Resources {
			c := &clusterv3.Cluster{}
			if err := r.UnmarshalTo(c); err != nil {
				return err
			}
			e.held[c.Name] = c
		}
	case edsType: // of the clusters that have changed only
		for _, r := range resp.Resources {
			a := &endpointv3.ClusterLoadAssignment{}
			if err := r.UnmarshalTo(a); err != nil {
				return err
			}
			e.assignments[a.ClusterName] = a
		}
	default:
		return fmt.Errorf("nobody asked for %s", resp.TypeUrl)
	}
	e.last[resp.TypeUrl] = resp
	e.count[resp.TypeUrl]++
	if err := e.request(resp.TypeUrl); err != nil {
		return err
	}
	if resp.TypeUrl == cdsType {
		return e.askEndpoints()
	}
	return nil
}

// askEndpoints changes what is asked for to the EDS clusters held.
func (e *envoy) askEndpoints() error {
	var names []string
	for _, c := range e.held {
		if c.GetType() == clusterv3.Cluster_EDS {
			names = append(names, assignmentName(c))
		}
	}
	slices.Sort(names)
	if slices.Equal(names, e.asked) {
		return nil
	}
	e.asked = names
	for name := range e.assignments {
		if _, ok := slices.BinarySearch(names, name); !ok {
			delete(e.assignments, name)
		}
	}
	return e.request(edsType)
}

func assignmentName(c *clusterv3.Cluster) string {
	if name := c.GetEdsClusterConfig().GetServiceName(); name != "" {
		return name
	}
	return c.Name
}

// request asks for a type anew, which acknowledges its last response.
func (e *envoy) request(typeURL string) error {
	req := &discoveryv3.DiscoveryRequest{TypeUrl: typeURL}
	if typeURL == edsType {
		req.ResourceNames = e.asked
	}
	if last := e.last[typeURL]; last != nil {
		req.VersionInfo, req.ResponseNonce = last.VersionInfo, last.Nonce
	}
	return e.send(req)
}

// wait waits until check is nil. The stream's end is told with what is missing.
func (e *envoy) wait(what string, check func() error) {
	e.t.Helper()
	eventually(e.t, what, func() error {
		err := check()
		e.mu.Lock()
		defer e.mu.Unlock()
		if err != nil && e.err != nil {
			return fmt.Errorf("%w; the stream has ended: %w", err, e.err)
		}
		return err
	})
}

// waitEndpoints waits until a cluster has these endpoints, and no others.
func (e *envoy) waitEndpoints(cluster string, want ...string) {
	e.t.Helper()
	e.wait("the endpoints of "+cluster, func() error {
		have, known := e.endpoints(cluster)
		if !known {
			return fmt.Errorf("it is not known; known are %v", e.clusters())
		}
		if !slices.Equal(have, want) {
			return fmt.Errorf("they are %q, want %q", have, want)
		}
		return nil
	})
}

// clusters returns the names of all clusters, in order.
func (e *envoy) clusters() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	var names []string
	for name := range e.held {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// cluster returns a cluster, nil if there is none. It must not be changed.
func (e *envoy) cluster(name string) *clusterv3.Cluster {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.held[name]
}

// responses returns how many responses of a type came.
func (e *envoy) responses(typeURL string) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.count[typeURL]
}

// endpoint is what matters of an endpoint. Its network is not told to an Envoy; the
// cluster whose istiod has it is.
type endpoint struct {
	address  string // with the port
	locality string // region/zone
	tlsMode  string // "istio" when the client shall speak mTLS
	weight   uint32
	workload string // name;namespace;service;revision;cluster
}

// endpoints returns "address:port" of a cluster's endpoints, in order, and whether the
// istiod has told of them, be it that there are none.
func (e *envoy) endpoints(cluster string) (addresses []string, known bool) {
	details, known := e.details(cluster)
	for _, d := range details {
		addresses = append(addresses, d.address)
	}
	return addresses, known
}

// details returns a cluster's endpoints in the order of their addresses and localities.
func (e *envoy) details(cluster string) (endpoints []endpoint, known bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	name := cluster
	assignment := (*endpointv3.ClusterLoadAssignment)(nil)
	if c := e.held[cluster]; c != nil {
		name, assignment = assignmentName(c), c.LoadAssignment // of a DNS or static cluster
	}
	if assignment == nil {
		assignment = e.assignments[name]
	}
	if assignment == nil {
		return nil, false
	}
	for _, l := range assignment.Endpoints {
		locality := ""
		if l.Locality.GetRegion() != "" {
			locality = l.Locality.Region + "/" + l.Locality.Zone
		}
		for _, ep := range l.LbEndpoints {
			a := ep.GetEndpoint().GetAddress().GetSocketAddress()
			metadata := ep.GetMetadata().GetFilterMetadata()
			endpoints = append(endpoints, endpoint{
				address:  net.JoinHostPort(a.GetAddress(), strconv.Itoa(int(a.GetPortValue()))),
				locality: locality,
				tlsMode:  metadata["envoy.transport_socket_match"].GetFields()["tlsMode"].GetStringValue(),
				weight:   ep.GetLoadBalancingWeight().GetValue(),
				workload: metadata["istio"].GetFields()["workload"].GetStringValue(),
			})
		}
	}
	slices.SortFunc(endpoints, func(a, b endpoint) int {
		return cmp.Or(strings.Compare(a.address, b.address), strings.Compare(a.locality, b.locality))
	})
	return endpoints, true
}

// sni returns the server name that the client sends in mTLS to a cluster's endpoints, by
// which a gateway that passes TLS through finds the service. It is empty if the client
// never speaks mTLS.
func (e *envoy) sni(cluster string) string {
	e.t.Helper()
	c := e.cluster(cluster)
	for _, m := range c.GetTransportSocketMatches() {
		if m.Match.GetFields()["tlsMode"].GetStringValue() != "istio" {
			continue
		}
		tls := &tlsv3.UpstreamTlsContext{}
		if err := m.TransportSocket.GetTypedConfig().UnmarshalTo(tls); err != nil {
			e.t.Fatal(err)
		}
		return tls.Sni
	}
	return ""
}
