package xds

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"

	"meshrelay/adsclient"
	"meshrelay/federation/services"
	"meshrelay/internal/testing/await"
	"meshrelay/internal/testing/fakexds"
)

// follower runs endpoints against a fake istiod, and keeps what changed is told.
type follower struct {
	*endpoints
	t      *testing.T
	server *fakexds.Server
	warns  atomic.Int32
	mu     sync.Mutex
	told   [][]string
}

// known is what a test looks at of endpoints.
type known struct {
	Wanted, Answered, Missing, Bytes int
	LastError, LeftOut               string
	NACKs                            uint64
}

func (e *endpoints) status() known {
	st := e.describe()
	e.mu.Lock()
	defer e.mu.Unlock()
	return known{st.Clusters, st.Answered, st.Awaited, e.size, e.lastError, e.leftOut, st.NACKs}
}

// answered reports whether every wanted cluster is settled.
func (e *endpoints) answered() bool { return e.status().Missing == 0 }

// Known returns the endpoints of a cluster, and Settled whether nothing more is waited for.
func (e *endpoints) Known(cluster string) []services.Endpoint {
	a := e.told([]string{cluster})[cluster]
	if !a.Known {
		return nil
	}
	return append([]services.Endpoint{}, a.Endpoints.Unpack()...)
}

func (e *endpoints) Settled(cluster string) bool {
	_, settled := e.told([]string{cluster})[cluster]
	return settled
}

// warnings counts what is logged at warn level or above.
type warnings struct {
	slog.Handler
	n *atomic.Int32
}

func (w warnings) Enabled(context.Context, slog.Level) bool { return true }
func (w warnings) WithAttrs([]slog.Attr) slog.Handler       { return w }
func (w warnings) WithGroup(string) slog.Handler            { return w }
func (w warnings) Handle(_ context.Context, r slog.Record) error {
	if r.Level >= slog.LevelWarn {
		w.n.Add(1)
	}
	return nil
}

func follow(t *testing.T, s *fakexds.Server, patience time.Duration) *follower {
	t.Helper()
	f := &follower{t: t, server: s}
	e := newEndpoints(adsclient.Config{
		Addresses:   []string{s.Addr},
		Credentials: insecure.NewCredentials(),
		DialOptions: []grpc.DialOption{grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return s.Listener.(*bufconn.Listener).DialContext(ctx)
		})},
		Node: func() *corev3.Node {
			return adsclient.EndpointsNode(adsclient.NodeConfig{Name: "relay", Namespace: "istio-system", IP: "10.0.0.7"})
		},
		Logger: slog.New(warnings{n: &f.warns}),
	}, patience, func(names []string) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.told = append(f.told, names)
	})
	f.endpoints = e
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- e.run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("run: %v", err)
		}
	})
	return f
}

func (f *follower) wants(names ...string) {
	f.t.Helper()
	set := map[string]struct{}{}
	for _, n := range names {
		set[n] = struct{}{}
	}
	if err := f.want(set); err != nil {
		f.t.Error(err)
	}
}

// all returns what changed was told of so far, "a,b c": two calls.
func (f *follower) all() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var calls []string
	for _, names := range f.told {
		calls = append(calls, strings.Join(names, ","))
	}
	return strings.Join(calls, " ")
}

func (f *follower) await(what string, cond func() bool) {
	f.t.Helper()
	await.Until(f.t, what, cond, func() any { return fmt.Sprintf("told %q, %+v", f.all(), f.status()) })
}

func (f *follower) awaitTold(want string) {
	f.t.Helper()
	f.await("told "+want, func() bool { return f.all() == want })
}

func assignmentOf(cluster string, addresses ...string) *endpointv3.ClusterLoadAssignment {
	l := &endpointv3.LocalityLbEndpoints{}
	for _, a := range addresses {
		l.LbEndpoints = append(l.LbEndpoints, &endpointv3.LbEndpoint{
			HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{Address: &corev3.Address{Address: &corev3.Address_SocketAddress{
				SocketAddress: &corev3.SocketAddress{Address: a, PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: 8080}},
			}}}},
			Metadata: &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{"a": {}, "b": {}, "c": {}, "d": {}}},
		})
	}
	return &endpointv3.ClusterLoadAssignment{ClusterName: cluster, Endpoints: []*endpointv3.LocalityLbEndpoints{l}}
}

