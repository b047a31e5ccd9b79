package downstream

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"meshrelay/downstream/admit"
	"meshrelay/downstream/refusal"
	"meshrelay/internal/testing/await"
)

// grpcMessage returns a gRPC message of that size.
func grpcMessage(size int) []byte {
	b := make([]byte, 5+size)
	binary.BigEndian.PutUint32(b[1:], uint32(size))
	return b
}

// taken returns how many connections and streams there are, and the bytes that count of their requests.
func (r *relay) taken() (connections, streams, bytes int) {
	r.server.admission.Each(func(_ *admit.Peer, c, s, b int) { connections, streams, bytes = connections+c, streams+s, bytes+b })
	return connections, streams, bytes
}

// connections returns how many there are, and streams how many streams.
func (r *relay) connections() int { n, _, _ := r.taken(); return n }

func (r *relay) streams() int { _, n, _ := r.taken(); return n }

// TestNothingIsHeldOfRequestsThatWereReceived while the stream goes on.
func TestNothingIsHeldOfRequestsThatWereReceived(t *testing.T) {
	r := startRelay(t, true)
	d := r.delta()
	d.send(subscribeDelta(seV1))
	d.next()
	for i := range 5 {
		versions := map[string]string{}
		for j := range 2000 * i {
			versions[fmt.Sprint("shop/", j)] = fmt.Sprint(j)
		}
		d.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: fmt.Sprintf("test/v%d/Kind", i), InitialResourceVersions: versions})
		d.next()
	}
	r.eventually(t, "nothing is held", func() bool {
		connections, streams, bytes := r.taken()
		return connections == 1 && streams == 1 && bytes == 0
	})
}

// TestStreamsOfOneConnectionLeaveNothingHeld: two that stay and are sent changes, and others that come and go.
func TestStreamsOfOneConnectionLeaveNothingHeld(t *testing.T) {
	r := startRelay(t, true)
	conn := r.dial()
	open := func() *deltaStream {
		ctx, cancel := context.WithCancel(t.Context())
		s, err := conn.DeltaAggregatedResources(ctx)
		if err != nil {
			t.Fatal(err)
		}
		d := newStream(t, s, cancel)
		d.send(subscribeDelta(seV1))
		d.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: seV1, ResponseNonce: d.next().Nonce})
		return d
	}
	stay := []*deltaStream{open(), open()}
	for i := range 300 {
		open().cancel()
		if i%10 == 0 {
			r.put(se("shop", "a", strings.Repeat("x", 100_000)+strconv.Itoa(i)))
			for _, d := range stay {
				d.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: seV1, ResponseNonce: d.next().Nonce})
			}
		}
	}
	r.eventually(t, "nothing is held", func() bool {
		connections, streams, bytes := r.taken()
		return connections == 1 && streams == 2 && bytes == 0
	})
}

// TestLargeRequestThatDoesNotEndIsCutOff where others wait for its room.
func TestLargeRequestThatDoesNotEndIsCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startInMemory(t, true, func(c *Config, _ *Deps) { c.MaxRequestBytes = 4 << 20 })
		send := func() {
			_, f := rawStream(t, r)
			err := f.WriteData(1, false, grpcMessage(2 << 20)[:16<<10])
			for opened := false; !opened && err == nil; {
				var frame http2.Frame
				frame, err = f.ReadFrame()
				update, ok := frame.(*http2.WindowUpdateFrame)
				opened = ok && update.StreamID == 1
			}
			for range 60 {
				err = errors.Join(err, f.WriteData(1, false, make([]byte, 16<<10)))
			}
			if err != nil {
				t.Error(err)
			}
		}
		for range 12 {
			send()
		}
		await.Settle(31 * time.Second)
		if n := r.connections(); n != 12 {
			t.Errorf("%d connections are left, and nobody waits", n)
		}
		send()
		wantRefused(t, r, refusal.Receiving, 1)
	})
}

// rawStream opens stream 1 of a connection without gRPC.
func rawStream(t *testing.T, r *relay) (net.Conn, *http2.Framer) {
	t.Helper()
	conn := r.raw("127.0.0.1")
	if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
		t.Fatal(err)
	}
	f := http2.NewFramer(conn, conn)
	var headers bytes.Buffer
	enc := hpack.NewEncoder(&headers)
	for _, h := range [][2]string{{":method", "POST"}, {":scheme", "http"}, {":path", discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResources_FullMethodName},
		{":authority", "x"}, {"content-type", "application/grpc"}, {"te", "trailers"}} {
		if err := enc.WriteField(hpack.HeaderField{Name: h[0], Value: h[1]}); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(f.WriteSettings(), f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: headers.Bytes(), EndHeaders: true})); err != nil {
		t.Fatal(err)
	}
	return conn, f
}

// TestARefusedStreamGivesItsRoomBack: and its connection stays.
func TestARefusedStreamGivesItsRoomBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startInMemory(t, true, func(c *Config, _ *Deps) { c.timeouts.first = 50 * time.Millisecond })
		_, f := rawStream(t, r)
		if err := errors.Join(f.WriteData(1, false, grpcMessage(1 << 20)[:16<<10]), f.WriteData(1, false, make([]byte, 1000))); err != nil {
			t.Fatal(err)
		}
		for refused := false; !refused; {
			frame, err := f.ReadFrame()
			if err != nil {
				t.Fatal(err)
			}
			refused = frame.Header().StreamID == 1 && frame.Header().Flags.Has(http2.FlagHeadersEndStream)
		}
		r.eventually(t, "its room is given back", func() bool { connections, _, bytes := r.taken(); return connections == 1 && bytes == 0 })
		if err := errors.Join(f.WriteData(1, false, make([]byte, 5000)), f.WritePing(false, [8]byte{1})); err != nil {
			t.Fatal(err)
		}
		for answered := false; !answered; {
			frame, err := f.ReadFrame()
			if err != nil {
				t.Fatal(err)
			}
			ping, ok := frame.(*http2.PingFrame)
			answered = ok && ping.IsAck() && ping.Data == [8]byte{1}
		}
		if n := refusals(r, refusal.Receiving); n != 0 {
			t.Errorf("%d connections were closed", n)
		}
	})
}
