package adsclient

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
	networking "istio.io/api/networking/v1alpha3"

	"meshrelay/internal/panics"
	"meshrelay/internal/testing/await"
	"meshrelay/internal/testing/fakexds"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	meshURL = "core/v1alpha1/MeshConfig"
	seURL   = "networking.istio.io/v1/ServiceEntry"
	vsURL   = "networking.istio.io/v1/VirtualService"
)

// recorder is a Handler that keeps what it is told.
type recorder struct {
	mu        sync.Mutex
	responses []string // "typeURL name name -removed"
	complete  []bool
	relist    []bool
	part      []bool
	states    []State
	held      map[string]map[string]string
	synced    string // the address whose stream has an answer for every type
	reject    func(*Response) error
}

func newRecorder() *recorder { return &recorder{} }

func (h *recorder) HandleResponse(r *Response) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	parts := []string{r.TypeURL}
	for raw := range r.Resources(0) {
		if r.Delta {
			parts = append(parts, string(raw.Name))
		} else {
			parts = append(parts, fmt.Sprintf("%d bytes", len(raw.Any)))
		}
	}
	for n := range r.Removed() {
		parts = append(parts, "-"+string(n))
	}
	h.responses = append(h.responses, strings.Join(parts, " "))
	h.complete = append(h.complete, r.Complete)
	h.relist = append(h.relist, r.Relist)
	h.part = append(h.part, r.Part)
	if h.reject != nil {
		return h.reject(r)
	}
	return nil
}

func (h *recorder) ResumeVersions(typeURL string) map[string]string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.held[typeURL]
}

func (h *recorder) HandleState(s State) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.states = append(h.states, s)
	if s.Phase == Disconnected || s.Phase == Denied {
		h.synced = ""
	}
}

// syncedWith is Config.onSync.
func (h *recorder) syncedWith(address string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.synced = address
}

// await waits until cond, which is called with the recorder locked.
func (h *recorder) await(t *testing.T, what string, cond func() bool, seen ...func() any) {
	t.Helper()
	await.Until(t, what, func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		return cond()
	}, append(seen, func() any {
		h.mu.Lock()
		defer h.mu.Unlock()
		return fmt.Sprintf("responses %.200q, states %v", h.responses, h.states)
	})...)
}

// last returns the newest state; the recorder is locked.
func (h *recorder) last() State {
	if len(h.states) == 0 {
		return State{}
	}
	return h.states[len(h.states)-1]
}

func (h *recorder) awaitResponses(t *testing.T, n int) {
	t.Helper()
	h.await(t, fmt.Sprintf("%d responses", n), func() bool { return len(h.responses) >= n })
}

func testNode() *corev3.Node {
	return Node(NodeConfig{Name: "relay-1", Namespace: "istio-system", IP: "10.0.0.7", ClusterID: "east", Revision: "blue"})
}

func start(t *testing.T, h Handler, change func(*Config), addresses ...string) *Client {
	t.Helper()
	c := newClient(t, h, change, addresses...)
	runClient(t, c)
	return c
}

func newClient(t *testing.T, h Handler, change func(*Config), addresses ...string) *Client {
	t.Helper()
	cfg := Config{
		Addresses: addresses, Protocol: Auto, Node: testNode,
		TypeURLs:    func(bool) []string { return []string{meshURL, seURL, vsURL} },
		Credentials: insecure.NewCredentials(),
		MinBackoff:  time.Millisecond, MaxBackoff: 20 * time.Millisecond, DeniedBackoff: 20 * time.Millisecond,
	}
	if h, ok := h.(*recorder); ok {
		cfg.onSync = h.syncedWith
	}
	if change != nil {
		change(&cfg)
	}
	c := New(cfg, h)
	return c
}

// runClient runs a client until the end of the test.
func runClient(t *testing.T, c *Client) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}

func sotw(c *Config)  { c.Protocol = SotW }
func delta(c *Config) { c.Protocol = Delta }

func entry(name string) fakexds.Resource {
	return fakexds.MCP(name, &networking.ServiceEntry{Hosts: []string{"db.example"}})
}

