// Package fakexds is an MCP-over-xDS server for tests. It answers like istiod and records
// requests. Tests can make it misbehave. It uses real gRPC, over loopback or a listener in memory.
//
// The package is for tests only.
package fakexds

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	mcp "istio.io/api/mcp/v1alpha1"
	"k8s.io/apimachinery/pkg/util/sets"

	"meshrelay/internal/testing/await"
)

// Request is what a client sent.
type Request struct {
	// Stream counts the server's streams from 1.
	Stream int
	Delta  bool
	Header metadata.MD

	Node          *corev3.Node
	TypeURL       string
	Nonce         string
	Version       string
	Names         []string
	Unsubscribed  []string
	Error         string
	Held          map[string]string // initial_resource_versions
	ErrorWasGiven bool
}

// Resource is a resource of the server. Name is the element's name on delta streams.
type Resource struct {
	Name, Version string
	Any           *anypb.Any
}

// Server is a fake xDS server. Set its fields before Start. Its methods may be called at any
// time.
type Server struct {
	// Relay makes the server identify itself as a relay. It then also sends Name, its name, and
	// Holds, which means that it makes its clients wait.
	Relay bool
	Name  string
	Holds bool
	// NoDelta and NoSotW make the method return Unimplemented.
	NoDelta, NoSotW bool
	// Options are for the gRPC server.
	Options []grpc.ServerOption
	// Listener is where the server listens, instead of a port of its own.
	Listener net.Listener

	Addr string

	t        *testing.T
	grpc     *grpc.Server
	readers  sync.WaitGroup
	mu       sync.Mutex
	has      map[string][]Resource
	withheld map[string]bool
	offered  []string // nil: every type
	fail     error    // for new streams
	requests []Request
	streams  map[*session]struct{}
	opened   int
	nonce    int
	version  int
	deaf     atomic.Bool // the server does not read requests
}

// session is one stream.
type session struct {
	number  int
	delta   bool
	send    func(proto.Message) error
	mu      sync.Mutex
	sent    map[string]map[string]string // versions that the client has, by type and name
	end     chan error
	ended   sync.Once
	nodeSet bool
	// named has the names in the client's last request by name, by type. nonce is that of the
	// last response for such a type.
	named map[string][]string
	nonce map[string]string
}

// Start starts a server on a port of its own, or on addr, and stops it with the test.
func Start(t *testing.T, s *Server, addr ...string) *Server {
	t.Helper()
	s.t = t
	on, lis := "127.0.0.1:0", s.Listener
	if len(addr) > 0 {
		on = addr[0]
	}
	if lis == nil {
		var err error
		if lis, err = net.Listen("tcp", on); err != nil {
			t.Fatal(err)
		}
	}
	s.prepare(lis)
	done := make(chan struct{})
	go func() { defer close(done); s.grpc.Serve(lis) }() //nolint:errcheck // it ends with Stop
	t.Cleanup(func() { s.grpc.Stop(); <-done; s.readers.Wait() })
	return s
}

func (s *Server) prepare(lis net.Listener) {
	s.has, s.withheld, s.streams = map[string][]Resource{}, map[string]bool{}, map[*session]struct{}{}
	s.Addr = lis.Addr().String()
	pings := keepalive.EnforcementPolicy{MinTime: 15 * time.Second} // as an istiod
	s.grpc = grpc.NewServer(append([]grpc.ServerOption{grpc.WaitForHandlers(true), grpc.MaxRecvMsgSize(64 << 20), grpc.MaxConcurrentStreams(100), grpc.KeepaliveEnforcementPolicy(pings)}, s.Options...)...)
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(s.grpc, s)
}

// Stop ends the server at once, like a crash.
func (s *Server) Stop() { s.grpc.Stop() }

// Set replaces the resources of a type. It does not push them.
func (s *Server) Set(typeURL string, resources ...Resource) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.has[typeURL] = resources
}

// Withhold stops answers to requests for a type, or allows them again.
func (s *Server) Withhold(typeURL string, on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.withheld[typeURL] = on
}

// Offer makes the server answer requests for these types only, as a server that is no istiod does. With no
// types it answers all.
func (s *Server) Offer(typeURLs ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.offered = typeURLs
}

func (s *Server) withholds(typeURL string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.withheld[typeURL] || len(s.offered) > 0 && !slices.Contains(s.offered, typeURL)
}

// StopReading makes the server read at most one more request of each stream.
func (s *Server) StopReading() { s.deaf.Store(true) }

// Fail makes every new stream end with err. With nil, new streams work again.
func (s *Server) Fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fail = err
}

// End ends every open stream with err.
func (s *Server) End(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for st := range s.streams {
		st.finish(err)
	}
}

func (st *session) finish(err error) { st.ended.Do(func() { st.end <- err }) }

// sessions returns the open streams, so that callers can send without the lock.
func (s *Server) sessions() []*session {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(s.streams))
}

// Push sends a type to every stream: all resources on SotW streams, and the differences on delta
// streams.
func (s *Server) Push(typeURL string) {
	for _, st := range s.sessions() {
		s.answer(st, typeURL)
	}
}

