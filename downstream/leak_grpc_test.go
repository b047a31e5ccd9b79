package downstream

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"meshrelay/downstream/views"
	"meshrelay/push"
)

var leakStreams = flag.Int("leak.streams", 20, "worlds of TestStreamsLeakNothing")

// TestStreamsLeakNothing: what TestViewsLeakNothing shows of views holds over gRPC, with its headers, trailers and
// status texts, debug types, and what other clients reject.
func TestStreamsLeakNothing(t *testing.T) {
	seed := *leakSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("%d worlds of the seed %d", *leakStreams, seed)
	for n := range uint64(*leakStreams) {
		again := fmt.Sprintf("again with -run %s -leak.seed %d -leak.world %d -leak.streams 1", t.Name(), seed, *leakFirst+n)
		rng := rand.New(rand.NewPCG(seed, *leakFirst+n))
		script := drawScript(rng)
		guests := rng.Perm(leakTenants)[:3]
		fixed := guests[0]
		said := script.stream(t, again, guests, fixed, *leakFirst+n)
		twin := script.twin(rng, fixed).stream(t, again, guests[:1], fixed, *leakFirst+n)
		for what, is := range said {
			if other := twin[what]; is != other {
				at := 0
				for at < min(len(is), len(other)) && is[at] == other[at] {
					at++
				}
				t.Fatalf("%s\n%s: tenant %s is sent something else where only what is hidden from it differs:\n%s\nand\n%s",
					again, what, canary('t', fixed), quoted(is, max(0, at-300)), quoted(other, max(0, at-300)))
			}
		}
	}
}

// views returns the views of a config.
func (w *leakWorld) configured() []views.View {
	var out []views.View
	for t, r := range w.rules {
		v := r.View
		v.Name, v.Match = "view-"+canary('t', t), views.Match{NodeIDs: []string{"*node-" + canary('t', t) + "*"}}
		out = append(out, v)
	}
	return out
}

