package adsclient

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"meshrelay/internal/testing/await"
	"meshrelay/internal/testing/fakexds"
)

const edsURL = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"

// wanted are the names that a client asks for.
type wanted struct {
	mu     sync.Mutex
	names  map[string][]string
	client *Client
}

func (w *wanted) get(typeURL string) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.names[typeURL]
}

func (w *wanted) set(typeURL string, names ...string) {
	w.mu.Lock()
	w.names[typeURL] = names
	w.mu.Unlock()
	w.client.Resubscribe()
}

// startNamed starts a client of endpoints by name.
func startNamed(t *testing.T, h Handler, s *fakexds.Server, change func(*Config), names ...string) *wanted {
	t.Helper()
	w := &wanted{names: map[string][]string{edsURL: names}}
	cfg := Config{
		Addresses: []string{s.Addr}, Protocol: SotW, Node: testNode, Names: w.get,
		TypeURLs:    func(bool) []string { return []string{edsURL} },
		Credentials: insecure.NewCredentials(),
		MinBackoff:  time.Millisecond, MaxBackoff: 20 * time.Millisecond,
	}
	if h, ok := h.(*recorder); ok {
		cfg.onSync = h.syncedWith
	}
	if change != nil {
		change(&cfg)
	}
	c := New(cfg, h)
	w.client = c
	runClient(t, c)
	return w
}

func cluster(name string) fakexds.Resource {
	return fakexds.Bare(name, &endpointv3.ClusterLoadAssignment{ClusterName: name})
}

func asks(names ...string) func(fakexds.Request) bool {
	return func(r fakexds.Request) bool { return slices.Equal(r.Names, names) }
}

func TestNamesAreAskedForAndAnswersAreParts_N2(t *testing.T) {
	s := fakexds.Start(t, &fakexds.Server{})
	s.Set(edsURL, cluster("a"), cluster("b"), cluster("c"))
	h := newRecorder()
	startNamed(t, h, s, nil, "b", "a", "b")
	h.awaitResponses(t, 1)
	req := s.Await("the names, sorted and once each", asks("a", "b"))
	if req.Node == nil || req.Nonce != "" || req.Version != "" {
		t.Errorf("the first request is %+v", req)
	}
	s.PushNames(edsURL, "b")
	h.awaitResponses(t, 2)
	ack := s.Await("the second ACK, with the names", func(r fakexds.Request) bool { return r.Nonce == "2" && slices.Equal(r.Names, []string{"a", "b"}) })
	if ack.Version != "v2" || ack.Node != nil {
		t.Errorf("ACK %+v", ack)
	}
	if slices.Contains(h.complete, true) {
		t.Errorf("an answer to names is taken for everything: %v", h.complete)
	}
}

func TestOtherNamesAreAskedForOnTheSameStream_S7(t *testing.T) {
	s := fakexds.Start(t, &fakexds.Server{})
	s.Set(edsURL, cluster("a"), cluster("b"))
	h := newRecorder()
	w := startNamed(t, h, s, nil, "a")
	s.Await("the first ACK", func(r fakexds.Request) bool { return r.Nonce == "1" })
	w.set(edsURL, "a", "b")
	req := s.Await("both names", asks("a", "b"))
	if req.Nonce != "1" || req.Version != "v1" || req.Stream != 1 {
		t.Errorf("asked by %+v; want the last nonce and version", req)
	}
	h.awaitResponses(t, 2)
	w.set(edsURL, "b")
	s.Await("one name", asks("b"))
	if n := s.Streams(); n != 1 {
		t.Errorf("%d streams", n)
	}
}

func TestNothingIsOpenedWithoutNames_S16(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newRecorder()
		w := &wanted{names: map[string][]string{}}
		w.client = newClient(t, h, func(c *Config) {
			c.Protocol, c.Names = SotW, w.get
			c.DialOptions = append(c.DialOptions, countingDialer(func(string) { t.Error("a connection is opened") }))
		}, "127.0.0.1:1", "127.0.0.1:2")
		runClient(t, w.client)
		for _, names := range [][]string{nil, {"*"}, {""}} {
			w.set(edsURL, names...)
			synctest.Wait() // nothing can go on by itself
			await.Pass(time.Hour)
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		if len(h.states) != 0 {
			t.Errorf("states %v", h.states)
		}
	})
}

