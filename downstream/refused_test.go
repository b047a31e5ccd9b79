package downstream

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"meshrelay/downstream/admit"
	"meshrelay/downstream/refusal"
	"meshrelay/downstream/views"
)

// TestOverALimitTheAbuserIsToldAndNobodyElseIsHurt: a clear status, a count, and a client
// beside it that is pushed every change.
func TestOverALimitTheAbuserIsToldAndNobodyElseIsHurt(t *testing.T) {
	var overloaded atomic.Bool
	big := strings.Repeat("x", 4000)
	subscribeTo := func(d *deltaStream, n int) {
		for i := range n {
			d.send(subscribeDelta(fmt.Sprintf("example.com/v1/Kind%d", i)))
		}
	}
	for _, tc := range []struct {
		name  string
		why   refusal.Reason
		code  codes.Code
		says  string
		set   func(*Config)
		abuse func(r *relay) *deltaStream
	}{
		{"streams", refusal.Streams, codes.ResourceExhausted, "1 streams of all clients are open, no more are served at once (downstream.maxStreams)",
			func(c *Config) { c.MaxStreams = 1 }, func(r *relay) *deltaStream { return r.delta(r.from("127.0.0.2")) }},
		{"overload", refusal.Overload, codes.ResourceExhausted, "91 % of the memory limit is in use",
			nil, func(r *relay) *deltaStream {
				overloaded.Store(true)
				return r.deltaBy("a")
			}},
		{"headers", "", codes.Internal, "header list size",
			nil, func(r *relay) *deltaStream { return r.deltaWith("padding", strings.Repeat("x", maxHeaderBytes)) }},
		{"node", refusal.Node, codes.InvalidArgument, "more than 3000",
			func(c *Config) { c.MaxNodeBytes = 3000 },
			func(r *relay) *deltaStream { return r.deltaAs(seV1, "PADDING", big) }},
		{"no node", refusal.Node, codes.InvalidArgument, "must carry a node with an id",
			nil, func(r *relay) *deltaStream {
				d := r.delta()
				d.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: seV1})
				return d
			}},
		{"request", refusal.Bytes, codes.ResourceExhausted, "received message larger than max (4126 vs. 3000)",
			func(c *Config) { c.MaxRequestBytes = 3000 },
			func(r *relay) *deltaStream {
				d := r.delta()
				req := subscribeDelta(seV1)
				req.InitialResourceVersions = map[string]string{"shop/a": big}
				d.send(req)
				return d
			}},
		{"types", refusal.Types, codes.ResourceExhausted, "more than 5 types",
			func(c *Config) { c.MaxTypesPerClient = 5 },
			func(r *relay) *deltaStream {
				d := r.delta()
				subscribeTo(d, 6)
				return d
			}},
		{"a type that is none", refusal.Types, codes.InvalidArgument, "type_url",
			nil, func(r *relay) *deltaStream { return r.deltaBy("a", big) }},
		{"names", refusal.Names, codes.ResourceExhausted, "more than 65536 resource names",
			nil, func(r *relay) *deltaStream {
				d := r.deltaBy("a", drV1)
				d.next()
				req := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: seV1}
				for i := range 65537 {
					req.ResourceNamesSubscribe = append(req.ResourceNamesSubscribe, fmt.Sprint("n/", i))
				}
				d.send(req)
				return d
			}},
		{"no view", refusal.View, codes.PermissionDenied, "no view matches this client",
			func(c *Config) { c.Views = []views.View{namespaces("v", node().Id, "shop")} },
			func(r *relay) *deltaStream { return r.deltaBy("stranger", seV1) }},
	} {
		t.Run(tc.name, inBubble(func(t *testing.T) {
			overloaded.Store(false)
			r := startInMemory(t, true, func(c *Config, d *Deps) {
				if tc.set != nil {
					tc.set(c)
				}
				d.Overloaded = func(bool) error {
					if overloaded.Load() {
						return errors.New("91 % of the memory limit is in use")
					}
					return nil
				}
			})
			r.put(se("shop", "a", "0"))
			good := r.delta()
			good.send(subscribeDelta(seV1))
			good.next()
			for i := range 3 {
				end := tc.abuse(r).end()
				wantCode(t, end, tc.code)
				if !strings.Contains(end.Error(), tc.says) {
					t.Errorf("the client is told %q, want %q", end, tc.says)
				}
				r.put(se("shop", "a", fmt.Sprint("change ", i)))
				if got := deltaNames(good.next()); got != "shop/a" {
					t.Errorf("the client beside got %q", got)
				}
			}
			if tc.why == "" {
				return // the transport refuses, or the client itself
			}
			wantRefused(t, r, tc.why, 3)
			if n := testutil.ToFloat64(r.server.metrics.refused.WithLabelValues(tc.code.String())); n != 3 {
				t.Errorf("%v streams are counted as refused with %v", n, tc.code)
			}
			r.eventually(t, "only the client beside is left", func() bool { return len(r.server.Clients()) == 1 && r.streams() == 1 })
		}))
	}
}

// deltaWith opens a delta stream with a header.
func (r *relay) deltaWith(name, value string) *deltaStream {
	r.t.Helper()
	ctx, cancel := context.WithCancel(metadata.AppendToOutgoingContext(r.t.Context(), name, value))
	s, err := r.dial().DeltaAggregatedResources(ctx)
	if err != nil {
		cancel()
		st := &deltaStream{t: r.t, recvd: make(chan received[*discoveryv3.DeltaDiscoveryResponse], 1)}
		st.recvd <- received[*discoveryv3.DeltaDiscoveryResponse]{err: err}
		return st
	}
	return newStream(r.t, s, cancel)
}

