package downstream

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"meshrelay/downstream/snapshot"
	"meshrelay/downstream/views"
	"meshrelay/mirror"
)

// deaf opens a stream on a connection of its own that is never read from: not by HTTP/2, as
// a client of gRPC does even if nobody wants the messages, and not by TCP.
func (r *relay) deaf(typeURL string) {
	r.t.Helper()
	c := r.raw("127.0.0.1")
	var headers bytes.Buffer
	enc := hpack.NewEncoder(&headers)
	for _, f := range [][2]string{
		{":method", "POST"}, {":scheme", "http"}, {":authority", "relay"},
		{":path", "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources"},
		{"content-type", "application/grpc"}, {"te", "trailers"},
	} {
		if err := enc.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]}); err != nil {
			r.t.Fatal(err)
		}
	}
	request := must(proto.Marshal(subscribe(typeURL)))
	message := append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(request))), request...)
	if _, err := io.WriteString(c, http2.ClientPreface); err != nil {
		r.t.Fatal(err)
	}
	framer := http2.NewFramer(c, c)
	for _, err := range []error{
		framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1<<31 - 1}),
		framer.WriteWindowUpdate(0, 1<<30),
		framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: headers.Bytes(), EndHeaders: true}),
		framer.WriteData(1, false, message),
	} {
		if err != nil {
			r.t.Fatal(err)
		}
	}
}

// TestNobodyCanDelayTheDrain: whatever a client leaves undone, the others are told to go at
// once, and the server ends in time.
func TestNobodyCanDelayTheDrain(t *testing.T) {
	const timeout = time.Minute
	connect := func(r *relay) net.Conn { return r.raw("127.0.0.1") }
	hasPushed := func(r *relay) {
		r.eventually(r.t, "a response is on its way", func() bool {
			for _, c := range r.server.Clients() {
				if c.Protocol == protocolSotW && len(c.Types) == 1 && c.Types[0].Pushes > 0 {
					return true
				}
			}
			return false
		})
	}
	for _, tc := range []struct {
		name   string
		tls    bool
		behave func(r *relay)
		atOnce bool // nothing has to be waited for
	}{
		{"reads no message", false, func(r *relay) { r.stalled(seV1); hasPushed(r) }, false},
		{"reads no byte", false, func(r *relay) { r.deaf(seV1); hasPushed(r) }, false},
		{"sends nothing", false, func(r *relay) { connect(r) }, true},
		{"sends half of the preface", false, func(r *relay) { fmt.Fprint(connect(r), http2.ClientPreface[:10]) }, true},
		{"sends nothing, where TLS is wanted", true, func(r *relay) { connect(r) }, true},
		{"begins a TLS record, and does not end it", true, func(r *relay) { fmt.Fprint(connect(r), "\x16\x03\x01\x02\x00\x01") }, true},
		{"has no streams", false, func(r *relay) {
			c := connect(r)
			fmt.Fprint(c, http2.ClientPreface)
			if err := http2.NewFramer(c, c).WriteSettings(); err != nil {
				r.t.Fatal(err)
			}
		}, false},
	} {
		t.Run(tc.name, inBubble(func(t *testing.T) {
			r := startInMemory(t, true, func(c *Config, _ *Deps) {
				c.DrainTimeout = timeout
				if tc.tls {
					dir := t.TempDir()
					certificate(t, dir, "relay.example", certificate(t, dir, "ca", nil))
					c.Listeners = append(c.Listeners, Listener{Address: "127.0.0.1:0", TLS: &TLS{
						CertFile: filepath.Join(dir, "relay.example.crt"), KeyFile: filepath.Join(dir, "relay.example.key"),
					}})
				}
			})
			r.put(many(200, "s-%04d", func(int) string { return strings.Repeat("x", 5000) })...) // 1 MB
			good := r.delta()
			good.send(subscribeDelta(drV1))
			good.next()
			plain := r.addr
			if tc.tls {
				addrs, err := r.server.Addrs(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				r.addr = addrs[1].String()
			}
			in := r.connections()
			tc.behave(r)
			r.eventually(t, "it is in", func() bool { return r.connections() > in })
			r.addr = plain
			began := time.Now()
			stopped := make(chan struct{})
			go func() { defer close(stopped); r.stop() }()
			wantCode(t, good.end(), codes.Unavailable)
			if took := time.Since(began); took > time.Second {
				t.Errorf("another client was told after %v", took)
			}
			<-stopped
			if took := time.Since(began); took > timeout+time.Second || tc.atOnce && took > time.Second {
				t.Errorf("the server took %v to end", took)
			}
			if n := r.connections(); n != 0 {
				t.Errorf("%d connections are left", n)
			}
		}))
	}
}

// TestNoStreamsWhileDraining: on whatever connection they come.
func TestNoStreamsWhileDraining(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startInMemory(t, true)
		r.put(many(200, "s-%04d", func(int) string { return strings.Repeat("x", 5000) })...)
		r.deaf(seV1) // so that the drain lasts
		r.eventually(t, "it is served", func() bool { return len(r.server.Clients()) == 1 })
		client := r.dial()
		open := func() error {
			s, err := client.DeltaAggregatedResources(t.Context())
			if err == nil {
				if err = s.Send(subscribeDelta(drV1)); err == nil || errors.Is(err, io.EOF) {
					_, err = s.Recv()
				}
			}
			return err
		}
		if err := open(); err != nil {
			t.Fatal(err)
		}
		stopped := make(chan struct{})
		go func() { defer close(stopped); r.stop() }()
		r.eventually(t, "it drains", func() bool { return mirror.IsClosed(r.server.draining) })
		wantCode(t, open(), codes.Unavailable)
		wantCode(t, r.server.enter(&conn{}), codes.Unavailable)
		<-stopped
	})
}