func edsOf(cluster string, addresses ...string) fakexds.Resource {
	return fakexds.Bare(cluster, assignmentOf(cluster, addresses...))
}

func TestAServerThatGivesNoEndpointAtAllIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := fakexds.Start(t, &fakexds.Server{Listener: bufconn.Listen(1 << 20)})
		s.Set(edsTypeURL, edsOf("a"), edsOf("b"))
		f := follow(t, s, time.Hour)
		if st := f.describe(); st.None != "" {
			t.Errorf("nothing is wanted: %s", st.None)
		}
		s.Withhold(edsTypeURL, true)
		f.wants("a", "b")
		s.Await("the request", func(r fakexds.Request) bool { return len(r.Names) == 2 })
		if st := f.describe(); st.None != "" {
			t.Errorf("they are awaited: %s", st.None)
		}
		s.Withhold(edsTypeURL, false)
		synctest.Wait() // the server may still be noting the request
		s.PushNames(edsTypeURL, "a", "b")
		f.awaitTold("a,b")
		if st := f.describe(); !strings.Contains(st.None, "any of 2 ports") || st.LastError != "" {
			t.Errorf("%+v", st)
		}
		s.Set(edsTypeURL, edsOf("a", "10.0.0.1"), edsOf("b"))
		s.PushNames(edsTypeURL, "a")
		f.awaitTold("a,b a")
		if st := f.describe(); st.None != "" {
			t.Errorf("there is one: %s", st.None)
		}
	})
}

func TestEndpointsAreFollowed_N2(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := fakexds.Start(t, &fakexds.Server{Listener: bufconn.Listen(1 << 20)})
		s.Set(edsTypeURL, edsOf("a", "10.0.0.1"), edsOf("b"), edsOf("c"))
		f := follow(t, s, time.Hour)
		if !f.answered() {
			t.Error("something is waited for though nothing is wanted")
		}
		s.Withhold(edsTypeURL, true)
		f.wants("a", "b")
		s.Await("the request", func(r fakexds.Request) bool { return len(r.Names) == 2 })
		if f.answered() || f.Settled("a") || f.Known("a") != nil {
			t.Error("an answer is known before there was one")
		}
		s.Withhold(edsTypeURL, false)
		synctest.Wait() // the server may still be noting the request
		s.PushNames(edsTypeURL, "a", "b")
		f.awaitTold("a,b")
		if !f.answered() || !f.Settled("a") || !reflect.DeepEqual(f.Known("a"), services.FromAssignment(assignmentOf("a", "10.0.0.1"))) || f.Known("b") == nil || f.Known("c") != nil {
			t.Errorf("a: %v, b: %v, c: %v", f.Known("a"), f.Known("b"), f.Known("c"))
		}
		// A partial answer changes nothing of the other clusters.
		s.Set(edsTypeURL, edsOf("a", "10.0.0.2"), edsOf("b"), edsOf("c"))
		s.PushNames(edsTypeURL, "a")
		f.awaitTold("a,b a")
		if f.Known("b") == nil || f.Known("a")[0].Addr.String() != "10.0.0.2" {
			t.Errorf("a: %v, b: %v", f.Known("a"), f.Known("b"))
		}
		if st := f.status(); st.Wanted != 2 || st.Answered != 2 || st.Missing != 0 || st.NACKs != 0 || st.Bytes == 0 {
			t.Errorf("status %+v", st)
		}
	})
}

func TestWhatIsNotWantedAnyMoreIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := fakexds.Start(t, &fakexds.Server{Listener: bufconn.Listen(1 << 20)})
		s.Set(edsTypeURL, edsOf("a", "10.0.0.1"), edsOf("b", "10.0.0.2"))
		f := follow(t, s, time.Hour)
		f.wants("a", "b")
		f.awaitTold("a,b")
		f.wants("b")
		s.Await("the request for b", func(r fakexds.Request) bool { return slices.Equal(r.Names, []string{"b"}) })
		// It may have been on its way.
		s.Send(&discoveryv3.DiscoveryResponse{TypeUrl: edsTypeURL, Nonce: "late", Resources: []*anypb.Any{edsOf("a", "10.0.0.9").Any}})
		s.Await("the ACK", func(r fakexds.Request) bool { return r.Nonce == "late" && !r.ErrorWasGiven })
		if f.Known("a") != nil || f.status().Wanted != 1 || f.all() != "a,b" {
			t.Errorf("a: %v, told %s", f.Known("a"), f.all())
		}
		f.wants()
		f.take(time.Now().Add(2 * forgetAfter))
		if st := f.status(); st.Bytes != 0 || st.Wanted != 0 {
			t.Errorf("status %+v", st)
		}
	})
}