func TestNodeIsWhatIstiodExpects_C2_C3_C12(t *testing.T) {
	n := testNode()
	if want := "waypoint~10.0.0.7~relay-1.istio-system~istio-system.svc.cluster.local"; n.Id != want {
		t.Errorf("id %q, want %q", n.Id, want)
	}
	want := map[string]string{"GENERATOR": "api", "NAMESPACE": "istio-system", "CLUSTER_ID": "east", "ISTIO_VERSION": istioVersion, "ISTIO_REVISION": "blue", "RELAY_CLUSTER_ID": ""}
	if len(n.Metadata.Fields) != len(want) {
		t.Errorf("metadata %v", n.Metadata)
	}
	for k, v := range want {
		if got := n.Metadata.Fields[k].GetStringValue(); got != v {
			t.Errorf("%s is %q, want %q", k, got, v)
		}
	}
}

func TestFirstRequestAloneCarriesTheNode_C2(t *testing.T) {
	s := fakexds.Start(t, &fakexds.Server{})
	h := newRecorder()
	start(t, h, sotw, s.Addr)
	h.awaitResponses(t, 3)
	for i, r := range s.Requests() {
		if (r.Node != nil) != (i == 0) {
			t.Errorf("request %d: node %v", i, r.Node)
		}
	}
}

func TestEveryResponseIsAcknowledgedOnce_C6(t *testing.T) {
	s := fakexds.Start(t, &fakexds.Server{})
	h := newRecorder()
	start(t, h, sotw, s.Addr)
	h.awaitResponses(t, 3)
	for range 5 {
		s.Push(seURL)
	}
	h.awaitResponses(t, 8)
	// A response without a nonce is not acknowledged: an empty one asks again.
	s.Send(&discoveryv3.DiscoveryResponse{TypeUrl: seURL, VersionInfo: "x"})
	s.Send(&discoveryv3.DiscoveryResponse{TypeUrl: vsURL, VersionInfo: "x", Nonce: "last"})
	s.Await("the last ACK", func(r fakexds.Request) bool { return r.Nonce == "last" })
	acks := map[string]int{}
	empty := 0
	for _, r := range s.Requests() {
		if r.Nonce == "" {
			empty++
			continue
		}
		acks[r.Nonce]++
		if r.Version == "" {
			t.Errorf("ACK of %s has no version", r.Nonce)
		}
	}
	if empty != 3 || len(acks) != 9 {
		t.Errorf("%d requests without a nonce and ACKs of %v; want the 3 subscriptions and 9 ACKs", empty, acks)
	}
	for nonce, n := range acks {
		if n != 1 {
			t.Errorf("nonce %s acknowledged %d times", nonce, n)
		}
	}
}

func TestRejectionCarriesTheReasonAndTheLastGoodVersion_C7(t *testing.T) {
	s := fakexds.Start(t, &fakexds.Server{})
	h := newRecorder()
	start(t, h, sotw, s.Addr)
	h.awaitResponses(t, 3)
	s.Send(&discoveryv3.DiscoveryResponse{TypeUrl: seURL, VersionInfo: "good", Nonce: "good"})
	h.awaitResponses(t, 4)
	h.mu.Lock()
	h.reject = func(*Response) error { return errors.New("team-a/db: body does not decode") }
	h.mu.Unlock()
	s.Send(&discoveryv3.DiscoveryResponse{TypeUrl: seURL, VersionInfo: "bad", Nonce: "bad"})
	nack := s.Await("a NACK", func(r fakexds.Request) bool { return r.ErrorWasGiven })
	if nack.Nonce != "bad" || nack.Version != "good" || nack.Error != "team-a/db: body does not decode" {
		t.Errorf("NACK %+v", nack)
	}
}

func TestRequestsFollowTheGivenOrder_C13(t *testing.T) {
	s := fakexds.Start(t, &fakexds.Server{})
	h := newRecorder()
	start(t, h, sotw, s.Addr)
	h.awaitResponses(t, 3)
	var order []string
	for _, r := range s.Requests() {
		if r.Nonce == "" {
			order = append(order, r.TypeURL)
		}
	}
	if got := strings.Join(order, " "); got != meshURL+" "+seURL+" "+vsURL {
		t.Errorf("asked for %s", got)
	}
}

