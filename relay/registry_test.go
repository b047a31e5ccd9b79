package relay

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	mcp "istio.io/api/mcp/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"meshrelay/config"
	"meshrelay/internal/testing/await"
	"meshrelay/internal/testing/fakexds"
	"meshrelay/mirror"
	"meshrelay/push"
)

// serviceEntries is the type under which a registry has its services.
const serviceEntries = "networking.istio.io/v1alpha3/ServiceEntry"

// registry is a server that tells every service again with each change, all under one version.
type registry struct {
	t        *testing.T
	server   *fakexds.Server
	services []*networking.ServiceEntry
}

func startRegistry(t *testing.T, services, instances int) *registry {
	r := &registry{t: t, server: fakexds.Start(t, &fakexds.Server{NoDelta: true})}
	for i := range services {
		se := &networking.ServiceEntry{
			Hosts: []string{serviceName(i) + ".nacos"}, Resolution: networking.ServiceEntry_STATIC,
			Ports: []*networking.ServicePort{{Number: 8848, Name: "http", Protocol: "HTTP"}},
		}
		for n := range instances {
			se.Endpoints = append(se.Endpoints, &networking.WorkloadEntry{
				Address: fmt.Sprintf("10.0.%d.%d", i, n+1), Weight: 1, Labels: map[string]string{"cluster": "DEFAULT"},
			})
		}
		r.services = append(r.services, se)
	}
	r.tell(false)
	return r
}

func serviceName(i int) string { return fmt.Sprintf("service-%03d", i) }

// tell sends all services in one answer, unless the first answer is still to come.
func (r *registry) tell(push bool) {
	all := make([]fakexds.Resource, len(r.services))
	for i, se := range r.services {
		all[i] = fakexds.MCP("public/"+serviceName(i), se, func(m *mcp.Resource) {
			m.Metadata.Version = "1"
			// Labels in another order would be another content.
			if err := anypb.MarshalFrom(m.Body, se, proto.MarshalOptions{Deterministic: true}); err != nil {
				r.t.Error(err)
			}
		})
	}
	if r.server.Set(serviceEntries, all...); push {
		r.server.Push(serviceEntries)
	}
}

