package downstream

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
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
		why   reason
		code  codes.Code
		says  string
		set   func(*Config)
		abuse func(r *relay) *deltaStream
	}{
		{"streams", reasonStreams, codes.ResourceExhausted, "1 streams are open, no more are served at once (downstream.maxStreams)",
			func(c *Config) { c.MaxStreams = 1 }, func(r *relay) *deltaStream { return r.deltaBy("a") }},
		{"streams a second", reasonRate, codes.ResourceExhausted, "more than 1 new streams a second (downstream.newStreamsPerSecond)",
			func(c *Config) { c.NewStreamsPerSecond = 1 },
			func(r *relay) *deltaStream {
				r.server.limiter.AllowN(time.Now(), 1) // what there may be left
				r.server.limiter.ReserveN(time.Now(), 1)
				r.server.limiter.ReserveN(time.Now(), 1)
				return r.deltaBy("a")
			}},
		{"overload", reasonOverload, codes.ResourceExhausted, "91 % of the memory limit is in use",
			nil, func(r *relay) *deltaStream {
				overloaded.Store(true)
				return r.deltaBy("a")
			}},
		{"headers", reasonHeaders, codes.ResourceExhausted, "more than 2000 (downstream.maxHeaderBytes)",
			func(c *Config) { c.MaxHeaderBytes = 2000 }, func(r *relay) *deltaStream { return r.deltaWith("padding", big[:2500]) }},
		{"headers, far over", "", codes.Internal, "header list size",
			func(c *Config) { c.MaxHeaderBytes = 1500 }, func(r *relay) *deltaStream { return r.deltaWith("padding", big) }},
		{"node", reasonNode, codes.InvalidArgument, "more than 3000 (downstream.maxNodeBytes)",
			func(c *Config) { c.MaxNodeBytes = 3000 },
			func(r *relay) *deltaStream { return r.deltaAs(seV1, "PADDING", big) }},
		{"no node", reasonNode, codes.InvalidArgument, "must carry a node with an id",
			nil, func(r *relay) *deltaStream {
				d := r.delta()
				d.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: seV1})
				return d
			}},
		{"request", reasonBytes, codes.ResourceExhausted, "received message larger than max (4126 vs. 3000)",
			func(c *Config) { c.MaxRequestBytes = 3000 },
			func(r *relay) *deltaStream {
				d := r.delta()
				req := subscribeDelta(seV1)
				req.InitialResourceVersions = map[string]string{"shop/a": big}
				d.send(req)
				return d
			}},
		{"types", reasonTypes, codes.ResourceExhausted, "more than 5 types (downstream.maxTypesPerClient)",
			func(c *Config) { c.MaxTypesPerClient = 5 },
			func(r *relay) *deltaStream {
				d := r.delta()
				subscribeTo(d, 6)
				return d
			}},
		{"a type that is none", reasonTypes, codes.InvalidArgument, "type_url",
			nil, func(r *relay) *deltaStream { return r.deltaBy("a", big) }},
		{"names", reasonNames, codes.ResourceExhausted, "more than 65536 resource names",
			nil, func(r *relay) *deltaStream {
				d := r.delta()
				req := subscribeDelta(seV1)
				for i := range maxNames + 1 {
					req.ResourceNamesSubscribe = append(req.ResourceNamesSubscribe, fmt.Sprint("n/", i))
				}
				d.send(req)
				return d
			}},
		{"no view", reasonView, codes.PermissionDenied, "no view matches this client",
			func(c *Config) { c.Views = []View{namespaces("v", node().Id, "shop")} },
			func(r *relay) *deltaStream { return r.deltaBy("stranger", seV1) }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			overloaded.Store(false)
			r := startRelay(t, true, func(c *Config, d *Deps) {
				if tc.set != nil {
					tc.set(c)
				}
				d.Overloaded = func() error {
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
				return // the transport says no, or the client itself
			}
			wantRefused(t, r, tc.why, 3)
			if n := testutil.ToFloat64(r.server.metrics.refused.WithLabelValues(tc.code.String())); n != 3 {
				t.Errorf("%v streams are counted as refused with %v", n, tc.code)
			}
			eventually(t, "only the client beside is left", func() bool { return len(r.server.Clients()) == 1 && r.server.open.Load() == 1 })
		})
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
	if n := testutil.CollectAndCount(r.server.metrics.refusals); n != len(reasons()) {
		t.Errorf("%d reasons are shown, there are %d", n, len(reasons()))
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
	r := startRelay(t, true, func(c *Config, _ *Deps) { c.MaxConnections = 3 })
	r.put(se("shop", "a", "0"))
	good := r.delta()
	good.send(subscribeDelta(seV1))
	good.next()
	dial := func() net.Conn {
		c, err := net.Dial("tcp", r.addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	held := []net.Conn{dial(), dial()}
	eventually(t, "they are in", func() bool { return r.server.gate.count() == 3 })
	before := runtime.NumGoroutine()
	for range 20 {
		c := dial()
		if err := c.SetReadDeadline(time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
		if n, err := c.Read(make([]byte, 1)); n != 0 || err == nil || errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("read %d, %v from a connection over the limit", n, err)
		}
	}
	wantRefused(t, r, reasonConnections, 20)
	eventually(t, "they cost nothing", func() bool { return runtime.NumGoroutine() <= before && r.server.gate.count() == 3 })
	r.put(se("shop", "a", "1"))
	if got := deltaNames(good.next()); got != "shop/a" {
		t.Errorf("the client beside got %q", got)
	}
	held[0].Close()
	eventually(t, "one has left", func() bool { return r.server.gate.count() == 2 })
	r.deltaBy("a", seV1).next()
	if err := r.server.Reload(nil, Limits{MaxConnections: 1}); err != nil {
		t.Fatal(err)
	}
	r.put(se("shop", "a", "2"))
	if got := deltaNames(good.next()); got != "shop/a" {
		t.Errorf("after the limit was lowered, the client got %q", got)
	}
}

func (g *gate) count() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.in)
}

// TestLimitsAreReplaced: of streams that there are, too.
func TestLimitsAreReplaced(t *testing.T) {
	r := startRelay(t, true, func(c *Config, _ *Deps) { c.MaxTypesPerClient, c.MaxStreams = 1, 1 })
	d := r.deltaBy("a", seV1)
	d.next()
	wantCode(t, r.deltaBy("b", seV1).end(), codes.ResourceExhausted)
	if err := r.server.Reload(nil, Limits{MaxTypesPerClient: 2, MaxStreams: 2}); err != nil {
		t.Fatal(err)
	}
	r.deltaBy("b", seV1).next()
	d.send(subscribeDelta(drV1))
	d.next()
	d.send(subscribeDelta(vsV1))
	wantCode(t, d.end(), codes.ResourceExhausted)
}

// TestWhoAsksTooFastIsDelayedAndThenEnded, at moments that the test makes up.
func TestWhoAsksTooFastIsDelayedAndThenEnded(t *testing.T) {
	limits := &Limits{RequestsPerSecond: 500, MaxTypesPerClient: 256}
	start := time.Unix(1000, 0)
	// run makes n requests, every so often if they are not delayed, and returns how many were
	// delayed, when the last was taken, and the error that ended it.
	run := func(p *pace, from time.Time, n int, every time.Duration) (delayed int, at time.Time, err error) {
		at = from
		for range n {
			wait, _, err := p.next(limits, at)
			if err != nil {
				return delayed, at, err
			}
			if wait > 0 {
				delayed++
			}
			at = at.Add(max(wait, every))
		}
		return delayed, at, nil
	}
	t.Run("a burst is free", func(t *testing.T) {
		if delayed, _, err := run(&pace{}, start, 1024, 0); delayed > 0 || err != nil {
			t.Errorf("%d of 1024 are delayed, %v", delayed, err)
		}
	})
	t.Run("a larger one is slowed down to the rate", func(t *testing.T) {
		delayed, at, err := run(&pace{}, start, 1024+2500, 0)
		if err != nil || delayed != 2500 || at.Sub(start).Round(100*time.Millisecond) != 5*time.Second {
			t.Errorf("%d are delayed, by %v, %v", delayed, at.Sub(start), err)
		}
	})
	t.Run("one without end is ended after ten seconds", func(t *testing.T) {
		_, at, err := run(&pace{}, start, 1_000_000, 0)
		if status.Code(err) != codes.ResourceExhausted || at.Sub(start).Round(100*time.Millisecond) != 10*time.Second {
			t.Errorf("after %v: %v", at.Sub(start), err)
		}
	})
	t.Run("just above the rate, too", func(t *testing.T) {
		_, at, err := run(&pace{}, start, 1_000_000, 1900*time.Microsecond)
		if status.Code(err) != codes.ResourceExhausted {
			t.Errorf("after %v: %v", at.Sub(start), err)
		}
	})
	t.Run("at the rate it goes on for ever", func(t *testing.T) {
		if delayed, _, err := run(&pace{}, start, 1_000_000, 2*time.Millisecond); err != nil || delayed > 0 {
			t.Errorf("%d are delayed, %v", delayed, err)
		}
	})
	t.Run("bursts with pauses go on for ever", func(t *testing.T) {
		p, at := &pace{}, start
		for range 100 {
			_, end, err := run(p, at, 3000, 0)
			if err != nil {
				t.Fatal(err)
			}
			at = end.Add(3 * time.Second)
		}
	})
	t.Run("another rate counts from now on", func(t *testing.T) {
		p := &pace{}
		if _, _, err := run(p, start, 1024, 0); err != nil {
			t.Fatal(err)
		}
		slow := &Limits{RequestsPerSecond: 1, MaxTypesPerClient: 256}
		if wait, first, err := p.next(slow, start); wait != time.Second || !first || err != nil {
			t.Errorf("%v, %v, %v", wait, first, err)
		}
	})
}

// TestAcknowledgementsDoNotCount: a client that acknowledges all that it is sent is never
// too fast, however often it is sent something.
func TestAcknowledgementsDoNotCount(t *testing.T) {
	r := startRelay(t, true, func(c *Config, _ *Deps) { c.RequestsPerSecond = 1 })
	d := r.deltaBy("a", seV1)
	d.next()
	const pushes = leastBurst + 200
	for i := range pushes {
		r.put(se("shop", "a", fmt.Sprint(i)))
		resp := d.next()
		d.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: seV1, ResponseNonce: resp.Nonce})
	}
	eventually(t, "all are taken", func() bool { c := r.server.Clients(); return c[0].Types[0].ACKs == pushes })
	if n := testutil.ToFloat64(r.server.metrics.delayed); n != 0 {
		t.Errorf("%v were delayed", n)
	}
}

