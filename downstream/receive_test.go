package downstream

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"meshrelay/downstream/refusal"
	"meshrelay/internal/http2frames"
	"meshrelay/push"
)

// testMeter returns a meter whose grants are never refused, and what has been granted.
func testMeter() (*meter, func() []int) {
	r := newReceiving(32<<20, func(net.Addr, refusal.Reason) {}, push.NewWork())
	m := newMeter(nil, r, 32<<20, 100)
	m.key = "a"
	return m, func() (sizes []int) {
		for _, g := range m.grants {
			sizes = append(sizes, g.size)
		}
		return sizes
	}
}

// message returns a gRPC message of that size.
func grpcMessage(size int) []byte {
	b := make([]byte, 5+size)
	binary.BigEndian.PutUint32(b[1:], uint32(size))
	return b
}

// TestLargeRequestsAreSeenWhenTheyBegin: whatever frames they come in, and in whatever pieces
// these are read.
func TestLargeRequestsAreSeenWhenTheyBegin(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for round := range 100 {
		var wire bytes.Buffer
		wire.WriteString(http2frames.Preface)
		f := http2.NewFramer(&wire, nil)
		f.AllowIllegalWrites = true
		check := func(err error) {
			if err != nil {
				t.Fatal(err)
			}
		}
		check(f.WriteSettings())
		var want []int
		pending := map[uint32][]byte{}
		for id := uint32(1); id < 9; id += 2 {
			check(f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, EndHeaders: true}))
			for range rnd.IntN(4) {
				size := []int{0, 1, 100, largeRequest, largeRequest + 1, 3 * largeRequest, 33 << 20}[rnd.IntN(7)]
				if size == 33<<20 { // gRPC refuses it, and does not look at the rest
					size = 200
				}
				pending[id] = append(pending[id], grpcMessage(size)...)
				if size > largeRequest {
					want = append(want, size)
				}
			}
		}
		for len(pending) > 0 {
			for id, rest := range pending {
				n := min(len(rest), 1+rnd.IntN(16_000))
				if rnd.IntN(3) == 0 {
					check(f.WriteDataPadded(id, false, rest[:n], make([]byte, rnd.IntN(200))))
				} else {
					check(f.WriteData(id, false, rest[:n]))
				}
				if pending[id] = rest[n:]; n == len(rest) {
					delete(pending, id)
				}
				check(f.WritePing(false, [8]byte{}))
				check(f.WriteData(99, false, grpcMessage(100_000)[:100])) // of no stream
				check(f.WriteSettingsAck())
			}
		}
		m, got := testMeter()
		for b := wire.Bytes(); len(b) > 0; {
			n := min(len(b), 1+rnd.IntN(9000))
			if rnd.IntN(4) == 0 {
				n = 1
			}
			if err := m.in.Follow(b[:n]); err != nil {
				t.Fatal(err)
			}
			b = b[n:]
		}
		sizes := got()
		slices.Sort(sizes)
		slices.Sort(want)
		if !slices.Equal(sizes, want) {
			t.Fatalf("round %d: granted %v, want %v", round, sizes, want)
		}
		for id, p := range m.open {
			if p.have != 0 || p.left != 0 {
				t.Fatalf("round %d: the request of stream %d is taken for incomplete", round, id)
			}
		}
		m.drop(func(*grant) bool { return true }, false)
		if m.all.used != 0 || len(m.all.byKey) != 0 {
			t.Fatalf("%d bytes are left", m.all.used)
		}
	}
}

