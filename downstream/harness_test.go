package downstream

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"
	mcp "istio.io/api/mcp/v1alpha1"
	mesh "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"meshrelay/downstream/refusal"
	"meshrelay/downstream/snapshot"
	"meshrelay/downstream/views"
	"meshrelay/internal/testing/await"
	"meshrelay/mirror"
	"meshrelay/push"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(everyReason{m}) }

// provoked has the reasons for which wantRefused has seen a client that was refused, and the line about it.
var provoked sync.Map

// everyReason fails a run of all tests that leaves out a reason.
type everyReason struct{ m *testing.M }

func (e everyReason) Run() int {
	code := e.m.Run()
	for _, some := range []string{"run", "skip", "list", "fuzz", "fuzzworker"} {
		if f := flag.Lookup("test." + some); f.Value.String() != f.DefValue {
			return code
		}
	}
	for _, why := range refusal.Reasons() {
		if _, ok := provoked.Load(why); !ok {
			fmt.Println("no test has a client refused for", why)
			code = max(code, 1)
		}
	}
	return code
}

const (
	seV1       = "networking.istio.io/v1/ServiceEntry"
	seV1beta1  = "networking.istio.io/v1beta1/ServiceEntry"
	seV1alpha3 = "networking.istio.io/v1alpha3/ServiceEntry"
	drV1       = "networking.istio.io/v1/DestinationRule"
	vsV1       = "networking.istio.io/v1/VirtualService"
	meshURL    = "core/v1alpha1/MeshConfig"

	// Bounds of package subscription: removed names in a response, names that a wildcard brings
	// again, and type URLs of a type that is not well known.
	maxRemoved, maxResend, maxURLs = 16_384, 256, 4
)

var (
	kindSE = mirror.Kind{Group: "networking.istio.io", Kind: "ServiceEntry"}
	kindDR = mirror.Kind{Group: "networking.istio.io", Kind: "DestinationRule"}
	kindVS = mirror.Kind{Group: "networking.istio.io", Kind: "VirtualService"}
)

var (
	typeSE = typeOf(kindSE)
	typeDR = typeOf(kindDR)
	typeVS = typeOf(kindVS)
)

// relay is a Server over two stores, with the pipeline between them.
type relay struct {
	t      *testing.T
	store  *mirror.Store // of the source east, which comes first
	west   *mirror.Store // of the source west, which has nothing unless a test puts it there
	server *Server
	pusher *push.Pusher
	addr   string
	memory *memory // nil: the server listens on TCP
	reg    *prometheus.Registry
	stop   func() // ends the server, gracefully
}

// debounceMax is the longest that a change waits, unless a test needs another.
const debounceMax = 50 * time.Millisecond

// inBubble returns a test that runs in a bubble of testing/synctest.
func inBubble(test func(t *testing.T)) func(t *testing.T) {
	return func(t *testing.T) { synctest.Test(t, test) }
}

type option func(*Config, *Deps)

// synced returns what waits until the sources of an Aggregate have synced.
func synced(agg *mirror.Aggregate) func(context.Context) error {
	return func(ctx context.Context) error {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-agg.Synced():
			return nil
		}
	}
}

func startRelay(t *testing.T, hasSynced bool, opts ...option) *relay {
	t.Helper()
	return startRelayOn(t, nil, debounceMax, hasSynced, opts...)
}

// startInMemory is startRelay for bubbles of testing/synctest.
func startInMemory(t *testing.T, hasSynced bool, opts ...option) *relay {
	t.Helper()
	m := &memory{}
	return startRelayOn(t, m, debounceMax, hasSynced, append(opts, func(c *Config, _ *Deps) { c.listen = m.listen })...)
}