// TestWhoAsksTooFastHurtsNobody: it is read from no faster than it may ask, and another
// client is pushed every change meanwhile. When it stops in time, it is served on.
func TestWhoAsksTooFastHurtsNobody(t *testing.T) {
	r := startRelay(t, true, func(c *Config, _ *Deps) { c.RequestsPerSecond = 2000 })
	r.put(se("shop", "a", "0"))
	good := r.deltaBy("good", seV1)
	good.next()
	fast := r.deltaBy("fast", seV1)
	fast.next()
	const burst, more = 4000, 1000
	began := time.Now()
	sent := make(chan error, 1)
	go func() {
		for range burst + more { // stale ones, which nothing answers
			if err := fast.sendTo.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: seV1, ResponseNonce: "none"}); err != nil {
				sent <- err
				return
			}
		}
		sent <- nil
	}()
	for i := range 20 {
		r.put(se("shop", "a", fmt.Sprint("change ", i)))
		if got := deltaNames(good.next()); got != "shop/a" {
			t.Errorf("the client beside got %q", got)
		}
	}
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
	fast.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: drV1})
	for fast.next().TypeUrl != drV1 {
	}
	// 4,000 at once and 2,000 a second: those beyond take half a second.
	if took := time.Since(began); took < 400*time.Millisecond {
		t.Errorf("%d requests took %v", burst+more, took)
	}
	if n := testutil.ToFloat64(r.server.metrics.delayed); n < more/10 {
		t.Errorf("%v requests are counted as delayed", n)
	}
	wantRefused(t, r, reasonRequests, 0)
}