// Send sends an unchanged SotW or delta response, with its nonce, to every stream.
func (s *Server) Send(resp proto.Message) {
	for _, st := range s.sessions() {
		st.deliver(resp)
	}
}

// Requests returns the requests so far.
func (s *Server) Requests() []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.requests)
}

// Streams returns the number of streams opened so far.
func (s *Server) Streams() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.opened
}

// Await waits for a matching request, and returns the first one.
func (s *Server) Await(what string, match func(Request) bool) Request {
	s.t.Helper()
	var requests []Request
	next := 0
	await.Until(s.t, "fakexds: a request: "+what, func() bool {
		s.mu.Lock()
		requests = s.requests
		s.mu.Unlock()
		for ; next < len(requests); next++ {
			if match(requests[next]) {
				return true
			}
		}
		return false
	}, func() any {
		text := fmt.Sprintf("%d requests", len(requests))
		for _, r := range requests[max(len(requests)-5, 0):] {
			text += fmt.Sprintf("; %s of stream %d, nonce %q, version %q, %d names, error %q", r.TypeURL, r.Stream, r.Nonce, r.Version, len(r.Names), r.Error)
		}
		return text
	})
	return requests[next]
}

func (s *Server) record(r Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests = append(s.requests, r)
}

// StreamAggregatedResources implements the ADS service.
func (s *Server) StreamAggregatedResources(stream discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
	if s.NoSotW {
		return status.Error(codes.Unimplemented, "no SotW here")
	}
	return s.serve(stream, false, func() (Request, error) {
		req, err := stream.Recv()
		return Request{
			Node: req.GetNode(), TypeURL: req.GetTypeUrl(), Nonce: req.GetResponseNonce(), Version: req.GetVersionInfo(),
			Names: req.GetResourceNames(), Error: req.GetErrorDetail().GetMessage(), ErrorWasGiven: req.GetErrorDetail() != nil,
		}, err
	})
}

// DeltaAggregatedResources implements the ADS service.
func (s *Server) DeltaAggregatedResources(stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	if s.NoDelta {
		return status.Error(codes.Unimplemented, "no delta here")
	}
	return s.serve(stream, true, func() (Request, error) {
		req, err := stream.Recv()
		return Request{
			Node: req.GetNode(), TypeURL: req.GetTypeUrl(), Nonce: req.GetResponseNonce(), Held: req.GetInitialResourceVersions(),
			Names: req.GetResourceNamesSubscribe(), Unsubscribed: req.GetResourceNamesUnsubscribe(),
			Error: req.GetErrorDetail().GetMessage(), ErrorWasGiven: req.GetErrorDetail() != nil,
		}, err
	})
}

func (s *Server) serve(stream grpc.ServerStream, delta bool, recv func() (Request, error)) error {
	s.mu.Lock()
	s.opened++
	var sending sync.Mutex
	st := &session{
		number: s.opened, delta: delta, sent: map[string]map[string]string{}, end: make(chan error, 1),
		named: map[string][]string{}, nonce: map[string]string{},
		send: func(m proto.Message) error {
			sending.Lock()
			defer sending.Unlock()
			return stream.SendMsg(m)
		},
	}
	fail := s.fail
	if fail == nil {
		s.streams[st] = struct{}{}
	}
	s.mu.Unlock()
	if fail != nil {
		return fail
	}
	defer func() {
		s.mu.Lock()
		delete(s.streams, st)
		s.mu.Unlock()
	}()
	if s.Relay {
		md := metadata.Pairs("x-meshrelay", "delta")
		if s.Name != "" {
			md.Set("x-meshrelay-name", s.Name)
		}
		if s.Holds {
			md.Set("x-meshrelay-holds", "true")
		}
		if err := stream.SendHeader(md); err != nil {
			return err
		}
	}
	md, _ := metadata.FromIncomingContext(stream.Context())
	received := make(chan error, 1)
	s.readers.Go(func() {
		for !s.deaf.Load() {
			req, err := recv()
			if err != nil {
				received <- err
				return
			}
			req.Stream, req.Delta, req.Header = st.number, delta, md
			s.record(req)
			if err := s.handle(st, req); err != nil {
				received <- err
				return
			}
		}
	})
	select {
	case err := <-st.end:
		return err
	case err := <-received:
		if errors.Is(err, io.EOF) {
			return nil
		}
		return err
	case <-stream.Context().Done():
		return stream.Context().Err()
	}
}

// handle answers as istiod does. It answers only the first request of a type, and requests with
// an empty nonce.
func (s *Server) handle(st *session, req Request) error {
	if !st.nodeSet && req.Node.GetId() == "" {
		return status.Error(codes.InvalidArgument, "missing node information")
	}
	st.nodeSet = true
	if !st.delta && (len(req.Names) > 0 || st.names(req.TypeURL) != nil) {
		s.handleNames(st, req)
		return nil
	}
	st.mu.Lock()
	known := st.sent[req.TypeURL] != nil
	if !known || slices.Contains(req.Names, "*") { // a repeated wildcard gets everything again
		st.sent[req.TypeURL] = maps.Clone(req.Held)
		if st.sent[req.TypeURL] == nil {
			st.sent[req.TypeURL] = map[string]string{}
		}
	}
	st.mu.Unlock()
	if s.withholds(req.TypeURL) || known && (req.Nonce != "" || req.ErrorWasGiven) {
		return nil
	}
	s.answer(st, req.TypeURL)
	return nil
}