func TestResyncAsksForEverythingAgain_C4(t *testing.T) {
	s := fakexds.Start(t, &fakexds.Server{})
	h := newRecorder()
	start(t, h, func(c *Config) { c.Protocol = SotW; c.ResyncInterval = 20 * time.Millisecond }, s.Addr)
	for _, url := range []string{meshURL, seURL, vsURL} {
		n := 0
		s.Await("three requests for "+url+" without a nonce", func(r fakexds.Request) bool {
			if r.TypeURL == url && r.Nonce == "" {
				n++
			}
			return n == 3
		})
	}
}

func TestAutoUsesSotWTowardsIstiodAndDeltaTowardsRelays_C14(t *testing.T) {
	for _, tc := range []struct {
		name   string
		server *fakexds.Server
		delta  bool
	}{
		{"istiod", &fakexds.Server{}, false},
		{"relay", &fakexds.Server{Relay: true}, true},
		{"no delta", &fakexds.Server{NoDelta: true}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := fakexds.Start(t, tc.server)
			h := newRecorder()
			start(t, h, nil, s.Addr)
			req := s.Await("a request for ServiceEntries", func(r fakexds.Request) bool { return r.TypeURL == seURL })
			if req.Delta != tc.delta {
				t.Errorf("delta is %v", req.Delta)
			}
			h.await(t, "connected", func() bool { return h.last().Phase == Connected })
			if st := h.last(); st.Relay != tc.server.Relay {
				t.Errorf("state %+v", st)
			}
		})
	}
}

func TestRelayIsKnownAsOneOnASotWStreamToo(t *testing.T) {
	for _, relay := range []bool{true, false} {
		s := fakexds.Start(t, &fakexds.Server{Relay: relay})
		h := newRecorder()
		start(t, h, func(c *Config) { c.Protocol = SotW }, s.Addr)
		h.await(t, "connected", func() bool { return h.last().Phase == Connected })
		if st := h.last(); st.Relay != relay {
			t.Errorf("state %+v", st)
		}
	}
}

func TestDeltaResumesWithWhatIsHeld_C14(t *testing.T) {
	s := fakexds.Start(t, &fakexds.Server{Relay: true})
	s.Set(seURL, entry("shop/a").WithVersion("1"), entry("shop/b").WithVersion("2"))
	h := newRecorder()
	h.held = map[string]map[string]string{seURL: {"shop/a": "1", "shop/b": "old", "shop/gone": "3"}}
	start(t, h, delta, s.Addr)
	h.await(t, "the difference", func() bool {
		for _, r := range h.responses {
			if r == seURL+" shop/b -shop/gone" {
				return true
			}
		}
		return false
	})
	req := s.Await("the subscription", func(r fakexds.Request) bool { return r.TypeURL == seURL })
	if len(req.Names) != 0 {
		t.Errorf("subscribed by name: %v; a wildcard alone learns of all deletions", req.Names)
	}
}

// TestTheFirstRequestNeverResumes_C14: relays take little more than the node in it, and what
// the server sends instead is known to be complete.
func TestTheFirstRequestNeverResumes_C14(t *testing.T) {
	s := fakexds.Start(t, &fakexds.Server{Relay: true})
	s.Set(seURL, entry("shop/a").WithVersion("1"))
	s.Set(vsURL, fakexds.MCP("shop/b", &networking.VirtualService{Hosts: []string{"b"}}).WithVersion("1"))
	h := newRecorder()
	h.held = map[string]map[string]string{seURL: {"shop/a": "1"}, vsURL: {"shop/b": "1"}}
	start(t, h, func(c *Config) {
		c.Protocol = Delta
		c.TypeURLs = func(bool) []string { return []string{seURL, vsURL} }
	}, s.Addr)
	second := s.Await("the second request", func(r fakexds.Request) bool { return r.TypeURL == vsURL })
	if second.Held["shop/b"] != "1" {
		t.Errorf("the second request resumes with %q", second.Held)
	}
	if first := s.Requests()[0]; first.Node == nil || first.TypeURL != seURL || len(first.Held) != 0 {
		t.Errorf("the first request is for %s and resumes with %q", first.TypeURL, first.Held)
	}
	h.await(t, "an answer that is known to be complete", func() bool {
		return len(h.responses) > 0 && h.responses[0] == seURL+" shop/a" && h.complete[0]
	})
}

