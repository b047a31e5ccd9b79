package downstream

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"meshrelay/downstream/refusal"
	"meshrelay/internal/http2frames"
	"meshrelay/push"
)

// testMeter returns the meter of a connection that nobody reads from, with requests of 1 MiB at most.
func testMeter(t testing.TB) *meter {
	near, far := net.Pipe()
	t.Cleanup(func() { far.Close() })
	m := newMeter(near, newReceiving(1<<20, func(net.Addr, refusal.Reason) {}, push.NewWork()))
	m.in.Skip, m.all.wait = 0, time.Millisecond
	t.Cleanup(func() { m.Close() })
	return m
}

// grpcMessage returns a gRPC message of that size.
func grpcMessage(size int) []byte {
	b := make([]byte, 5+size)
	binary.BigEndian.PutUint32(b[1:], uint32(size))
	return b
}

// data returns a DATA frame of stream 1.
func data(t testing.TB, payload []byte) []byte {
	t.Helper()
	var wire bytes.Buffer
	if err := http2.NewFramer(&wire, nil).WriteData(1, false, payload); err != nil {
		t.Fatal(err)
	}
	return wire.Bytes()
}

// usedTurns returns how many turns all connections have.
func (r *receiving) usedTurns() (n int) {
	for _, of := range r.turns {
		of.mu.Lock()
		n += of.used
		if of.used == 0 && len(of.byKey) > 0 {
			n = -1 // a peer has turns that nobody has
		}
		of.mu.Unlock()
	}
	return n
}

// TestTurnsFollowWhatGRPCHolds: in whatever order frames come, requests are received and streams end.
func TestTurnsFollowWhatGRPCHolds(t *testing.T) {
	t.Parallel()
	for seed := range uint64(200) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		m := testMeter(t)
		m.streams = 1 // which stays
		held, buffers := 0, 0
		for range 100 {
			switch n := 1 + rnd.IntN(16<<10); {
			case rnd.IntN(3) > 0:
				if err := m.in.Follow(data(t, make([]byte, n))); err != nil {
					t.Fatalf("seed %d: %v with %d bytes", seed, err, held)
				}
				held, buffers = held+n, buffers+bufferOf(n)-n+frameCost
			case rnd.IntN(5) == 0:
				m.streamBegins()
				m.streamEnds()
			case held > 0:
				n = 1 + rnd.IntN(held)
				m.received(n)
				if held -= n; held == 0 {
					buffers = 0
				}
			}
			want := m.all.needed(held + buffers)
			if m.held() != held+buffers || m.turns != want || m.all.usedTurns() != want[medium]+want[large] {
				t.Fatalf("seed %d: %d bytes are held with %v turns, want %d with %v", seed, m.held(), m.turns, held+buffers, want)
			}
		}
		if m.streamEnds(); m.held() != 0 || m.all.usedTurns() != 0 {
			t.Fatalf("seed %d: without a stream, %d bytes are held with %v turns", seed, m.held(), m.turns)
		}
	}
}

// TestTurnsBySize: who holds little needs none.
func TestTurnsBySize(t *testing.T) {
	r := newReceiving(1<<20, nil, nil)
	for held, want := range map[int][turnSizes]int{
		0: {}, freeBytes: {}, freeBytes + 1: {1, 0}, mediumBytes: {1, 0}, mediumBytes + 1: {1, 1},
		mediumBytes + 1<<20: {1, 1}, mediumBytes + 1<<20 + 1: {1, 2},
	} {
		if got := r.needed(held); got != want {
			t.Errorf("for %d bytes: %v turns, want %v", held, got, want)
		}
	}
}

