package fakexds

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/timestamppb"
	mcp "istio.io/api/mcp/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"
)

// RegistryType is the type of the ServiceEntries of registries.
const RegistryType = "networking.istio.io/v1alpha3/ServiceEntry"

// Service names a service of a registry. Kind is the kind of the registry: Higress reads several.
type Service struct{ Namespace, Group, Name, Kind string }

// Instance is an instance of a service.
type Instance struct {
	IP                  string
	Port, Weight        uint32
	Metadata            map[string]string
	Unhealthy, Disabled bool
}

// Nacos is a server that behaves as the istio module of Nacos does:
//   - it never answers MeshConfig, and answers types that it does not have with an empty list;
//   - it reads the node from the first request of a stream, and keeps the streams of a protocol by node
//     ID: a second one of the same ID takes the pushes of the first, and the end of either ends them;
//   - each answer has all services, in any order; delta answers have neither names nor envelopes;
//   - a service whose instances are all unhealthy has no endpoints and a port with number 0, and one
//     without instances is missing;
//   - it logs NACKs and forgets them;
//   - it lets clients ping every 5 min at most, as gRPC servers do by default.
//
// Its methods may be called at any time.
type Nacos struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	// Quiet makes it push nothing when weights and metadata change (alibaba/nacos#8742). Set it before
	// Start.
	Quiet bool

	mu       sync.Mutex
	services map[Service]*registered
	streams  map[string]*nacosStream // by protocol and node ID
	version  int
	nacks    []string
}

// registered is a service with its instances. Its revision grows when instances come or go.
type registered struct {
	instances []Instance
	revision  int
	created   *timestamppb.Timestamp
}

// nacosStream is a stream. mu is held while an answer is made and sent.
type nacosStream struct {
	mu      sync.Mutex
	watched map[string]bool // types
	send    func(typeURL, version string, resources []*anypb.Any) error
}

// Start serves on lis, and stops with the test.
func (n *Nacos) Start(t *testing.T, lis net.Listener) *Nacos {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); n.Serve(ctx, lis) }() //nolint:errcheck // it ends with cancel
	t.Cleanup(func() { cancel(); <-done })
	return n
}

// Serve serves until ctx ends.
func (n *Nacos) Serve(ctx context.Context, lis net.Listener) error {
	s := grpc.NewServer()
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(s, n)
	defer context.AfterFunc(ctx, s.Stop)()
	return s.Serve(lis)
}

// Put sets the instances of a service, and pushes. Without instances the service is gone.
func (n *Nacos) Put(s Service, instances ...Instance) {
	n.mu.Lock()
	if n.services == nil {
		n.services = map[Service]*registered{}
	}
	of := n.services[s]
	if of == nil {
		of = &registered{created: timestamppb.Now()}
	}
	same := slices.EqualFunc(of.instances, instances, func(a, b Instance) bool {
		return a.IP == b.IP && a.Port == b.Port && a.Unhealthy == b.Unhealthy && a.Disabled == b.Disabled
	})
	if of.instances = instances; !same {
		of.revision++
	}
	if n.services[s] = of; len(instances) == 0 {
		delete(n.services, s)
	}
	streams := slices.Collect(maps.Values(n.streams))
	n.mu.Unlock()
	for _, st := range streams {
		if !same || !n.Quiet {
			n.answer(st, RegistryType, func(watched bool) bool { return watched })
		}
	}
}

// Nodes returns the protocols and node IDs of the streams that take pushes.
func (n *Nacos) Nodes() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Sorted(maps.Keys(n.streams))
}

// NACKs returns the errors of the NACKs so far.
func (n *Nacos) NACKs() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.nacks)
}

// answer sends all of a type if the stream should have it, which depends on whether it watches the type.
func (n *Nacos) answer(st *nacosStream, typeURL string, should func(watched bool) bool) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if typeURL == "core/v1alpha1/MeshConfig" || !should(st.watched[typeURL]) {
		return
	}
	st.watched[typeURL] = true
	var all []*anypb.Any
	n.mu.Lock()
	for s, of := range n.services {
		if typeURL == RegistryType {
			all = append(all, s.nacos(of).Any)
		}
	}
	n.version++
	version := fmt.Sprintf("%s/%d", time.Now().Format(time.RFC3339), n.version)
	n.mu.Unlock()
	_ = st.send(typeURL, version, all) // the client notices if the stream has ended
}