// TestARequestNamesNoMoreVersionsThanARelayTakes_C15: everything is sent instead.
func TestARequestNamesNoMoreVersionsThanARelayTakes_C15(t *testing.T) {
	for _, n := range []int{maxVersions, maxVersions + 1} {
		held := make(map[string]string, n)
		for i := range n {
			held[fmt.Sprint("n/", i)] = "1"
		}
		h := newRecorder()
		h.held = map[string]map[string]string{seURL: held}
		c := &Client{handler: h, cfg: Config{Node: func() *corev3.Node { return nil }}}
		s := &stream{client: c, relay: true, protocol: Delta, types: []string{meshURL, seURL}, complete: map[string]bool{}}
		req := s.firstRequest(1).(*discoveryv3.DeltaDiscoveryRequest)
		if resumes := len(req.InitialResourceVersions) > 0; resumes != (n <= maxVersions) || s.complete[seURL] == resumes {
			t.Errorf("with %d it resumes: %v, and the answer is complete: %v", n, resumes, s.complete[seURL])
		}
	}
}

func TestRequestsStayBelowIstiodsLimit_C15(t *testing.T) {
	s := fakexds.Start(t, &fakexds.Server{})
	h := newRecorder()
	large := map[string]string{}
	for i := range 60000 {
		large[fmt.Sprintf("namespace-of-some-length/service-entry-of-some-length-%d", i)] = "AAAAAAAAAAAAAAAAAAAAAA"
	}
	h.held = map[string]map[string]string{seURL: large}
	start(t, h, delta, s.Addr)
	req := s.Await("the subscription", func(r fakexds.Request) bool { return r.TypeURL == seURL })
	if len(req.Held) != 0 {
		t.Errorf("%d versions were sent", len(req.Held))
	}
	h.await(t, "an answer that is known to be complete", func() bool {
		for i, r := range h.responses {
			if strings.HasPrefix(r, seURL) && h.complete[i] {
				return true
			}
		}
		return false
	})
}

func TestLargeResponsesAreReceived_C15(t *testing.T) {
	s := fakexds.Start(t, &fakexds.Server{})
	big := fakexds.MCP("shop/big", &networking.ServiceEntry{Hosts: []string{strings.Repeat("x", 25<<20)}})
	s.Set(seURL, big)
	h := newRecorder()
	start(t, h, sotw, s.Addr)
	h.await(t, "25 MB", func() bool {
		for _, r := range h.responses {
			if strings.HasPrefix(r, seURL+" 262") {
				return true
			}
		}
		return false
	})
}

func TestReconnectSubscribesToEverythingAgain_C16(t *testing.T) {
	s := fakexds.Start(t, &fakexds.Server{})
	h := newRecorder()
	start(t, h, sotw, s.Addr)
	h.awaitResponses(t, 3)
	s.End(status.Error(codes.Unavailable, "not ready"))
	s.Await("the last type on the second stream", func(r fakexds.Request) bool { return r.Stream == 2 && r.TypeURL == vsURL })
	h.awaitResponses(t, 6)
}

func TestAddressesAreTriedInOrder_C16(t *testing.T) {
	const deadAddr = "127.0.0.1:1"
	s := fakexds.Start(t, &fakexds.Server{})
	h := newRecorder()
	start(t, h, sotw, deadAddr, s.Addr)
	h.awaitResponses(t, 3)
	if h.states[0].Address != deadAddr {
		t.Errorf("first tried %s", h.states[0].Address)
	}
}