// TestWhatIsWantedAgainIsKnown: a server answers only names that are new to it, and it may
// not have taken note that a name was not wanted for a moment.
func TestWhatIsWantedAgainIsKnown_N2(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := fakexds.Start(t, &fakexds.Server{Listener: bufconn.Listen(1 << 20)})
		s.Set(edsTypeURL, edsOf("a", "10.0.0.1"), edsOf("b", "10.0.0.2"), edsOf("c", "10.0.0.3"))
		f := follow(t, s, time.Hour)
		f.wants("a", "b")
		f.awaitTold("a,b")
		for i := range 50 {
			f.wants("b")
			s.PushNames(edsTypeURL, "b")
			f.wants()
			if i%2 == 0 {
				runtime.Gosched() // now and then the stream notices
			}
			f.wants("c", "a")
			s.PushNames(edsTypeURL, "a", "c")
			f.wants("b", "c", "a")
			f.await("all known", func() bool { return f.Known("a") != nil && f.Known("b") != nil && f.Known("c") != nil })
		}
		// Changes during the break are known, too.
		f.wants("a")
		// From then on nothing else is on its way.
		s.Await("a alone is asked for", func(r fakexds.Request) bool { return slices.Equal(r.Names, []string{"a"}) })
		s.Send(&discoveryv3.DiscoveryResponse{TypeUrl: edsTypeURL, Nonce: "crossing", Resources: []*anypb.Any{edsOf("b", "10.0.0.9").Any}})
		f.await("b is known anew", func() bool {
			f.endpoints.mu.Lock()
			defer f.endpoints.mu.Unlock()
			b := f.clusters["b"]
			return b != nil && !b.wanted && b.endpoints == services.Pack(services.FromAssignment(assignmentOf("b", "10.0.0.9")))
		})
		s.Set(edsTypeURL)
		f.wants("a", "b")
		if !reflect.DeepEqual(f.Known("b"), services.FromAssignment(assignmentOf("b", "10.0.0.9"))) {
			t.Errorf("b: %v", f.Known("b"))
		}
	})
}

func TestTheSameWantIsNotAskedForAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := fakexds.Start(t, &fakexds.Server{Listener: bufconn.Listen(1 << 20)})
		s.Set(edsTypeURL, edsOf("a"))
		f := follow(t, s, time.Hour)
		f.wants("a")
		f.awaitTold("a")
		s.Await("the ACK", func(r fakexds.Request) bool { return r.Nonce == "1" })
		n := len(s.Requests())
		for range 10 {
			f.wants("a")
		}
		f.wants("a", "b")
		s.Await("another want", func(r fakexds.Request) bool { return slices.Contains(r.Names, "b") })
		if next := s.Requests()[n]; !slices.Contains(next.Names, "b") {
			t.Errorf("the next request is for %v", next.Names)
		}
	})
}

func TestOnlyOtherContentIsAChange_C5(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := fakexds.Start(t, &fakexds.Server{Listener: bufconn.Listen(1 << 20)})
		s.Set(edsTypeURL, edsOf("a", "10.0.0.1"))
		f := follow(t, s, time.Hour)
		f.wants("a")
		f.awaitTold("a")
		for i := range 20 {
			// Maps are encoded in random order, and the version is another each time.
			value, err := proto.Marshal(assignmentOf("a", "10.0.0.1"))
			if err != nil {
				t.Fatal(err)
			}
			nonce := fmt.Sprint("n", i)
			s.Send(&discoveryv3.DiscoveryResponse{TypeUrl: edsTypeURL, Nonce: nonce, VersionInfo: nonce, Resources: []*anypb.Any{{TypeUrl: edsTypeURL, Value: value}}})
		}
		s.Await("the last ACK", func(r fakexds.Request) bool { return r.Nonce == "n19" })
		if f.all() != "a" {
			t.Errorf("told %s", f.all())
		}
	})
}