// nacos returns a service as Nacos encodes it.
func (s Service) nacos(of *registered) Resource {
	name := strings.Join([]string{s.Name, strings.ReplaceAll(s.Group, "DEFAULT_GROUP", "DEFAULT-GROUP"), s.Namespace}, ".")
	protocol, port := "http", &networking.ServicePort{}
	se := &networking.ServiceEntry{Hosts: []string{name + ".nacos"}, Location: networking.ServiceEntry_MESH_INTERNAL, Resolution: networking.ServiceEntry_STATIC, Ports: []*networking.ServicePort{port}}
	for _, i := range of.instances {
		if p := i.Metadata["protocol"]; p != "" {
			protocol = p
		}
		if i.Unhealthy || i.Disabled {
			continue
		}
		labels := map[string]string{"cluster": "DEFAULT"}
		for k, v := range i.Metadata {
			if nacosLabel.MatchString(v) {
				labels[k] = v
			}
		}
		port.Number = cmp.Or(port.Number, i.Port)
		se.Endpoints = append(se.Endpoints, &networking.WorkloadEntry{Address: i.IP, Weight: i.Weight, Labels: labels, Ports: map[string]uint32{protocol: i.Port}})
	}
	port.Name, port.Protocol = protocol, strings.ToUpper(protocol)
	return MCP(s.Namespace+"/"+name, se, func(m *mcp.Resource) {
		m.Metadata.Version, m.Metadata.CreateTime = fmt.Sprint(of.revision), of.created
		m.Metadata.Labels, m.Metadata.Annotations = map[string]string{"registryType": "nacos"}, map[string]string{"virtual": "1"}
	})
}

// nacosLabel matches the values of metadata that become labels. Their length has no bound.
var nacosLabel = regexp.MustCompile(`^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$`)

// StreamAggregatedResources implements the ADS service.
func (n *Nacos) StreamAggregatedResources(stream discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
	return serveNacos(n, "sotw ", stream.Recv, func(typeURL, version string, all []*anypb.Any) error {
		return stream.Send(&discoveryv3.DiscoveryResponse{TypeUrl: typeURL, VersionInfo: version, Nonce: "nonce-" + version, Resources: all})
	})
}

// DeltaAggregatedResources implements the ADS service.
func (n *Nacos) DeltaAggregatedResources(stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	return serveNacos(n, "delta ", stream.Recv, func(typeURL, version string, all []*anypb.Any) error {
		resp := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: typeURL, SystemVersionInfo: version, Nonce: "nonce-" + version}
		for _, a := range all {
			m := &mcp.Resource{}
			if err := a.UnmarshalTo(m); err != nil {
				return err
			}
			resp.Resources = append(resp.Resources, &discoveryv3.Resource{Version: version, Resource: m.Body})
		}
		return stream.Send(resp)
	})
}

// serveNacos answers the first request of each type, and those without a nonce.
func serveNacos[R interface {
	GetNode() *corev3.Node
	GetTypeUrl() string
	GetResponseNonce() string
	GetErrorDetail() *statuspb.Status
}](n *Nacos, protocol string, recv func() (R, error), send func(string, string, []*anypb.Any) error) error {
	st := &nacosStream{watched: map[string]bool{}, send: send}
	for first := true; ; first = false {
		req, err := recv()
		if err != nil {
			return err
		}
		n.mu.Lock()
		if id := protocol + req.GetNode().GetId(); first {
			if n.streams == nil {
				n.streams = map[string]*nacosStream{}
			}
			n.streams[id] = st
			defer n.leave(id)
		}
		nack := req.GetErrorDetail()
		if nack != nil {
			n.nacks = append(n.nacks, req.GetTypeUrl()+": "+nack.GetMessage())
		}
		n.mu.Unlock()
		n.answer(st, req.GetTypeUrl(), func(watched bool) bool { return nack == nil && (!watched || req.GetResponseNonce() == "") })
	}
}

// leave forgets the stream of this ID, whichever it is now.
func (n *Nacos) leave(id string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.streams, id)
}