func TestBackoffGrowsUntilAResponse_C16(t *testing.T) {
	inBubble(t, func(t *testing.T, nw *network) {
		s := nw.serve(t, "s", &fakexds.Server{})
		s.Fail(status.Error(codes.Unavailable, "not ready"))
		h := newRecorder()
		nw.start(t, h, func(c *Config) {
			c.Protocol, c.MinBackoff, c.MaxBackoff = SotW, 10*time.Millisecond, time.Hour
		}, s.Addr)
		began := time.Now()
		h.await(t, "eight failures", func() bool {
			n := 0
			for _, st := range h.states {
				if st.Phase == Disconnected {
					n++
				}
			}
			return n >= 8
		})
		// 7 pauses of 10 ms × 1.6^n, at the least half of that each: 218 ms.
		if took := time.Since(began); took < 200*time.Millisecond {
			t.Errorf("eight attempts within %v: the pause does not grow", took)
		}
	})
}

func TestDeniedIsReportedWithWhatToDo_C19_C20(t *testing.T) {
	for code, hint := range map[codes.Code]string{codes.Unauthenticated: "tokenFile", codes.PermissionDenied: "root namespace"} {
		t.Run(code.String(), func(t *testing.T) {
			s := fakexds.Start(t, &fakexds.Server{})
			s.Fail(status.Error(code, "no"))
			h := newRecorder()
			start(t, h, nil, s.Addr)
			h.await(t, "denied", func() bool { return h.last().Phase == Denied })
			h.mu.Lock()
			defer h.mu.Unlock()
			for _, st := range h.states {
				if st.Phase == Denied && !strings.Contains(st.Err.Error(), hint) {
					t.Errorf("error does not say what to do: %v", st.Err)
				}
			}
		})
	}
}

func TestConnectionAgeIsRoutine_C18(t *testing.T) {
	inBubble(t, func(t *testing.T, nw *network) {
		s := nw.serve(t, "s", &fakexds.Server{Options: []grpc.ServerOption{grpc.KeepaliveParams(keepalive.ServerParameters{
			MaxConnectionAge: 50 * time.Millisecond, MaxConnectionAgeGrace: 20 * time.Millisecond,
		})}})
		h := newRecorder()
		nw.start(t, h, sotw, s.Addr)
		h.await(t, "three connections", func() bool {
			n := 0
			for _, st := range h.states {
				if st.Phase == Connected {
					n++
				}
			}
			return n >= 3
		})
	})
}

// TestAPanicEndsRun, as an error with its stack, wherever the Client calls its Config and Handler.
func TestAPanicEndsRun(t *testing.T) {
	for name, change := range map[string]func(*Config, *recorder){
		"over a response":     func(_ *Config, h *recorder) { h.reject = func(*Response) error { panic("injected") } },
		"over the peer":       func(c *Config, _ *recorder) { c.Met = func(Peer) { panic("injected") } },
		"over names":          func(c *Config, _ *recorder) { c.Names = func(string) []string { panic("injected") } },
		"over the credential": func(c *Config, _ *recorder) { c.Credentials = brittleCreds{c.Credentials} },
	} {
		t.Run(name, func(t *testing.T) {
			s := fakexds.Start(t, &fakexds.Server{})
			s.Set(seURL, entry("shop/a"))
			h := newRecorder()
			cfg := Config{
				Addresses: []string{s.Addr}, Protocol: SotW, Node: testNode, Credentials: insecure.NewCredentials(),
				TypeURLs: func(bool) []string { return []string{seURL} }, Logger: slog.New(slog.DiscardHandler),
			}
			change(&cfg, h)
			c := New(cfg, h)
			err := panics.Contain(func() error { return c.Run(t.Context()) }) // names are asked for in Run, too
			var p *panics.Panic
			if !errors.As(err, &p) || p.Value != "injected" || !strings.Contains(p.Stack, "client_test.go") {
				t.Errorf("Run returns %v", err)
			}
		})
	}
}

// brittleCreds panic in a goroutine of gRPC.
type brittleCreds struct {
	credentials.TransportCredentials
}

func (brittleCreds) ClientHandshake(context.Context, string, net.Conn) (net.Conn, credentials.AuthInfo, error) {
	panic("injected")
}
func (b brittleCreds) Clone() credentials.TransportCredentials { return b }