func startRelayOn(t *testing.T, m *memory, longest time.Duration, hasSynced bool, opts ...option) *relay {
	t.Helper()
	r := &relay{t: t, memory: m, store: mirror.NewStore(), west: mirror.NewStore(), reg: prometheus.NewRegistry()}
	r.west.SetSynced()
	agg := mirror.NewAggregate()
	agg.SetSources([]mirror.Source{{Name: "east", Store: r.store}, {Name: "west", Store: r.west}})
	work := push.NewWork()
	d := push.NewPusher(push.Options{After: 5 * time.Millisecond, Max: longest, MaxShare: 1, CPUs: 1}, work)
	agg.RegisterHandler(func(c mirror.Change) {
		if !r.server.NeedsPushes() {
			return
		}
		if c.Visible() {
			d.Changed(cmp.Or(c.New, c.Old).Source(), c.Key, push.ConfigUpdate)
		}
		if r.server.NeedsCopies() {
			d.Changed("", c.Key, push.ConfigUpdate)
		}
	})
	r.pusher = d
	cfg := Config{NodeID: "relay-1", Version: "test", Listeners: []Listener{{Address: "127.0.0.1:0"}}, DrainTimeout: 2 * time.Second,
		timeouts: timeouts{first: time.Hour}} // a busy machine may take long to decode it
	deps := Deps{Resources: agg, Await: synced(agg), Registerer: r.reg, Work: work, Logger: slog.New(slog.NewTextHandler(io.Discard, nil))}
	for _, o := range opts {
		o(&cfg, &deps)
	}
	var err error
	if r.server, err = New(cfg, deps); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 3)
	go func() { done <- agg.Run(ctx) }()
	go func() { done <- d.Run(ctx, r.server.Push) }()
	go func() { done <- r.server.Run(ctx) }()
	stopped := false
	r.stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		for range 3 {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	}
	t.Cleanup(r.stop)
	addrs, err := r.server.Addrs(ctx)
	if err != nil {
		t.Fatal(err)
	}
	r.addr = addrs[0].String()
	if hasSynced {
		r.store.SetSynced()
		r.eventually(t, "the server is open", r.server.HasReleased)
	}
	return r
}

// se returns a ServiceEntry for a host of that name.
func se(namespace, name, host string, labels ...string) *mirror.Resource {
	return build(kindSE, namespace, name, &networking.ServiceEntry{Hosts: []string{host}}, labels...)
}

func dr(namespace, name, host string) *mirror.Resource {
	return build(kindDR, namespace, name, &networking.DestinationRule{Host: host})
}

func vs(namespace, name, host string) *mirror.Resource {
	return build(kindVS, namespace, name, &networking.VirtualService{Hosts: []string{host}})
}

func build(kind mirror.Kind, namespace, name string, body proto.Message, labels ...string) *mirror.Resource {
	packed, err := anypb.New(body)
	if err != nil {
		panic(err)
	}
	m := map[string]string{}
	for i := 0; i+1 < len(labels); i += 2 {
		m[labels[i]] = labels[i+1]
	}
	r, err := mirror.New(mirror.Spec{Key: mirror.Key{Kind: kind, Namespace: namespace, Name: name}, Labels: m, Source: "east", Body: packed})
	if err != nil {
		panic(err)
	}
	return r
}

// put changes the source and waits until that is in the view of everything, if the
// server is open.
func (r *relay) put(resources ...*mirror.Resource) {
	r.t.Helper()
	for _, res := range resources {
		r.store.Put(res)
	}
	if !r.server.HasReleased() {
		return
	}
	seen := 0
	await.Until(r.t, "all is in the view", func() bool {
		v := r.view()
		for ; seen < len(resources); seen++ {
			res := resources[seen]
			if want := r.store.Get(res.Key()); want.Equal(res) && !snapshot.Same(v.snapshot(typeOf(res.Kind())).Get(res.FullName()), res) {
				return false
			}
		}
		return true
	}, func() any { return resources[seen].FullName() + " is not" })
}

func (r *relay) view() *view {
	r.server.views.mu.Lock()
	defer r.server.views.mu.Unlock()
	return r.server.views.base
}

func (r *relay) remove(resources ...*mirror.Resource) {
	for _, res := range resources {
		if !r.store.Remove(res.Key()) {
			r.t.Errorf("%s was not there", res.Key())
		}
	}
}