func TestNoNamesAskForNothing_S16(t *testing.T) {
	s := fakexds.Start(t, &fakexds.Server{})
	s.Set(edsURL, cluster("a"))
	h := newRecorder()
	w := startNamed(t, h, s, nil)
	w.set(edsURL, "*", "", "a")
	s.Await("the name that is one", asks("a"))
	h.awaitResponses(t, 1)
	// Once names were sent, none say that nothing is wanted any more.
	w.set(edsURL)
	s.Await("the end of the subscription", asks())
	w.set(edsURL, "a")
	h.awaitResponses(t, 2)
	none := 0
	for _, r := range s.Requests() {
		if len(r.Names) == 0 {
			if none++; r.Nonce == "" {
				t.Errorf("a request without names or nonce asks for everything: %+v", r)
			}
		}
		if slices.Contains(r.Names, "*") || slices.Contains(r.Names, "") {
			t.Errorf("asked for %q", r.Names)
		}
	}
	if none != 1 {
		t.Errorf("%d requests without names", none)
	}
}

// TestTheEndOfASubscriptionWaitsForANonce_S16: without a nonce, no names ask for everything.
func TestTheEndOfASubscriptionWaitsForANonce_S16(t *testing.T) {
	s := fakexds.Start(t, &fakexds.Server{})
	s.Set(edsURL, cluster("a"))
	s.Withhold(edsURL, true)
	var read sync.Once
	none := make(chan struct{})
	w := startNamed(t, newRecorder(), s, func(c *Config) {
		names := c.Names
		c.Names = func(typeURL string) []string {
			now := names(typeURL)
			if len(now) == 0 {
				read.Do(func() { close(none) })
			}
			return now
		}
	}, "a")
	s.Await("the name", asks("a"))
	w.set(edsURL)
	await.Closed(t, "the names are asked for again", none)
	s.Push(edsURL) // the first answer, with a nonce
	if end := s.Await("the end of the subscription", asks()); end.Nonce == "" {
		t.Errorf("a request without names or nonce asks for everything: %+v", end)
	}
}

func TestATypeWithoutNamesLeavesTheNodeToTheNext_C2(t *testing.T) {
	s := fakexds.Start(t, &fakexds.Server{})
	s.Set(vsURL, cluster("x"))
	h := newRecorder()
	w := startNamed(t, h, s, func(c *Config) { c.TypeURLs = func(bool) []string { return []string{edsURL, vsURL} } })
	w.set(vsURL, "x")
	h.awaitResponses(t, 1)
	if first := s.Requests()[0]; first.TypeURL != vsURL || first.Node == nil {
		t.Errorf("first request %+v", first)
	}
	w.set(edsURL, "a")
	if req := s.Await("the other type", asks("a")); req.Node != nil || req.Nonce != "" {
		t.Errorf("asked by %+v", req)
	}
}

func TestAllNamesAreAskedForAgainOnReconnect_C16(t *testing.T) {
	s := fakexds.Start(t, &fakexds.Server{})
	s.Set(edsURL, cluster("a"), cluster("b"))
	h := newRecorder()
	w := startNamed(t, h, s, nil, "a")
	h.awaitResponses(t, 1)
	w.set(edsURL, "a", "b")
	h.awaitResponses(t, 2)
	s.End(status.Error(codes.Unavailable, "max age"))
	req := s.Await("the second stream", func(r fakexds.Request) bool { return r.Stream == 2 })
	if !slices.Equal(req.Names, []string{"a", "b"}) || req.Node == nil || req.Nonce != "" {
		t.Errorf("asked again by %+v", req)
	}
}

// TestNamesThatCrossAResponseAreNotLost: the server ignores a request with the nonce of
// an earlier response, so the ACK of the later one has to say the new names.
func TestNamesThatCrossAResponseAreNotLost_C6(t *testing.T) {
	s := fakexds.Start(t, &fakexds.Server{})
	s.Set(edsURL, cluster("a"), cluster("b"), cluster("c"))
	h := newRecorder()
	w := startNamed(t, h, s, nil, "a")
	h.awaitResponses(t, 1)
	last := "a"
	for i := range 50 {
		last = fmt.Sprintf("n%d", i)
		w.set(edsURL, "a", last)
		s.PushNames(edsURL, "a")
	}
	w.set(edsURL, "a", "c")
	h.await(t, "an answer with what was named last, "+last, func() bool { return len(h.responses) > 0 && s.Asked(edsURL, "c") })
}

func TestResyncAsksForTheNamesAgain_C4(t *testing.T) {
	s := fakexds.Start(t, &fakexds.Server{})
	s.Set(edsURL, cluster("a"))
	h := newRecorder()
	startNamed(t, h, s, func(c *Config) { c.ResyncInterval = 20 * time.Millisecond }, "a")
	n := 0
	s.Await("three requests without a nonce", func(r fakexds.Request) bool {
		if r.Nonce == "" && slices.Equal(r.Names, []string{"a"}) {
			n++
		}
		return n == 3
	})
	h.awaitResponses(t, 3)
}