// handleNames answers a SotW request by name as istiod does (pilot/pkg/xds/ads.go
// shouldRespond). The first request, and one with an empty nonce, gets all named resources. A
// request with an old nonce gets no answer. Any other request gets the newly named resources. A
// request without names ends the subscription.
func (s *Server) handleNames(st *session, req Request) {
	st.mu.Lock()
	had, last := st.named[req.TypeURL], st.nonce[req.TypeURL]
	first := had == nil || req.Nonce == ""
	if len(req.Names) == 0 && !req.ErrorWasGiven {
		delete(st.named, req.TypeURL)
		delete(st.nonce, req.TypeURL)
		st.mu.Unlock()
		return
	}
	if req.ErrorWasGiven || !first && req.Nonce != last {
		st.mu.Unlock()
		return
	}
	st.named[req.TypeURL] = req.Names
	st.mu.Unlock()
	added := req.Names
	if !first {
		before := sets.New(had...)
		added = slices.DeleteFunc(slices.Clone(added), before.Has)
	}
	if len(added) > 0 && !s.withholds(req.TypeURL) {
		s.answerSotW(st, req.TypeURL, added)
	}
}

// names returns the names that the client asked for, or nil if it did not ask by name.
func (st *session) names(typeURL string) []string {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.named[typeURL]
}

// PushNames sends the resources with these names to each SotW stream that asked for them by name.
func (s *Server) PushNames(typeURL string, names ...string) {
	for _, st := range s.sessions() {
		asked := st.names(typeURL)
		if asked == nil {
			continue
		}
		s.answerSotW(st, typeURL, slices.DeleteFunc(slices.Clone(names), func(n string) bool { return !slices.Contains(asked, n) }))
	}
}

// Asked reports whether a stream is subscribed to a name.
func (s *Server) Asked(typeURL, name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for st := range s.streams {
		if slices.Contains(st.names(typeURL), name) {
			return true
		}
	}
	return false
}

// next returns the resources of a type, and the nonce and version for the response.
func (s *Server) next(typeURL string) (resources []Resource, nonce, version string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.nonce++
	s.version++
	return s.has[typeURL], strconv.Itoa(s.nonce), fmt.Sprintf("v%d", s.version)
}

// answerSotW sends the resources of a type with these names, or all if names is nil.
func (s *Server) answerSotW(st *session, typeURL string, names []string) {
	resources, nonce, version := s.next(typeURL)
	resp := &discoveryv3.DiscoveryResponse{TypeUrl: typeURL, Nonce: nonce, VersionInfo: version}
	for _, r := range resources {
		if names == nil || slices.Contains(names, r.Name) {
			resp.Resources = append(resp.Resources, r.Any)
		}
	}
	st.deliver(resp)
}

func (s *Server) answer(st *session, typeURL string) {
	if !st.delta {
		s.answerSotW(st, typeURL, st.names(typeURL))
		return
	}
	resources, nonce, version := s.next(typeURL)
	resp := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: typeURL, Nonce: nonce, SystemVersionInfo: version}
	st.mu.Lock()
	sent := st.sent[typeURL]
	now := map[string]string{}
	for _, r := range resources {
		now[r.Name] = r.Version
		if have, ok := sent[r.Name]; !ok || have != r.Version || r.Version == "" {
			resp.Resources = append(resp.Resources, &discoveryv3.Resource{Name: r.Name, Version: r.Version, Resource: r.Any})
		}
	}
	for name := range sent {
		if _, ok := now[name]; !ok {
			resp.RemovedResources = append(resp.RemovedResources, name)
		}
	}
	st.sent[typeURL] = now
	st.mu.Unlock()
	st.deliver(resp)
}

// deliver sends a message. It ignores errors: the client notices if the stream has ended.
func (st *session) deliver(m proto.Message) {
	if resp, ok := m.(*discoveryv3.DiscoveryResponse); ok {
		st.mu.Lock()
		st.nonce[resp.TypeUrl] = resp.Nonce
		st.mu.Unlock()
	}
	_ = st.send(m)
}

// MCP returns a resource encoded as by istiod's api generator.
func MCP(fullName string, body proto.Message, change ...func(*mcp.Resource)) Resource {
	packed, err := anypb.New(body)
	if err != nil {
		panic(err)
	}
	m := &mcp.Resource{Metadata: &mcp.Metadata{Name: fullName, Version: "7"}, Body: packed}
	for _, f := range change {
		f(m)
	}
	return Bare(fullName, m)
}

// Bare returns a resource that is not an MCP resource, for example one for Envoy.
func Bare(name string, m proto.Message) Resource {
	a, err := anypb.New(m)
	if err != nil {
		panic(err)
	}
	return Resource{Name: name, Any: a}
}

// WithVersion returns r with a version for delta streams.
func (r Resource) WithVersion(v string) Resource {
	r.Version = v
	return r
}
