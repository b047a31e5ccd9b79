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
)

// testMeter returns a meter whose grants are never refused, and what has been granted.
func testMeter() (*meter, func() []int) {
	r := newReceiving(32<<20, func(net.Addr, refusal.Reason) {})
	m := &meter{all: r, most: 32 << 20, key: "a", preface: len(http2Preface), parts: map[uint32]part{}}
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
		wire.WriteString(http2Preface)
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
				check(f.WriteSettingsAck())
			}
		}
		m, got := testMeter()
		for b := wire.Bytes(); len(b) > 0; {
			n := min(len(b), 1+rnd.IntN(9000))
			if rnd.IntN(4) == 0 {
				n = 1
			}
			if err := m.follow(b[:n]); err != nil {
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
		if len(m.parts) != 0 || m.have != 0 {
			t.Fatalf("round %d: %d requests are taken for incomplete", round, len(m.parts))
		}
		m.drop(func(*grant) bool { return true }, false)
		if m.all.used != 0 || len(m.all.byKey) != 0 {
			t.Fatalf("%d bytes are left", m.all.used)
		}
	}
}

// TestRequestsThatAreGivenUpAreForgotten: and those that come only in part are bounded.
func TestRequestsThatAreGivenUpAreForgotten(t *testing.T) {
	m, got := testMeter()
	m.preface = 0
	frames := func(write func(f *http2.Framer) error) error {
		var wire bytes.Buffer
		if err := write(http2.NewFramer(&wire, nil)); err != nil {
			t.Fatal(err)
		}
		return m.follow(wire.Bytes())
	}
	start := func(id uint32) error {
		return frames(func(f *http2.Framer) error { return f.WriteData(id, false, grpcMessage(100_000)[:100]) })
	}
	if err := start(1); err != nil || len(got()) != 1 || len(m.parts) != 1 {
		t.Fatalf("%v, granted %v, %d parts", err, got(), len(m.parts))
	}
	if err := frames(func(f *http2.Framer) error { return f.WriteRSTStream(1, http2.ErrCodeCancel) }); err != nil || len(got()) != 0 || len(m.parts) != 0 || m.all.used != 0 {
		t.Fatalf("%v, granted %v, %d parts", err, got(), len(m.parts))
	}
	var err error
	for id := uint32(3); err == nil && id < 10*maxParts; id += 2 {
		err = frames(func(f *http2.Framer) error { return f.WriteData(id, false, []byte{0}) })
	}
	if !errors.Is(err, errNoGrant) || len(m.parts) > maxParts+1 {
		t.Errorf("%v with %d parts", err, len(m.parts))
	}
}

// TestFollowingAcknowledgementsCostsNoAllocation: they are most of what is read.
func TestFollowingAcknowledgementsCostsNoAllocation(t *testing.T) {
	m, _ := testMeter()
	m.preface = 0
	var wire bytes.Buffer
	f := http2.NewFramer(&wire, nil)
	for id := uint32(1); id < 5; id += 2 {
		if err := f.WriteData(id, false, grpcMessage(80)); err != nil {
			t.Fatal(err)
		}
	}
	if n := testing.AllocsPerRun(100, func() {
		if err := m.follow(wire.Bytes()); err != nil {
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
	if err := errors.Join(fr.WriteSettings(), fr.WriteData(1, false, grpcMessage(70_000)[:20]), fr.WriteDataPadded(3, true, grpcMessage(3), make([]byte, 4)), fr.WriteRSTStream(1, 0)); err != nil {
		f.Fatal(err)
	}
	f.Add(wire.Bytes(), 7)
	f.Fuzz(func(t *testing.T, b []byte, piece int) {
		m, got := testMeter()
		m.preface, m.all.wait = 0, time.Millisecond
		for piece = max(piece, 1); len(b) > 0; b = b[min(piece, len(b)):] {
			if err := m.follow(b[:min(piece, len(b))]); err != nil {
				break
			}
		}
		sum := 0
		for _, size := range got() {
			sum += size
		}
		if sum != m.all.used || sum > m.all.most || len(m.parts) > maxParts+1 {
			t.Errorf("%d bytes granted, %d used, %d parts", sum, m.all.used, len(m.parts))
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
		conn, err := net.Dial("tcp", r.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := io.WriteString(conn, http2Preface); err != nil {
			t.Fatal(err)
		}
		f := http2.NewFramer(conn, conn)
		var headers bytes.Buffer
		enc := hpack.NewEncoder(&headers)
		for _, h := range [][2]string{{":method", "POST"}, {":scheme", "http"}, {":path", "/" + discoveryv3.AggregatedDiscoveryService_ServiceDesc.ServiceName + "/DeltaAggregatedResources"},
			{":authority", "x"}, {"content-type", "application/grpc"}, {"te", "trailers"}} {
			if err := enc.WriteField(hpack.HeaderField{Name: h[0], Value: h[1]}); err != nil {
				t.Fatal(err)
			}
		}
		if err := errors.Join(f.WriteSettings(), f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: headers.Bytes(), EndHeaders: true}),
			f.WriteData(1, false, grpcMessage(1 << 20)[:1000])); err != nil {
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
			return (all.used == 0) != full && len(all.meters) == 0
		})
	}
}