// TestStormsLeaveNoTrace: clients that come and go, in all the ways there are.
func TestStormsLeaveNoTrace(t *testing.T) {
	r := startRelay(t, true, func(c *Config, _ *Deps) {
		c.NewStreamsPerSecond = 100_000
		c.Views = []views.View{namespaces("v", "limited-*", "shop"), {Name: "rest", Default: true}}
	})
	r.put(many(500, "s-%03d", func(int) string { return strings.Repeat("x", 200) })...)
	steady := r.deltaBy("steady", seV1)
	steady.next()
	const storms, streams = 50, 50
	client := r.dial()
	storm := func(round int) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		ended := make(chan error, streams)
		for i := range streams {
			go func() { ended <- func() error { return stormy(ctx, r, client, round, i) }() }()
		}
		for range streams {
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
		cancel()
		r.eventually(t, "the storm is over", func() bool { return len(r.server.connections()) == 1 && r.streams() == 1 })
	}
	trace := func() (goroutines int, heap uint64) {
		for range 3 {
			runtime.GC()
		}
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return runtime.NumGoroutine(), m.HeapAlloc
	}
	for round := range 5 { // pools and caches have what they need
		storm(round)
	}
	goroutines, heap := trace()
	for round := range storms {
		storm(round)
	}
	r.eventually(t, "goroutines and heap are as before", func() bool {
		g, h := trace()
		return g <= goroutines+5 && h < heap+heap/2+2<<20
	})
	vs := r.server.views
	vs.mu.Lock()
	defer vs.mu.Unlock()
	if len(vs.derived)+len(vs.forks) != 0 || vs.base.clients != 1 || vs.base.sotw != [snapshot.Forms]int{} {
		t.Errorf("%d and %d views are left, %d clients of the base view", len(vs.derived), len(vs.forks), vs.base.clients)
	}
	for _, p := range vs.base.snapshot(typeSE).Pages {
		if p.Encoded(snapshot.Full) {
			t.Error("a page is encoded, and no SotW client there")
			break
		}
	}
	if n := r.connections(); n > 2 {
		t.Errorf("%d connections are in", n)
	}
}

// TestTheServerEndsAfterItsStreams: nothing is done for a stream any more once Run has returned.
func TestTheServerEndsAfterItsStreams(t *testing.T) {
	r := startRelay(t, true)
	r.put(se("shop", "a", "a.example"))
	for i := range 30 {
		r.deltaBy(fmt.Sprintf("client-%d", i), seV1).next()
	}
	r.stop()
	if n := r.streams(); n != 0 || len(r.server.connections()) != 0 {
		t.Errorf("%d streams are open, %d are known", n, len(r.server.connections()))
	}
}

// TestStreamsThatAreResetCountUntilTheirWorkEnds: gRPC bounds handlers, and theirs have ended. A client that
// opens streams, asks and resets them at once has no more work done than with open ones.
func TestStreamsThatAreResetCountUntilTheirWorkEnds(t *testing.T) {
	var working atomic.Int64
	done := make(chan struct{})
	r := startRelay(t, true, func(c *Config, deps *Deps) {
		c.MaxStreams, c.NewStreamsPerSecond = 3, 1000
		deps.Logger = slog.New(onConnected{slog.DiscardHandler, func() {
			working.Add(1)
			defer working.Add(-1)
			<-done
		}})
	})
	release := sync.OnceFunc(func() { close(done) })
	defer release()
	for n := range int64(3) {
		s := r.sotw()
		s.send(subscribe(seV1))
		r.eventually(t, "it works", func() bool { return working.Load() == n+1 })
		s.cancel()
	}
	for range 10 {
		s := r.sotw()
		s.send(subscribe(seV1))
		wantCode(t, s.end(), codes.ResourceExhausted)
	}
	if n := working.Load(); n != 3 {
		t.Errorf("%d streams work, want 3", n)
	}
	release()
	r.eventually(t, "all have left", func() bool { return r.streams() == 0 && len(r.server.connections()) == 0 })
	r.sotw().send(subscribe(seV1))
	r.eventually(t, "another is in", func() bool { return r.streams() == 1 })
}
