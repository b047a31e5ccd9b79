package downstream

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/protobuf/proto"

	"meshrelay/downstream/refusal"
)

// TestRequestsAreHeardHoweverTheyAreCut: into frames with and without padding, frames into writes, and the
// streams of a connection among one another. Streams begin one by one, or several at once.
func TestRequestsAreHeardHoweverTheyAreCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startInMemory(t, true)
		for seed := range uint64(20) {
			rnd := rand.New(rand.NewPCG(seed, 7))
			conn := r.raw("127.0.0.1")
			in := http2.NewFramer(nil, conn)
			flush := func(wire *bytes.Buffer) { // in pieces, which may be read by themselves
				for wire.Len() > 0 {
					if _, err := conn.Write(wire.Next(1 + rnd.IntN(600))); err != nil {
						t.Fatal(err)
					}
				}
			}
			var wire bytes.Buffer
			out := http2.NewFramer(&wire, nil)
			wire.WriteString(http2.ClientPreface)
			if err := out.WriteSettings(); err != nil {
				t.Fatal(err)
			}
			var block bytes.Buffer
			enc := hpack.NewEncoder(&block)
			answers := map[uint32][]byte{}
			ended := map[uint32]bool{}
			read := func() {
				frame, err := in.ReadFrame()
				if err != nil {
					t.Fatalf("seed %d: %v; %d streams have ended", seed, err, len(ended))
				}
				switch f := frame.(type) {
				case *http2.DataFrame:
					answers[f.StreamID] = append(answers[f.StreamID], f.Data()...)
				case *http2.HeadersFrame:
					if f.StreamEnded() {
						ended[f.StreamID] = true
					} else if answers[f.StreamID] == nil {
						answers[f.StreamID] = []byte{} // the stream is there
					}
				}
			}
			var next uint32 = 1
			for range 3 {
				var ids []uint32
				pending := map[uint32][]byte{}
				asked := map[uint32]int{}
				for range 1 + rnd.IntN(3) {
					id := next
					next += 2
					ids = append(ids, id)
					block.Reset()
					for _, h := range [][2]string{{":method", "POST"}, {":scheme", "http"}, {":path", discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResources_FullMethodName},
						{":authority", "x"}, {"content-type", "application/grpc"}, {"te", "trailers"}} {
						if err := enc.WriteField(hpack.HeaderField{Name: h[0], Value: h[1]}); err != nil {
							t.Fatal(err)
						}
					}
					cut := rnd.IntN(block.Len())
					if err := errors.Join(
						out.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block.Bytes()[:cut], PadLength: uint8(rnd.IntN(20))}),
						out.WriteContinuation(id, true, block.Bytes()[cut:])); err != nil {
						t.Fatal(err)
					}
					for i := range 1 + rnd.IntN(4) {
						req := subscribeDelta(fmt.Sprintf("test/v1/Kind%d", i))
						if i > 0 {
							req.Node = nil
						}
						b, err := proto.Marshal(req)
						if err != nil {
							t.Fatal(err)
						}
						message := grpcMessage(len(b))
						copy(message[5:], b)
						pending[id] = append(pending[id], message...)
						asked[id]++
					}
					if rnd.IntN(2) == 0 {
						flush(&wire)
						for answers[id] == nil {
							read()
						}
					}
				}
				for len(pending) > 0 {
					id := ids[rnd.IntN(len(ids))]
					rest, ok := pending[id]
					if !ok {
						continue
					}
					n := min(len(rest), []int{1, 2, 4, 5, 6, 50, 1000}[rnd.IntN(7)])
					var err error
					if rnd.IntN(3) == 0 {
						err = out.WriteDataPadded(id, false, rest[:n], make([]byte, rnd.IntN(50)))
					} else {
						err = out.WriteData(id, false, rest[:n])
					}
					if err != nil {
						t.Fatal(err)
					}
					if pending[id] = rest[n:]; n == len(rest) {
						delete(pending, id)
					}
					if rnd.IntN(5) == 0 {
						if err := errors.Join(out.WriteWindowUpdate(id, 1), out.WriteWindowUpdate(0, 1)); err != nil {
							t.Fatal(err)
						}
					}
					if rnd.IntN(10) == 0 {
						flush(&wire)
					}
				}
				flush(&wire)
				for _, id := range ids {
					for countMessages(answers[id]) < asked[id] {
						read()
					}
					var err error
					switch rnd.IntN(3) {
					case 0:
						err = out.WriteData(id, true, nil)
					case 1:
						err = out.WriteDataPadded(id, true, nil, make([]byte, 3))
					default:
						err = out.WriteRSTStream(id, http2.ErrCodeCancel)
						ended[id] = true
					}
					if err != nil {
						t.Fatal(err)
					}
					flush(&wire)
					for !ended[id] {
						read()
					}
				}
			}
			r.eventually(t, "no stream is left", func() bool { return len(r.server.connections()) == 0 })
			if err := conn.Close(); err != nil && !errors.Is(err, io.EOF) {
				t.Fatal(err)
			}
		}
	})
}

// countMessages returns how many gRPC messages are complete.
func countMessages(b []byte) (n int) {
	for len(b) >= 5 {
		size := 5 + int(uint32(b[1])<<24|uint32(b[2])<<16|uint32(b[3])<<8|uint32(b[4]))
		if size > len(b) {
			break
		}
		b, n = b[size:], n+1
	}
	return n
}

// TestAStreamThatWasCutOffKeepsNothing: also while the client does not read the end of it. The buffers of real sockets
// take that end, those of a connection in memory may not.
func TestAStreamThatWasCutOffKeepsNothing(t *testing.T) {
	r := startRelay(t, true, func(c *Config, _ *Deps) { c.timeouts.unread = 50 * time.Millisecond })
	r.put(many(100, "s-%03d", func(int) string { return strings.Repeat("x", 2000) })...) // more than a window
	_, out := rawStream(t, r)
	b, err := proto.Marshal(subscribeDelta(seV1))
	if err != nil {
		t.Fatal(err)
	}
	message := grpcMessage(len(b))
	copy(message[5:], b)
	if err := out.WriteData(1, false, message); err != nil {
		t.Fatal(err)
	}
	var c weak.Pointer[conn]
	r.eventually(t, "the stream is there", func() bool {
		for _, is := range r.server.connections() {
			c = weak.Make(is)
		}
		return c.Value() != nil
	})
	r.eventually(t, "the first response is on its way", func() bool {
		c := r.server.Clients()
		return len(c) == 1 && len(c[0].Types) == 1 && c[0].Types[0].Pushes == 1
	})
	// The transport takes one response more than it can send; the next one waits.
	r.put(se("shop", "s-000", "new.example"))
	wantRefused(t, r, refusal.Unread, 1)
	r.eventually(t, "the stream is gone", func() bool {
		runtime.GC()
		return c.Value() == nil
	})
}
