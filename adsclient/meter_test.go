package adsclient

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strings"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/protobuf/types/known/anypb"

	"meshrelay/internal/http2frames"
	"meshrelay/internal/testing/await"
)

// serveFrames starts a server that answers the first stream of each connection with a response of
// size bytes, in frames of frame bytes. ended is told, once the client has ended the connection, how
// many frames it was sent.
func serveFrames(t *testing.T, size, frame int) (address string, ended chan int) {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { lis.Close() })
	ended = make(chan int, 100)
	response := mustMarshal(t, &discoveryv3.DiscoveryResponse{TypeUrl: seURL, Resources: []*anypb.Any{{TypeUrl: "x", Value: make([]byte, size)}}})
	go func() {
		for {
			conn, err := lis.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { conn.Close() })
			go func() {
				n, _ := sendFrames(conn, response, frame) // the client ends it
				ended <- n
			}()
		}
	}()
	return lis.Addr().String(), ended
}

// sendFrames returns how many frames were sent. It heeds the windows of the stream.
func sendFrames(conn net.Conn, response []byte, frame int) (sent int, err error) {
	if _, err := io.ReadFull(conn, make([]byte, len(http2frames.Preface))); err != nil {
		return 0, err
	}
	f := http2.NewFramer(conn, conn)
	if err := f.WriteSettings(); err != nil {
		return 0, err
	}
	windows := map[uint32]int{0: 65535, 1: 65535}
	message := append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(response))), response...)
	open := false
	for {
		for open && len(message) > 0 && min(windows[0], windows[1]) >= frame {
			n := min(frame, len(message))
			if err := f.WriteData(1, false, message[:n]); err != nil {
				return sent, err
			}
			message = message[n:]
			windows[0], windows[1], sent = windows[0]-n, windows[1]-n, sent+1
		}
		in, err := f.ReadFrame()
		if err != nil {
			return sent, err
		}
		switch in := in.(type) {
		case *http2.SettingsFrame:
			if !in.IsAck() {
				err = f.WriteSettingsAck()
			}
		case *http2.PingFrame:
			if !in.IsAck() {
				err = f.WritePing(true, in.Data)
			}
		case *http2.WindowUpdateFrame:
			windows[in.StreamID] += int(in.Increment)
		case *http2.HeadersFrame:
			var headers bytes.Buffer
			enc := hpack.NewEncoder(&headers)
			err = errors.Join(enc.WriteField(hpack.HeaderField{Name: ":status", Value: "200"}), enc.WriteField(hpack.HeaderField{Name: "content-type", Value: "application/grpc"}),
				f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: headers.Bytes(), EndHeaders: true}))
			open = true
		}
		if err != nil {
			return sent, err
		}
	}
}

// TestTinyFramesEndTheConnection_C15: gRPC keeps many times their bytes.
func TestTinyFramesEndTheConnection_C15(t *testing.T) {
	address, ended := serveFrames(t, 8<<20, 1)
	h := newRecorder()
	start(t, h, func(c *Config) { c.Protocol = SotW }, address)
	if n := await.Value(t, "the end of the connection", ended); n > 4*maxTiny {
		t.Errorf("%d frames were received", n)
	}
	h.await(t, "the reason", func() bool {
		err := h.last().Err
		return err != nil && strings.Contains(err.Error(), http2frames.ErrTiny.Error())
	})
}

// TestSmallFramesAreCounted_C15: gRPC keeps those without a buffer of the pool.
func TestSmallFramesAreCounted_C15(t *testing.T) {
	const size = 8 << 20
	for _, frame := range []int{smallFrame - 1, 16 << 10} {
		address, _ := serveFrames(t, size, frame)
		b := inFlight
		h := newRecorder()
		held := make(chan int, 100)
		h.reject = func(*Response) error {
			b.mu.Lock()
			defer b.mu.Unlock()
			held <- b.held
			return nil
		}
		start(t, h, func(c *Config) { c.Protocol = SotW }, address)
		if n := await.Value(t, "a response", held); n < size || n > size*3/2 {
			t.Errorf("frames of %d bytes: %d bytes are counted of a response of %d", frame, n, size)
		}
		await.Until(t, "all is given back", func() bool { b.mu.Lock(); defer b.mu.Unlock(); return b.held <= 100<<10 })
	}
}