// relayOf runs a relay in front of a registry, until the test ends, and returns its address. Each push is
// passed to pushing. merged gets each change after it was given to the pusher.
func relayOf(t *testing.T, r *registry, pushing func(push func()), merged func(mirror.Change)) (address string) {
	t.Helper()
	text := fmt.Sprintf("downstream: {listeners: [{address: \"127.0.0.1:0\", plaintext: true}]}\nupstreams:\n- {name: nacos, xds: {addresses: [%q], plaintext: true}}\n", r.server.Addr)
	cfg, err := config.Parse(filepath.Join(t.TempDir(), "relay.yaml"), []byte(text), Sources()...)
	if err != nil {
		t.Fatal(err)
	}
	relay, err := New(Options{
		Config: cfg, Watcher: config.NewWatcher("relay.yaml", Sources()...), Complete: func(*config.Config) {}, Logger: slog.New(slog.DiscardHandler), LogLevel: new(slog.LevelVar),
	})
	if err != nil {
		t.Fatal(err)
	}
	relay.aggregate.RegisterHandler(merged)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	for _, run := range []func(context.Context) error{
		relay.server.Run, relay.aggregate.Run, relay.manager.Run,
		func(ctx context.Context) error {
			return relay.pusher.Run(ctx, func(req *push.Request) { pushing(func() { relay.server.Push(req) }) })
		},
	} {
		running.Go(func() {
			if err := run(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	t.Cleanup(func() { cancel(); running.Wait() })
	addrs, err := relay.server.Addrs(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return addrs[0].String()
}

// subscriber is a delta client that has been sent all services.
type subscriber struct {
	t      *testing.T
	stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesClient
}

func subscribe(t *testing.T, address, id string, services int) *subscriber {
	t.Helper()
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	ctx := await.Context(t)
	t.Cleanup(func() { conn.Close() })
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(ctx)
	if err != nil {
		t.Fatal(err)
	}
	s := &subscriber{t, stream}
	s.send(&discoveryv3.DeltaDiscoveryRequest{Node: &corev3.Node{Id: id}, TypeUrl: serviceEntries})
	for have := map[string]bool{}; len(have) < services; {
		for _, r := range s.receive().Resources {
			have[r.Name] = true
		}
	}
	return s
}

func (s *subscriber) send(req *discoveryv3.DeltaDiscoveryRequest) {
	s.t.Helper()
	if err := s.stream.Send(req); err != nil {
		s.t.Fatal(err)
	}
}

func (s *subscriber) receive() *discoveryv3.DeltaDiscoveryResponse {
	s.t.Helper()
	resp, err := s.stream.Recv()
	if err != nil {
		s.t.Fatal(err)
	}
	s.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: resp.TypeUrl, ResponseNonce: resp.Nonce})
	return resp
}

// expect checks that the next response has one service, with the content of the registry.
func (s *subscriber) expect(what string, r *registry, i int) {
	s.t.Helper()
	resp := s.receive()
	if len(resp.Resources) != 1 || len(resp.RemovedResources) > 0 || resp.Resources[0].Name != "public/"+serviceName(i) {
		s.t.Fatalf("%s: the response has %d resources and removes %d, want %s alone", what, len(resp.Resources), len(resp.RemovedResources), serviceName(i))
	}
	m, se := &mcp.Resource{}, &networking.ServiceEntry{}
	if err := resp.Resources[0].Resource.UnmarshalTo(m); err != nil {
		s.t.Fatal(err)
	}
	if err := m.Body.UnmarshalTo(se); err != nil || !proto.Equal(se, r.services[i]) {
		s.t.Errorf("%s: %v, %v, want %v", what, se, err, r.services[i])
	}
}

// TestAChangeOfAnInstanceReachesEachDeltaClientAsOneResource: whatever else is told again, and although no
// version changes. The next response tells whether there was more.
func TestAChangeOfAnInstanceReachesEachDeltaClientAsOneResource(t *testing.T) {
	const services, instances = 60, 10
	r := startRegistry(t, services, instances)
	address := relayOf(t, r, func(push func()) { push() }, func(mirror.Change) {})
	var clients []*subscriber
	for n := range 3 {
		clients = append(clients, subscribe(t, address, fmt.Sprintf("istiod-%d", n), services))
	}
	unhealthy := r.services[3].Endpoints[4]
	for _, c := range []struct {
		what    string
		service int
		change  func(se *networking.ServiceEntry)
	}{
		{"a weight", 1, func(se *networking.ServiceEntry) { se.Endpoints[9].Weight = 50 }},
		{"the same weight again", 1, func(se *networking.ServiceEntry) { se.Endpoints[9].Weight = 1 }},
		{"a label", 2, func(se *networking.ServiceEntry) { se.Endpoints[0].Labels["version"] = "v2" }},
		{"an instance is unhealthy", 3, func(se *networking.ServiceEntry) {
			se.Endpoints = append(se.Endpoints[:4:4], se.Endpoints[5:]...)
		}},
		{"it is healthy again", 3, func(se *networking.ServiceEntry) { se.Endpoints = append(se.Endpoints, unhealthy) }},
		{"every instance is unhealthy", 4, func(se *networking.ServiceEntry) { se.Endpoints = nil }},
	} {
		c.change(r.services[c.service])
		r.tell(true)
		r.tell(true) // the same again, which reaches nobody
		for _, client := range clients {
			client.expect(c.what, r, c.service)
		}
	}
}

// TestAnswersThatComeWhileAPushWaitsReachAClientAsOneResource: full answers cost a client nothing that are
// replaced before it is their turn.
func TestAnswersThatComeWhileAPushWaitsReachAClientAsOneResource(t *testing.T) {
	const services, answers, service, first = 60, 30, 7, 5
	r := startRegistry(t, services, 10)
	began, leave, merged, taken := make(chan struct{}), make(chan struct{}), make(chan struct{}), make(chan struct{})
	var holds atomic.Bool
	address := relayOf(t, r, func(push func()) {
		if !holds.CompareAndSwap(true, false) {
			push()
			return
		}
		close(began)
		<-leave
		push()
		<-taken // else the client may get this push and the next in one answer
	}, func(c mirror.Change) {
		se := &networking.ServiceEntry{}
		if c.New != nil && c.Key.Name == serviceName(service) && proto.Unmarshal(c.New.BodyValue(), se) == nil && se.Endpoints[0].Weight == answers {
			close(merged)
		}
	})
	let, goOn := sync.OnceFunc(func() { close(leave) }), sync.OnceFunc(func() { close(taken) })
	t.Cleanup(func() { let(); goOn() }) // before the relay ends
	client := subscribe(t, address, "istiod", services)

	holds.Store(true)
	r.services[first].Endpoints[0].Weight = 2
	r.tell(true)
	await.Closed(t, "the push of the first answer", began)
	for n := range uint32(answers) {
		r.services[service].Endpoints[0].Weight = n + 1
		r.services[service].Endpoints[n%10].Labels["answer"] = fmt.Sprint(n)
		r.tell(true)
	}
	await.Closed(t, "the last answer", merged)
	let()
	client.expect("the first answer", r, first)
	goOn()
	client.expect("all others", r, service)
	r.services[first].Endpoints[0].Weight = 3
	r.tell(true)
	client.expect("nothing was left", r, first)
}