// whileClientsWait makes changes, and lets the clients see them together, when done returns true
// for the view of everything, however many pushes there were.
func (r *relay) whileClientsWait(change func(), done func(*view) bool) {
	r.t.Helper()
	conns := r.server.connections()
	for _, c := range conns {
		c.mu.Lock()
	}
	change()
	v := r.view()
	await.Until(r.t, "the changes are in the view", func() bool { return done(v) }, func() any { return v.snapshot(typeSE) })
	for _, c := range conns {
		c.mu.Unlock()
	}
}

func (r *relay) dial(opts ...grpc.DialOption) discoveryv3.AggregatedDiscoveryServiceClient {
	r.t.Helper()
	opts = append([]grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(1 << 30)),
		r.from("127.0.0.1"),
	}, opts...)
	conn, err := grpc.NewClient("passthrough:///"+r.addr, opts...)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { conn.Close() })
	return discoveryv3.NewAggregatedDiscoveryServiceClient(conn)
}

// dialer returns what opens connections from an IP address.
func (r *relay) dialer(ip string) func(ctx context.Context, to string) (net.Conn, error) {
	return func(ctx context.Context, to string) (net.Conn, error) {
		if r.memory != nil {
			return r.memory.connect(ctx, ip, to)
		}
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(ip)}}
		return d.DialContext(ctx, "tcp", to)
	}
}

// from has a client come from an IP address.
func (r *relay) from(ip string) grpc.DialOption { return grpc.WithContextDialer(r.dialer(ip)) }

// raw opens a connection from an IP address that nothing is sent on.
func (r *relay) raw(ip string) net.Conn {
	r.t.Helper()
	c, err := r.dialer(ip)(r.t.Context(), r.addr)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { c.Close() })
	return c
}

// received is a message or the end of a stream.
type received[M any] struct {
	msg M
	err error
}

// client is a stream of an independent client: generated code and gRPC's own codec.
type stream[Req, Resp any] struct {
	t      *testing.T
	sendTo interface{ Send(Req) error }
	recvd  chan received[Resp]
	cancel context.CancelFunc
}

func newStream[Req, Resp any](t *testing.T, s interface {
	Send(Req) error
	Recv() (Resp, error)
}, cancel context.CancelFunc) *stream[Req, Resp] {
	st := &stream[Req, Resp]{t: t, sendTo: s, recvd: make(chan received[Resp], 4096), cancel: cancel}
	go func() {
		for {
			m, err := s.Recv()
			st.recvd <- received[Resp]{m, err}
			if err != nil {
				return
			}
		}
	}()
	t.Cleanup(cancel)
	return st
}

// send sends a request. It lets pass io.EOF of a stream that the server has ended: receiving
// returns the reason.
func (s *stream[Req, Resp]) send(req Req) {
	s.t.Helper()
	if err := s.sendTo.Send(req); err != nil && !errors.Is(err, io.EOF) {
		s.t.Fatalf("send: %v", err)
	}
}

// next returns the next message, which must come.
func (s *stream[Req, Resp]) next() Resp {
	s.t.Helper()
	r := await.Value(s.t, "a message", s.recvd)
	if r.err != nil {
		s.t.Fatalf("stream ended: %v", r.err)
	}
	return r.msg
}

// end returns the status with which the stream ends, skipping messages.
func (s *stream[Req, Resp]) end() error {
	s.t.Helper()
	for {
		if r := await.Value(s.t, "the end of the stream", s.recvd); r.err != nil {
			return r.err
		}
	}
}

type (
	sotwStream  = stream[*discoveryv3.DiscoveryRequest, *discoveryv3.DiscoveryResponse]
	deltaStream = stream[*discoveryv3.DeltaDiscoveryRequest, *discoveryv3.DeltaDiscoveryResponse]
)

func (r *relay) sotw(opts ...grpc.DialOption) *sotwStream {
	r.t.Helper()
	ctx, cancel := context.WithCancel(r.t.Context())
	s, err := r.dial(opts...).StreamAggregatedResources(ctx)
	if err != nil {
		r.t.Fatal(err)
	}
	return newStream(r.t, s, cancel)
}

func (r *relay) delta(opts ...grpc.DialOption) *deltaStream {
	r.t.Helper()
	ctx, cancel := context.WithCancel(r.t.Context())
	s, err := r.dial(opts...).DeltaAggregatedResources(ctx)
	if err != nil {
		r.t.Fatal(err)
	}
	return newStream(r.t, s, cancel)
}