// stream lives a script behind a server. It returns what the tenant fixed was sent, by stream and type.
func (s *leakScript) stream(t *testing.T, again string, guests []int, fixed int, seed uint64) map[string]string {
	t.Helper()
	w := newLeakWorld(s, leakMutant{}, fixed)
	cfg := Config{
		NodeID: "relay", RelayName: "relay", Version: "test", Views: w.configured(), DrainTimeout: time.Second, timeouts: timeouts{first: time.Hour},
		Listeners: []Listener{{Address: "127.0.0.1:0", Debug: DebugLoopback}},
	}
	server, err := New(cfg, Deps{Resources: w.agg, Registerer: prometheus.NewRegistry(), Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 2)
	go func() { done <- w.agg.Run(ctx) }()
	w.change(ctx, s.steps[0])
	go func() { done <- server.Run(ctx) }()
	defer func() {
		cancel()
		for range 2 {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	}()
	addrs, err := server.Addrs(ctx)
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{t: t, server: server, addr: addrs[0].String()}
	r.eventually(t, "clients are served", server.HasReleased)
	w.guests = nil
	var streams []*leakStream
	for _, tenant := range guests {
		g := &leakGuest{tenant: tenant, allowed: map[string]bool{}}
		w.guests = append(w.guests, g)
		conn := r.dial()
		for form := range leakSessions {
			streams = append(streams, openLeakStream(t, again, conn, w, g, form, rand.New(rand.NewPCG(seed, uint64(tenant*leakSessions+form)))))
		}
	}
	for i, step := range s.steps {
		if i > 0 {
			server.Push(&push.Request{Full: step.full, ConfigsUpdated: w.change(ctx, step), Start: time.Now()})
			if step.forms != nil {
				for _, g := range w.guests {
					w.allow(g)
				}
				w.reform(step.forms)
				if err := server.Reload(ctx, w.configured(), Limits{}, nil); err != nil {
					t.Fatal(err)
				}
			}
			r.eventually(t, "what is new is known", func() bool { return !server.views.known.Learning() })
			_, _ = server.settled(ctx) // clients have their views
		}
		for _, g := range w.guests {
			w.allow(g)
		}
		for _, st := range streams {
			st.step(i == 0)
		}
	}
	said := map[string]string{}
	for _, st := range streams {
		st.end()
		if st.guest.tenant == fixed {
			for what, texts := range st.said {
				said[fmt.Sprintf("stream %d, %s", st.number, what)] = strings.Join(texts, "\n")
			}
		}
	}
	return said
}

// leakStream is a stream of a tenant.
type leakStream struct {
	*testing.T
	again  string
	world  *leakWorld
	guest  *leakGuest
	number int
	rng    *rand.Rand
	delta  bool
	named  bool
	stream grpc.ClientStream
	asked  map[string]bool
	said   map[string][]string // by type
	waits  int                 // barriers so far
}

func openLeakStream(t *testing.T, again string, conn discoveryv3.AggregatedDiscoveryServiceClient, w *leakWorld, g *leakGuest, form int, rng *rand.Rand) *leakStream {
	t.Helper()
	s := &leakStream{T: t, again: again, world: w, guest: g, number: form, rng: rng, delta: form >= 4, named: form%2 == 1, asked: map[string]bool{}, said: map[string][]string{}}
	canaries([]byte(canary('t', g.tenant)), s.asked)
	var err error
	if s.delta {
		s.stream, err = conn.DeltaAggregatedResources(t.Context())
	} else {
		s.stream, err = conn.StreamAggregatedResources(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	claims := w.script.claims[g.tenant]
	node := &corev3.Node{Id: claims.NodeID, Metadata: &structpb.Struct{Fields: map[string]*structpb.Value{
		"CLUSTER_ID": structpb.NewStringValue(claims.ClusterID), "ISTIO_REVISION": structpb.NewStringValue(claims.Revision),
	}}}
	if form == 2 || form == 3 { // it looks like an istiod
		node.Id = "sidecar~10.0.0.1~" + claims.NodeID + ".ns~ns.svc.cluster.local"
	}
	for _, url := range w.script.urls {
		var names []string
		if s.named {
			names = (&leakSession{rng: rng}).names(url)
		}
		s.send(node, url, "", names, nil)
		node = nil
	}
	return s
}

func (s *leakStream) send(node *corev3.Node, url, nonce string, names []string, rejected error) {
	s.Helper()
	for _, name := range names {
		canaries([]byte(name), s.asked)
	}
	var detail *status.Status
	if rejected != nil {
		detail = &status.Status{Message: rejected.Error()}
	}
	var m proto.Message = &discoveryv3.DiscoveryRequest{Node: node, TypeUrl: url, ResponseNonce: nonce, ResourceNames: names, ErrorDetail: detail}
	if s.delta {
		m = &discoveryv3.DeltaDiscoveryRequest{Node: node, TypeUrl: url, ResponseNonce: nonce, ResourceNamesSubscribe: names, ErrorDetail: detail}
	}
	if err := s.stream.SendMsg(m); err != nil && !errors.Is(err, io.EOF) {
		s.Fatal(err)
	}
}

// step receives all that the stream is sent now: what comes before the answers to two more requests. The answer
// to the first one may come before removals of the same round.
func (s *leakStream) step(first bool) {
	s.Helper()
	if first {
		md, err := s.stream.Header()
		if err != nil {
			s.Fatal(err)
		}
		s.hear("headers", fmt.Sprint(md))
	}
	for range 2 {
		s.waits++
		barrier := fmt.Sprintf("barrier.example/v1/Number%d", s.waits)
		s.send(nil, barrier, "", nil, nil)
		for s.receive() != barrier {
		}
	}
}

// receive receives a response, and answers it.
func (s *leakStream) receive() (url string) {
	s.Helper()
	var m proto.Message
	var nonce string
	if s.delta {
		resp := &discoveryv3.DeltaDiscoveryResponse{}
		if err := s.stream.RecvMsg(resp); err != nil {
			s.Fatalf("%s: %v", s.again, err)
		}
		m, url, nonce = resp, resp.TypeUrl, resp.Nonce
	} else {
		resp := &discoveryv3.DiscoveryResponse{}
		if err := s.stream.RecvMsg(resp); err != nil {
			s.Fatalf("%s: %v", s.again, err)
		}
		m, url, nonce = resp, resp.TypeUrl, resp.Nonce
	}
	if strings.HasPrefix(url, "barrier.") {
		return url
	}
	s.hear(url, string(must(proto.MarshalOptions{Deterministic: true}.Marshal(m))))
	switch {
	case nonce == "" || s.named && !s.delta:
	case s.rng.IntN(4) == 0:
		s.send(nil, url, nonce, nil, errors.New("rejected by "+canary('c', 80_000+s.guest.tenant)))
	default:
		s.send(nil, url, nonce, nil, nil)
	}
	return url
}

// hear notes what the stream was sent, and looks for what its tenant does not see.
func (s *leakStream) hear(what, text string) {
	s.Helper()
	s.said[what] = append(s.said[what], text)
	if c := unknown([]byte(text), s.guest.allowed, s.asked); c != "" {
		s.Fatalf("%s\ntenant %d, stream %d: %s: it was sent %s: %s", s.again, s.guest.tenant, s.number, what, c, quoted(text, 0))
	}
}

// end has the stream refused, and hears why.
func (s *leakStream) end() {
	s.Helper()
	url := s.world.script.urls[0]
	switch s.rng.IntN(6) {
	case 0:
		s.send(nil, url, "", []string{strings.Repeat("x", 1000)}, nil)
	case 1:
		for i := range 300 {
			s.send(nil, fmt.Sprintf("many.example/v1/Kind%d", i), "", nil, nil)
		}
	case 2:
		s.send(nil, strings.Repeat("t", 600), "", nil, nil)
	case 3:
		s.send(nil, url, "", slices.Repeat([]string{"a"}, 70_000), nil)
	case 4:
		s.send(nil, statusType, "", nil, nil)
	default:
		_ = s.stream.CloseSend()
	}
	var err error
	for err == nil {
		if s.delta {
			err = s.stream.RecvMsg(&discoveryv3.DeltaDiscoveryResponse{})
		} else {
			err = s.stream.RecvMsg(&discoveryv3.DiscoveryResponse{})
		}
	}
	s.hear("end", err.Error())
	trailer := s.stream.Trailer()
	s.hear("trailers", fmt.Sprint(maps.Clone(trailer)))
}

// TestARefusalNamesNobodyElse: where others have all that there is, the text of a refusal tells of the limit and of
// the client itself.
func TestARefusalNamesNobodyElse(t *testing.T) {
	const other = "127.0.0.77"
	for name, tc := range map[string]struct {
		set  func(*Config)
		take func(r *relay)
		ask  func(r *relay) *deltaStream
	}{
		"streams": {
			set: func(c *Config) { c.MaxStreams = 2 },
			take: func(r *relay) {
				for range 2 {
					d := r.delta(r.from(other))
					d.send(subscribeDelta(seV1))
					d.next()
				}
			},
			ask: func(r *relay) *deltaStream { return r.delta() },
		},
		"names": {
			set: func(c *Config) { c.MaxNames = 3 },
			take: func(r *relay) {
				d := r.delta(r.from(other))
				d.send(&discoveryv3.DeltaDiscoveryRequest{Node: node(), TypeUrl: seV1, ResourceNamesSubscribe: []string{canary('k', 1), canary('k', 2), canary('k', 3)}})
				d.next()
			},
			ask: func(r *relay) *deltaStream {
				d := r.delta()
				d.send(&discoveryv3.DeltaDiscoveryRequest{Node: node(), TypeUrl: seV1, ResourceNamesSubscribe: []string{"mine"}})
				return d
			},
		},
		"views": {
			take: func(r *relay) {
				for i := range maxViews {
					must(r.server.views.acquire(t.Context(), views.Selection{Cluster: canary('x', i)}, viewer{delta: true}))
				}
			},
			ask: func(r *relay) *deltaStream {
				r.put(copyOf(se("shop", "a", "a"), "east", canary('x', 90_000)))
				return r.deltaAs(seV1, "CLUSTER_ID", canary('x', 90_000))
			},
		},
		"a view": {
			set: func(c *Config) {
				c.Views = []views.View{{Name: "view-" + canary('t', 1), Match: views.Match{NodeIDs: []string{"node-" + canary('t', 1)}}}, {Name: "view-" + canary('t', 2), Match: views.Match{Identities: []string{"spiffe://" + canary('t', 2) + "/**"}}}}
			},
			take: func(*relay) {},
			ask:  func(r *relay) *deltaStream { return r.deltaAs(seV1) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := startRelay(t, true, func(c *Config, _ *Deps) {
				if tc.set != nil {
					tc.set(c)
				}
			})
			tc.take(r)
			text := tc.ask(r).end().Error()
			asked := map[string]bool{canary('x', 90_000): true}
			if c := unknown([]byte(text), asked); c != "" || strings.Contains(text, "127.0.0.77") {
				t.Errorf("the client is told %q", text)
			}
			t.Log(text)
		})
	}
}