// TestWhoAsksTooFastForTooLongIsEnded on the wire.
func TestWhoAsksTooFastForTooLongIsEnded(t *testing.T) {
	r := startRelay(t, true, func(c *Config, _ *Deps) { c.RequestsPerSecond = 1 })
	d := r.deltaBy("a", seV1)
	d.next()
	go func() {
		for d.sendTo.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: seV1, ResponseNonce: "none"}) == nil {
		}
	}()
	eventually(t, "its requests wait", func() bool { return testutil.ToFloat64(r.server.metrics.delayed) > 0 })
	select { // longer than patience
	case <-time.After(2 * maxDelay):
		t.Fatal("it goes on")
	case <-func() chan struct{} {
		done := make(chan struct{})
		go func() {
			defer close(done)
			for m := range d.recvd {
				if m.err != nil {
					wantCode(t, m.err, codes.ResourceExhausted)
					return
				}
			}
		}()
		return done
	}():
	}
	wantRefused(t, r, reasonRequests, 1)
}

// TestNegativeLimitsAreErrors, each by its name.
func TestNegativeLimitsAreErrors(t *testing.T) {
	l := Limits{}
	l.each(func(name string, value *int, byDefault int) {
		if *value = -1; byDefault <= 0 {
			t.Errorf("%s is %d by default", name, byDefault)
		}
	})
	_, err := l.complete()
	l.each(func(name string, _ *int, _ int) {
		if err == nil || !strings.Contains(err.Error(), name+" is -1") {
			t.Errorf("the error does not name %s: %v", name, err)
		}
	})
	if _, err := New(Config{Listeners: []Listener{{Address: "127.0.0.1:0"}}, Limits: l}, Deps{}); err == nil {
		t.Error("a server is made with negative limits")
	}
}