func TestARejectionOfNamedResourcesCarriesTheNames_C7(t *testing.T) {
	s := fakexds.Start(t, &fakexds.Server{})
	s.Set(edsURL, cluster("a"))
	h := newRecorder()
	h.reject = func(*Response) error { return errors.New("cluster a: does not decode") }
	startNamed(t, h, s, nil, "a")
	nack := s.Await("a NACK", func(r fakexds.Request) bool { return r.ErrorWasGiven })
	if nack.Error != "cluster a: does not decode" || nack.Version != "" || nack.Nonce != "1" || !slices.Equal(nack.Names, []string{"a"}) {
		t.Errorf("NACK %+v", nack)
	}
}

func TestWhatWasNotAskedForIsNotAcknowledgedWithoutNames_S16(t *testing.T) {
	s := fakexds.Start(t, &fakexds.Server{})
	s.Set(edsURL, cluster("a"))
	h := newRecorder()
	startNamed(t, h, s, nil, "a")
	h.awaitResponses(t, 1)
	s.Send(&discoveryv3.DiscoveryResponse{TypeUrl: seURL, Nonce: "unasked"})
	s.Send(&discoveryv3.DiscoveryResponse{TypeUrl: edsURL, Nonce: "last", VersionInfo: "x"})
	s.Await("the last ACK", func(r fakexds.Request) bool { return r.Nonce == "last" })
	for _, r := range s.Requests() {
		if r.TypeURL == seURL {
			t.Errorf("request %+v", r)
		}
	}
}

func TestNamesThatAreTooManyAreLeftOutAloud_C15(t *testing.T) {
	var names []string
	for i := range 10000 {
		names = append(names, fmt.Sprintf("outbound|8080||service-of-some-length-%05d.team.svc.cluster.local", i))
	}
	if fit, err := FitNames(names); err != nil || len(fit) != len(names) {
		t.Fatalf("%d of %d names fit: %v", len(fit), len(names), err)
	}
	for i := range 100000 {
		names = append(names, fmt.Sprintf("outbound|8080||other-of-some-length-%06d.team.svc.cluster.local", i))
	}
	slices.Reverse(names)
	fit, err := FitNames(append(names, "*", "\xff"))
	if err == nil || !strings.Contains(err.Error(), "of 110000 names are left out: a request has room for") || !strings.Contains(err.Error(), "2 names are left out") {
		t.Fatalf("error %v", err)
	}
	if !slices.IsSorted(fit) || len(mustMarshal(t, &discoveryv3.DiscoveryRequest{ResourceNames: fit, Node: testNode(), TypeUrl: edsURL})) > maxRequestBytes {
		t.Errorf("%d names do not fit a request", len(fit))
	}
	s := fakexds.Start(t, &fakexds.Server{Options: []grpc.ServerOption{grpc.MaxRecvMsgSize(4 << 20)}})
	h := newRecorder()
	startNamed(t, h, s, nil, names...)
	h.awaitResponses(t, 1)
	if n := len(s.Requests()[0].Names); n != len(fit) {
		t.Errorf("%d names were asked for, want %d", n, len(fit))
	}
}

func TestTheNodeForEndpointsSpeaksForItsConsumers(t *testing.T) {
	n := EndpointsNode(NodeConfig{Name: "relay-1", Namespace: "istio-system", IP: "10.0.0.7", ClusterID: "west", Network: "net-west"})
	if want := "waypoint~10.0.0.7~relay-1.istio-system~istio-system.svc.cluster.local"; n.Id != want {
		t.Errorf("id %q, want %q", n.Id, want)
	}
	want := map[string]string{"NAMESPACE": "istio-system", "CLUSTER_ID": "west", "NETWORK": "net-west", "ISTIO_VERSION": istioVersion, "DISABLE_HBONE_SEND": "true"}
	if len(n.Metadata.Fields) != len(want) {
		t.Errorf("metadata %v", n.Metadata)
	}
	for k, v := range want {
		if got := n.Metadata.Fields[k].GetStringValue(); got != v {
			t.Errorf("%s is %q, want %q", k, got, v)
		}
	}
	if n := EndpointsNode(NodeConfig{Name: "relay-1", Namespace: "x", IP: "10.0.0.7"}); len(n.Metadata.Fields) != 3 {
		t.Errorf("metadata of unknown cluster and network: %v", n.Metadata)
	}
}