// TestFollowingAcknowledgementsCostsNoAllocation: they are most of what is read.
func TestFollowingAcknowledgementsCostsNoAllocation(t *testing.T) {
	m := testMeter(t)
	wire := data(t, grpcMessage(80))
	if n := testing.AllocsPerRun(100, func() {
		if err := m.in.Follow(wire); err != nil {
			t.Fatal(err)
		}
		m.received(85)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// FuzzFollow: nothing that is read makes it panic, and a connection has no more turns than it may.
func FuzzFollow(f *testing.F) {
	var wire bytes.Buffer
	fr := http2.NewFramer(&wire, nil)
	if err := errors.Join(fr.WriteSettings(), fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1}), fr.WriteData(1, false, grpcMessage(70_000)[:20]),
		fr.WriteDataPadded(3, true, grpcMessage(3), make([]byte, 4)), fr.WriteRSTStream(1, 0)); err != nil {
		f.Fatal(err)
	}
	f.Add(wire.Bytes(), 7)
	f.Fuzz(func(t *testing.T, b []byte, piece int) {
		m := testMeter(t)
		for piece = max(piece, 1); len(b) > 0; b = b[min(piece, len(b)):] {
			if err := m.in.Follow(b[:min(piece, len(b))]); err != nil {
				break
			}
		}
		for size, of := range m.all.turns {
			if m.turns[size] != of.used || of.used > of.ofPeer() {
				t.Errorf("the connection has %v turns of size %d, and %d are used", m.turns, size, of.used)
			}
		}
		if m.Close(); m.all.usedTurns() != 0 {
			t.Error("a closed connection has turns")
		}
	})
}

// takeAll takes turns for somebody else, and returns what gives them back.
func takeAll(t *testing.T, of *turns, key string, n int) (giveBack func()) {
	t.Helper()
	for range n {
		if err := of.take(key, time.Second); err != nil {
			t.Fatal(err)
		}
	}
	return func() { of.give(key, n) }
}

// TestLargeRequestsAreReceivedInTurn: for all connections together, and one peer leaves room.
func TestLargeRequestsAreReceivedInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for size, bytes := range map[int]int{medium: 2 * freeBytes, large: 2 * mediumBytes} {
			r := startInMemory(t, true)
			all := r.server.receiving
			of := all.turns[size]
			request := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: drV1, InitialResourceVersions: map[string]string{"shop/a": strings.Repeat("x", bytes)}}
			someone := takeAll(t, of, "someone", of.ofPeer())
			small := r.deltaBy("small", seV1)
			small.next()
			fits := r.deltaBy("fits", seV1)
			fits.next()
			fits.send(request)
			fits.next()
			others := takeAll(t, of, "others", of.most-of.ofPeer())
			waits := r.deltaBy("waits", seV1)
			waits.next()
			sent := make(chan struct{})
			go func() {
				defer close(sent)
				waits.send(request)
			}()
			small.send(subscribeDelta(drV1))
			small.next()
			for _, c := range r.server.Clients() {
				if c.NodeID == "waits" && len(c.Types) != 1 {
					t.Error("a large request was received over the bound")
				}
			}
			others()
			waits.next()
			<-sent
			someone()
			if n := refusals(r, refusal.Receiving); n != 0 {
				t.Errorf("%d connections were closed", n)
			}
			r.eventually(t, "all turns are given back", func() bool { return all.usedTurns() == 0 })
		}
	})
}

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
		m := r.server.connections()[0].peer.AuthInfo.(meteredInfo).meter
		m.mu.Lock()
		defer m.mu.Unlock()
		return m.held() == 0 && m.streams == 1 && m.turns == [turnSizes]int{}
	})
}

// TestLargeRequestThatDoesNotEndIsCutOff: and so is one for which there is no turn.
func TestLargeRequestThatDoesNotEndIsCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, full := range []bool{false, true} {
			r := startInMemory(t, true)
			all := r.server.receiving
			all.time, all.wait = 50*time.Millisecond, 50*time.Millisecond // before there is a connection
			want := 0
			if full {
				want = all.turns[medium].most
				takeAll(t, all.turns[medium], "one", all.turns[medium].ofPeer())
				takeAll(t, all.turns[medium], "two", want-all.turns[medium].ofPeer())
			}
			conn, f := rawStream(t, r)
			if err := errors.Join(f.WriteData(1, false, grpcMessage(1 << 20)[:freeBytes]), f.WriteData(1, false, make([]byte, 1000))); err != nil {
				t.Fatal(err)
			}
			if _, err := io.Copy(io.Discard, conn); err != nil && errors.Is(err, net.ErrClosed) {
				t.Error(err)
			}
			wantRefused(t, r, refusal.Receiving, 1)
			r.eventually(t, "nothing of it is left", func() bool { return all.usedTurns() == want && r.open() == 0 })
		}
	})
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
	conn := r.raw("127.0.0.1")
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
	r := startRelay(t, true, func(c *Config, _ *Deps) { c.MaxRequestBytes = 1 << 20 })
	_, f := rawStream(t, r)
	message := grpcMessage(1 << 20)
	for sent := range 60_000 { // which flow control lets through
		if f.WriteData(1, false, message[sent:sent+1]) != nil {
			break
		}
	}
	wantRefused(t, r, refusal.Receiving, 1)
	r.eventually(t, "nothing of it is left", func() bool { return r.server.receiving.usedTurns() == 0 && r.open() == 0 })
}

// TestARefusedStreamGivesItsTurnsBack: and its connection stays.
func TestARefusedStreamGivesItsTurnsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startInMemory(t, true, func(c *Config, _ *Deps) { c.FirstRequestTimeout = 50 * time.Millisecond })
		_, f := rawStream(t, r)
		if err := errors.Join(f.WriteData(1, false, grpcMessage(1 << 20)[:freeBytes]), f.WriteData(1, false, make([]byte, 1000))); err != nil {
			t.Fatal(err)
		}
		for refused := false; !refused; {
			frame, err := f.ReadFrame()
			if err != nil {
				t.Fatal(err)
			}
			refused = frame.Header().StreamID == 1 && frame.Header().Flags.Has(http2.FlagHeadersEndStream)
		}
		r.eventually(t, "its turn is given back", func() bool { return r.server.receiving.usedTurns() == 0 && r.open() == 1 })
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