// TestReasonsAreAllKnownFromTheStart: so that alerts can be made of them.
func TestReasonsAreAllKnownFromTheStart(t *testing.T) {
	r := startRelay(t, true)
	if n := testutil.CollectAndCount(r.server.metrics.refusals); n != len(refusal.Reasons()) {
		t.Errorf("%d reasons are shown, there are %d", n, len(refusal.Reasons()))
	}
}

// TestNodeOfTheLimitIsTaken: and the limit is of the encoding.
func TestNodeOfTheLimitIsTaken(t *testing.T) {
	n := node("PADDING", strings.Repeat("x", 1000))
	r := startRelay(t, true, func(c *Config, _ *Deps) { c.MaxNodeBytes = proto.Size(n) })
	d := r.delta()
	d.send(&discoveryv3.DeltaDiscoveryRequest{Node: n, TypeUrl: seV1})
	d.next()
	n.Metadata.Fields["ONE"] = structpb.NewNullValue()
	more := r.delta()
	more.send(&discoveryv3.DeltaDiscoveryRequest{Node: n, TypeUrl: seV1})
	wantCode(t, more.end(), codes.InvalidArgument)
	d.send(&discoveryv3.DeltaDiscoveryRequest{Node: n, TypeUrl: drV1}) // of a later request it does not matter
	d.next()
}

// TestConnectionsBeyondTheLimitAreClosed: before anything is read of them. When one has
// gone, another is let in.
func TestConnectionsBeyondTheLimitAreClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startInMemory(t, true, func(c *Config, _ *Deps) { c.MaxConnections = 3 })
		r.put(se("shop", "a", "0"))
		good := r.delta()
		good.send(subscribeDelta(seV1))
		good.next()
		dial := func() net.Conn { return r.raw("127.0.0.2") }
		held := []net.Conn{dial(), dial()}
		r.eventually(t, "they are in", func() bool { return r.connections() == 3 })
		before := runtime.NumGoroutine() // those of the last one may not run yet
		for range 20 {
			if n, err := dial().Read(make([]byte, 1)); n != 0 || err == nil {
				t.Fatalf("read %d, %v from a connection over the limit", n, err)
			}
		}
		wantRefused(t, r, refusal.Connections, 20)
		r.eventually(t, "they cost nothing", func() bool { return runtime.NumGoroutine() < before+10 && r.connections() == 3 })
		r.put(se("shop", "a", "1"))
		if got := deltaNames(good.next()); got != "shop/a" {
			t.Errorf("the client beside got %q", got)
		}
		held[0].Close()
		r.eventually(t, "one has left", func() bool { return r.connections() == 2 })
		r.deltaBy("a", seV1).next()
		if err := r.server.Reload(t.Context(), nil, Limits{Limits: admit.Limits{MaxConnections: 1}}, nil); err != nil {
			t.Fatal(err)
		}
		r.put(se("shop", "a", "2"))
		if got := deltaNames(good.next()); got != "shop/a" {
			t.Errorf("after the limit was lowered, the client got %q", got)
		}
	})
}

// TestLimitsAreReplaced: of streams that there are, too.
func TestLimitsAreReplaced(t *testing.T) {
	r := startRelay(t, true, func(c *Config, _ *Deps) { c.MaxTypesPerClient, c.MaxStreams = 1, 1 })
	d := r.deltaBy("a", seV1)
	d.next()
	wantCode(t, r.deltaBy("b", seV1).end(), codes.ResourceExhausted)
	if err := r.server.Reload(t.Context(), nil, Limits{MaxTypesPerClient: 2, Limits: admit.Limits{MaxStreams: 2}}, nil); err != nil {
		t.Fatal(err)
	}
	r.deltaBy("b", seV1).next()
	d.send(subscribeDelta(drV1))
	d.next()
	d.send(subscribeDelta(vsV1))
	wantCode(t, d.end(), codes.ResourceExhausted)
}

// TestARefusedClientIsToldInPart: a peer that is refused often has a few lines, the next line has the number of those that
// were left out, and its identity if it has proven one.
func TestARefusedClientIsToldInPart(t *testing.T) {
	_, set, client := mutualTLS(t)
	var log lockedLog
	r := startRelay(t, true, set, func(_ *Config, d *Deps) { d.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
	for range 20 {
		c, err := tls.Dial("tcp", r.addr, &tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS12}) // the server is ours
		if err == nil {
			c.Close()
			t.Fatal("it has succeeded without a certificate")
		}
	}
	wantRefused(t, r, refusal.Handshake, 20)
	lines := func() int { return strings.Count(log.String(), "client refused") }
	r.eventually(t, "the first ones are told", func() bool { return lines() == 5 })
	d := r.delta(client("one", time.Hour))
	d.send(subscribeDelta(seV1))
	r.eventually(t, "it is known", func() bool { return len(r.server.Clients()) == 1 })
	r.server.connections()[0].end(refusal.New(refusal.Peer, codes.ResourceExhausted, "too much of it"))
	_ = d.end()
	r.eventually(t, "another peer is told", func() bool { return lines() == 6 })
	if out := log.String(); !strings.Contains(out, "identity=dns:client") || !strings.Contains(out, "unloggedOfPeers=15") {
		t.Error(out)
	}
}