func TestEndpointsStayKnownThroughDisconnects_C16(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := fakexds.Start(t, &fakexds.Server{Listener: bufconn.Listen(1 << 20)})
		s.Set(edsTypeURL, edsOf("a", "10.0.0.1"), edsOf("b", "10.0.0.2"))
		f := follow(t, s, time.Hour)
		f.wants("a", "b")
		f.awaitTold("a,b")
		s.Fail(status.Error(codes.Unavailable, "not ready"))
		s.End(status.Error(codes.Unavailable, "max age"))
		f.await("disconnected", func() bool { return f.status().LastError != "" })
		if f.Known("a") == nil || !f.answered() {
			t.Error("the end of a stream made endpoints unknown")
		}
		s.Set(edsTypeURL, edsOf("a", "10.0.0.1"), edsOf("b", "10.0.0.3"))
		s.Fail(nil)
		f.awaitTold("a,b b")
		if st := f.status(); st.LastError != "" {
			t.Errorf("status %+v", st)
		}
	})
}

func TestPatienceForTheFirstAnswerEnds_C21(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := fakexds.Start(t, &fakexds.Server{Listener: bufconn.Listen(1 << 20)})
		s.Set(edsTypeURL, edsOf("a", "10.0.0.1"))
		f := follow(t, s, endpointsPatience)
		f.wants("a", "b")
		f.awaitTold("a")
		if f.answered() || f.Settled("b") || !f.Settled("a") {
			t.Error("b is not waited for")
		}
		f.awaitTold("a b")
		if !f.answered() || f.Known("b") != nil || f.warns.Load() == 0 {
			t.Errorf("b: %v, %d warnings", f.Known("b"), f.warns.Load())
		}
		// A late answer still counts.
		s.Set(edsTypeURL, edsOf("a", "10.0.0.1"), edsOf("b", "10.0.0.2"))
		s.PushNames(edsTypeURL, "b")
		f.awaitTold("a b b")
	})
}

func TestBadAssignmentsAreRefusedAndTheGoodOnesTaken_C7(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := fakexds.Start(t, &fakexds.Server{Listener: bufconn.Listen(1 << 20)})
		s.Set(edsTypeURL, edsOf("a", "10.0.0.1"), edsOf("b", "10.0.0.2"))
		f := follow(t, s, time.Hour)
		f.wants("a", "b")
		f.awaitTold("a,b")
		bad := &anypb.Any{TypeUrl: edsTypeURL, Value: append([]byte("\x0a\x01a\x12\x01"), 0xff)}
		other := &anypb.Any{TypeUrl: "type.googleapis.com/envoy.config.cluster.v3.Cluster", Value: []byte("\x0a\x01a")}
		nameless := &anypb.Any{TypeUrl: edsTypeURL}
		s.Send(&discoveryv3.DiscoveryResponse{TypeUrl: edsTypeURL, Nonce: "bad", Resources: []*anypb.Any{bad, other, nameless, edsOf("b", "10.0.0.3").Any}})
		nack := s.Await("a NACK", func(r fakexds.Request) bool { return r.ErrorWasGiven })
		for _, want := range []string{"a: ", "the element is not an envoy.config", "no name"} {
			if !strings.Contains(nack.Error, want) {
				t.Errorf("NACK %q does not say %q", nack.Error, want)
			}
		}
		f.awaitTold("a,b b")
		if !reflect.DeepEqual(f.Known("a"), services.FromAssignment(assignmentOf("a", "10.0.0.1"))) || f.status().NACKs != 1 {
			t.Errorf("a: %v, %+v", f.Known("a"), f.status())
		}
		s.Send(&discoveryv3.DiscoveryResponse{TypeUrl: "networking.istio.io/v1/ServiceEntry", Nonce: "other"})
		f.await("another NACK", func() bool { return f.status().NACKs == 2 })
	})
}