// TestRequestsThatAreGivenUpAreForgotten: by the client, or because the relay ends the stream; and
// the streams that are followed are bounded.
func TestRequestsThatAreGivenUpAreForgotten(t *testing.T) {
	m, got := testMeter()
	m.in.Skip = 0
	frames := func(to *http2frames.Follower, write func(f *http2.Framer) error) error {
		var wire bytes.Buffer
		if err := write(http2.NewFramer(&wire, nil)); err != nil {
			t.Fatal(err)
		}
		return to.Follow(wire.Bytes())
	}
	headers := func(id uint32, end bool) func(f *http2.Framer) error {
		return func(f *http2.Framer) error {
			return f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, EndHeaders: true, EndStream: end})
		}
	}
	large := func(id uint32) func(f *http2.Framer) error {
		return func(f *http2.Framer) error { return f.WriteData(id, false, grpcMessage(100_000)[:100]) }
	}
	reset := func(id uint32) func(f *http2.Framer) error {
		return func(f *http2.Framer) error { return f.WriteRSTStream(id, http2.ErrCodeCancel) }
	}
	for i, end := range []func(id uint32) error{
		func(id uint32) error { return frames(&m.in, reset(id)) },
		func(id uint32) error { return frames(&m.out, reset(id)) },
		func(id uint32) error { return frames(&m.out, headers(id, true)) },
	} {
		id := uint32(2*i + 1)
		if err := errors.Join(frames(&m.in, headers(id, false)), frames(&m.out, headers(id, false)), frames(&m.in, large(id))); err != nil || len(got()) != 1 || len(m.open) != 1 {
			t.Fatalf("%d: %v, granted %v, %d streams", i, err, got(), len(m.open))
		}
		if err := end(id); err != nil || len(got()) != 0 || len(m.open) != 0 || m.all.used != 0 {
			t.Fatalf("%d: %v, granted %v, %d streams", i, err, got(), len(m.open))
		}
		// A message that is still under way belongs to nobody.
		if err := errors.Join(frames(&m.in, large(id)), frames(&m.in, headers(id, true))); err != nil || len(got()) != 0 || len(m.open) != 0 {
			t.Fatalf("%d: %v, granted %v, %d streams after the end", i, err, got(), len(m.open))
		}
	}
	var err error
	for id := uint32(11); err == nil && id < 10*maxOpen; id += 2 {
		err = frames(&m.in, headers(id, false))
	}
	if !errors.Is(err, errNoGrant) || len(m.open) > m.streams+maxOpen+1 {
		t.Errorf("%v with %d streams", err, len(m.open))
	}
}

// TestFollowingAcknowledgementsCostsNoAllocation: they are most of what is read.
func TestFollowingAcknowledgementsCostsNoAllocation(t *testing.T) {
	m, _ := testMeter()
	m.in.Skip = 0
	var wire bytes.Buffer
	f := http2.NewFramer(&wire, nil)
	for id := uint32(1); id < 5; id += 2 {
		m.open[id] = &inflow{}
		if err := f.WriteData(id, false, grpcMessage(80)); err != nil {
			t.Fatal(err)
		}
	}
	if n := testing.AllocsPerRun(100, func() {
		if err := m.in.Follow(wire.Bytes()); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// FuzzFollow: nothing that is read makes it panic, and a connection costs no more than it may.
func FuzzFollow(f *testing.F) {
	var wire bytes.Buffer
	fr := http2.NewFramer(&wire, nil)
	if err := errors.Join(fr.WriteSettings(), fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1}), fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 3}), fr.WriteData(1, false, grpcMessage(70_000)[:20]), fr.WriteDataPadded(3, true, grpcMessage(3), make([]byte, 4)), fr.WriteRSTStream(1, 0)); err != nil {
		f.Fatal(err)
	}
	f.Add(wire.Bytes(), 7)
	f.Fuzz(func(t *testing.T, b []byte, piece int) {
		m, got := testMeter()
		m.in.Skip, m.all.wait = 0, time.Millisecond
		for piece = max(piece, 1); len(b) > 0; b = b[min(piece, len(b)):] {
			if err := m.in.Follow(b[:min(piece, len(b))]); err != nil {
				break
			}
		}
		sum := 0
		for _, size := range got() {
			sum += size
		}
		if sum != m.all.used || sum > m.all.most || len(m.open) > m.streams+maxOpen+1 {
			t.Errorf("%d bytes granted, %d used, %d streams", sum, m.all.used, len(m.open))
		}
		m.drop(func(*grant) bool { return true }, false)
	})
}