func node(metadata ...string) *corev3.Node {
	fields := map[string]*structpb.Value{}
	for i := 0; i+1 < len(metadata); i += 2 {
		fields[metadata[i]] = structpb.NewStringValue(metadata[i+1])
	}
	return &corev3.Node{Id: "sidecar~10.0.0.1~istiod-1.istio-system~istio-system.svc.cluster.local", Metadata: &structpb.Struct{Fields: fields}}
}

func subscribe(typeURL string) *discoveryv3.DiscoveryRequest {
	return &discoveryv3.DiscoveryRequest{Node: node(), TypeUrl: typeURL}
}

func subscribeDelta(typeURL string) *discoveryv3.DeltaDiscoveryRequest {
	return &discoveryv3.DeltaDiscoveryRequest{Node: node(), TypeUrl: typeURL}
}

func ack(resp *discoveryv3.DiscoveryResponse) *discoveryv3.DiscoveryRequest {
	return &discoveryv3.DiscoveryRequest{TypeUrl: resp.TypeUrl, VersionInfo: resp.VersionInfo, ResponseNonce: resp.Nonce}
}

// names decodes a SotW response as istiod does and returns the resources' names.
func names(t *testing.T, resp *discoveryv3.DiscoveryResponse) string {
	t.Helper()
	var out []string
	for _, a := range resp.Resources {
		out = append(out, decode(t, a).GetMetadata().GetName())
	}
	return strings.Join(out, " ")
}

func decode(t *testing.T, a *anypb.Any) *mcp.Resource {
	t.Helper()
	m := &mcp.Resource{}
	if err := a.UnmarshalTo(m); err != nil {
		t.Fatal(err)
	}
	return m
}

// deltaNames returns the names of a delta response, those removed with a minus.
func deltaNames(resp *discoveryv3.DeltaDiscoveryResponse) string {
	var out []string
	for _, r := range resp.Resources {
		out = append(out, r.Name)
	}
	for _, n := range resp.RemovedResources {
		out = append(out, "-"+n)
	}
	return strings.Join(out, " ")
}

func wantCode(t *testing.T, err error, code codes.Code) {
	t.Helper()
	if status.Code(err) != code {
		t.Errorf("stream ended with %v, want %v", err, code)
	}
}

// wantRefused checks how often clients were refused for a reason.
func wantRefused(t *testing.T, r *relay, why refusal.Reason, times int) {
	t.Helper()
	r.eventually(t, fmt.Sprintf("refused %d times for %s", times, why), func() bool { return refusals(r, why) == times })
	if !slices.Contains(refusal.Reasons(), why) {
		t.Errorf("%s is not among all reasons", why)
	}
	if times > 0 {
		provoked.Store(why, true)
	}
}

// eventually waits for a condition of the relay that another goroutine brings about. Without it, the test
// fails, and tells of the relay's clients. The test holds no lock of the relay.
func (r *relay) eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	await.Until(t, what, cond, func() any {
		var refused []string
		for _, why := range refusal.Reasons() {
			if n := refusals(r, why); n > 0 {
				refused = append(refused, fmt.Sprint(why, " ", n))
			}
		}
		return fmt.Sprintf("%d connections, %d streams, clients %+v, refused %v", r.connections(), r.streams(), r.server.Clients(), refused)
	})
}

func meshConfig(domain string) *mesh.MeshConfig { return &mesh.MeshConfig{TrustDomain: domain} }

// refusals returns how often clients were refused for a reason.
func refusals(r *relay, why refusal.Reason) int {
	return int(testutil.ToFloat64(r.server.metrics.refusals.WithLabelValues(string(why))))
}

// acquire returns the view of a variant for a client that is counted for nobody.
func acquire(vs *viewSet, x views.Selection, protocol string) (*view, error) {
	return vs.acquire(context.Background(), x, viewer{delta: protocol == protocolDelta})
}

// lockedMove moves clients of views.
func lockedMove(vs *viewSet, moves []move, now time.Time) {
	vs.mu.Lock()
	defer vs.mu.Unlock()
	vs.move(moves, now)
}