func TestEndpointsAreBounded(t *testing.T) {
	e := newEndpoints(adsclient.Config{Addresses: []string{"x:1"}, Credentials: insecure.NewCredentials(), Node: func() *corev3.Node { return nil }, Logger: slog.New(slog.DiscardHandler)}, endpointsPatience, func([]string) {})
	many := map[string]struct{}{"*": {}}
	for i := range 60000 {
		many[fmt.Sprintf("outbound|8080||service-of-some-length-%06d.team.svc.cluster.local", i)] = struct{}{}
	}
	if err := e.want(many); err == nil || !strings.Contains(err.Error(), "names are left out") || e.status().LeftOut != err.Error() {
		t.Errorf("error %v", err)
	}
	if n := e.status().Wanted; n == 0 || n >= len(many) {
		t.Errorf("%d wanted", n)
	}
	if !e.Settled("*") {
		t.Error("what is not asked for is waited for")
	}
	if err := e.want(map[string]struct{}{"a": {}}); err != nil || e.status().LeftOut != "" {
		t.Errorf("error %v, %+v", err, e.status())
	}
	value, err := proto.Marshal(&endpointv3.ClusterLoadAssignment{ClusterName: "a", Policy: &endpointv3.ClusterLoadAssignment_Policy{}, Endpoints: []*endpointv3.LocalityLbEndpoints{{Locality: &corev3.Locality{Region: strings.Repeat("x", maxAssignment)}}}})
	if err != nil {
		t.Fatal(err)
	}
	a := &assignment{wanted: true}
	if _, err := e.assign(a, value, len(value)); err == nil || a.answered {
		t.Errorf("an assignment of %d bytes is taken: %v", len(value), err)
	}
	e.size = maxAssignments
	if value, err = proto.Marshal(assignmentOf("a", "10.0.0.1")); err != nil {
		t.Fatal(err)
	}
	if _, err := e.assign(a, value, len(value)); err == nil || !strings.Contains(err.Error(), "together") {
		t.Errorf("error %v", err)
	}
}

// BenchmarkEndpointsUnchanged is a full push of 10,000 clusters in which nothing differs.
func BenchmarkEndpointsUnchanged(b *testing.B) {
	e := newEndpoints(adsclient.Config{Addresses: []string{"x:1"}, Credentials: insecure.NewCredentials(), Node: func() *corev3.Node { return nil }, Logger: slog.New(slog.DiscardHandler)}, endpointsPatience, func([]string) {})
	names := map[string]struct{}{}
	resp := &discoveryv3.DiscoveryResponse{TypeUrl: edsTypeURL, Nonce: "n"}
	for i := range 10000 {
		name := fmt.Sprintf("outbound|8080||service-%05d.team.svc.cluster.local", i)
		names[name] = struct{}{}
		value, err := proto.MarshalOptions{Deterministic: true}.Marshal(assignmentOf(name, "10.0.0.1", "10.0.0.2"))
		if err != nil {
			b.Fatal(err)
		}
		resp.Resources = append(resp.Resources, &anypb.Any{TypeUrl: edsTypeURL, Value: value})
	}
	data, err := proto.Marshal(resp)
	if err != nil {
		b.Fatal(err)
	}
	if err := e.want(names); err != nil {
		b.Fatal(err)
	}
	read := func() {
		r, err := adsclient.Parse(mem.BufferSlice{mem.SliceBuffer(data)}, false)
		if err == nil {
			err = e.HandleResponse(r)
		}
		if err != nil {
			b.Fatal(err)
		}
	}
	read()
	b.ReportAllocs()
	for b.Loop() {
		read()
	}
}

func FuzzSplitAssignment(f *testing.F) {
	value, err := proto.Marshal(edsOf("a", "10.0.0.1").Any)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(value)
	f.Fuzz(func(t *testing.T, data []byte) {
		name, value, err := splitAssignment(data)
		element := &anypb.Any{}
		cla := &endpointv3.ClusterLoadAssignment{}
		if err != nil || proto.Unmarshal(data, element) != nil || proto.Unmarshal(value, cla) != nil {
			return
		}
		if cla.ClusterName != string(name) || string(element.Value) != string(value) {
			t.Errorf("name %q, value %x; protobuf says %q, %x", name, value, cla.ClusterName, element.Value)
		}
	})
}