// TestLargeRequestsAreReceivedInTurn: for all connections together, and one peer leaves room.
func TestLargeRequestsAreReceivedInTurn(t *testing.T) {
	r := startRelay(t, true)
	all := r.server.receiving
	large := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: drV1, InitialResourceVersions: map[string]string{"shop/a": strings.Repeat("x", 2*largeRequest)}}
	if err := all.take("someone", mostOf(all.most)); err != nil {
		t.Fatal(err)
	}
	small := r.deltaBy("small", seV1)
	small.next()
	fits := r.deltaBy("fits", seV1)
	fits.next()
	fits.send(large)
	fits.next()
	if err := all.take("others", all.most-mostOf(all.most)); err != nil {
		t.Fatal(err)
	}
	waits := r.deltaBy("waits", seV1)
	waits.next()
	waits.send(large)
	small.send(subscribeDelta(drV1))
	small.next()
	for _, c := range r.server.Clients() {
		if c.NodeID == "waits" && len(c.Types) != 1 {
			t.Error("a large request was received over the bound")
		}
	}
	all.give("others", all.most-mostOf(all.most))
	waits.next()
	all.give("someone", mostOf(all.most))
	if n := refusals(r, refusal.Receiving); n != 0 {
		t.Errorf("%d connections were closed", n)
	}
	eventually(t, "all is given back", func() bool {
		all.mu.Lock()
		defer all.mu.Unlock()
		return all.used == 0 && len(all.byKey) == 0
	})
}

// TestLargeRequestThatDoesNotEndIsCutOff: and so is one for which there is no room.
func TestLargeRequestThatDoesNotEndIsCutOff(t *testing.T) {
	for _, full := range []bool{false, true} {
		r := startRelay(t, true)
		all := r.server.receiving
		all.mu.Lock()
		all.time, all.wait = 50*time.Millisecond, 50*time.Millisecond
		all.mu.Unlock()
		if full {
			for _, key := range []string{"one", "two"} {
				if err := all.take(key, all.most/2); err != nil {
					t.Fatal(err)
				}
			}
		}
		conn, f := rawStream(t, r)
		if err := f.WriteData(1, false, grpcMessage(1 << 20)[:1000]); err != nil {
			t.Fatal(err)
		}
		if err := conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, conn); err != nil && errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
		wantRefused(t, r, refusal.Receiving, 1)
		eventually(t, "nothing of it is left", func() bool {
			all.mu.Lock()
			defer all.mu.Unlock()
			return (all.used == 0) != full && r.open() == 0
		})
	}
}

// open returns how many connections there are.
func (r *relay) open() int {
	l := r.server.connLimiter
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.in)
}

// rawStream opens stream 1 of a connection without gRPC.
func rawStream(t *testing.T, r *relay) (net.Conn, *http2.Framer) {
	t.Helper()
	conn, err := net.Dial("tcp", r.addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if _, err := io.WriteString(conn, http2frames.Preface); err != nil {
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

// TestTinyFramesEndTheConnection: gRPC keeps many times their bytes.
func TestTinyFramesEndTheConnection(t *testing.T) {
	r := startRelay(t, true)
	_, f := rawStream(t, r)
	message := grpcMessage(1 << 20)
	sent := 0
	for ; sent < 60_000; sent++ { // which flow control lets through
		if f.WriteData(1, false, message[sent:sent+1]) != nil {
			break
		}
	}
	wantRefused(t, r, refusal.Frames, 1)
	eventually(t, "nothing of it is left", func() bool {
		all := r.server.receiving
		all.mu.Lock()
		defer all.mu.Unlock()
		return all.used == 0 && r.open() == 0
	})
}

// TestARefusedStreamGivesBackItsGrant: the others of its connection stay.
func TestARefusedStreamGivesBackItsGrant(t *testing.T) {
	r := startRelay(t, true, func(c *Config, _ *Deps) { c.FirstRequestTimeout = 50 * time.Millisecond })
	conn, f := rawStream(t, r)
	if err := f.WriteData(1, false, grpcMessage(1 << 20)[:1000]); err != nil {
		t.Fatal(err)
	}
	if err := conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	for refused := false; !refused; {
		frame, err := f.ReadFrame()
		if err != nil {
			t.Fatal(err)
		}
		refused = frame.Header().StreamID == 1 && frame.Header().Flags.Has(http2.FlagHeadersEndStream)
	}
	all := r.server.receiving
	eventually(t, "its grant is given back", func() bool {
		all.mu.Lock()
		defer all.mu.Unlock()
		return all.used == 0 && r.open() == 1
	})
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
}
