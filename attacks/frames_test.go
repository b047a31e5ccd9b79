package attacks

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/protobuf/encoding/protowire"

	"meshrelay/internal/testing/await"
)

// rawConn is a connection of the attacker without gRPC. It heeds windows, as the relay would end
// it otherwise.
type rawConn struct {
	net.Conn
	*http2.Framer
	windows map[uint32]int
	first   int // the window of a new stream
}

// rawDial opens a connection to the relay.
func (s *stage) rawDial() *rawConn { return s.rawDialFrom(nil) }

// rawDialFrom opens it from an address.
func (s *stage) rawDialFrom(from net.Addr) *rawConn {
	conn, err := (&net.Dialer{LocalAddr: from}).Dial("tcp", s.address)
	if err != nil {
		s.Error(err)
		return nil
	}
	s.Cleanup(func() { conn.Close() })
	c := &rawConn{conn, http2.NewFramer(conn, conn), map[uint32]int{0: 65535}, 65535}
	if _, err = io.WriteString(conn, http2.ClientPreface); err == nil {
		err = c.WriteSettings()
	}
	if err != nil {
		s.Errorf("a new connection: %v", err)
		return nil
	}
	return c
}

// open opens a stream to a method.
func (c *rawConn) open(id uint32, method string, more ...[2]string) error {
	var headers bytes.Buffer
	enc := hpack.NewEncoder(&headers)
	for _, h := range append([][2]string{{":method", "POST"}, {":scheme", "http"}, {":path", method}, {":authority", "x"}, {"content-type", "application/grpc"}, {"te", "trailers"}}, more...) {
		if err := enc.WriteField(hpack.HeaderField{Name: h[0], Value: h[1]}); err != nil {
			return err
		}
	}
	c.windows[id] = c.first
	return c.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: headers.Bytes(), EndHeaders: true})
}

// send sends bytes in frames of a size. Small frames are written many at once.
func (c *rawConn) send(id uint32, b []byte, frame int) error {
	var out bytes.Buffer
	f := http2.NewFramer(&out, nil)
	for len(b) > 0 {
		for c.windows[0] < frame || c.windows[id] < frame {
			if err := c.read(); err != nil {
				return err
			}
		}
		out.Reset()
		for out.Len() < 64<<10 && len(b) > 0 && min(c.windows[0], c.windows[id]) >= frame {
			n := min(frame, len(b))
			if err := f.WriteData(id, false, b[:n]); err != nil {
				return err
			}
			b, c.windows[0], c.windows[id] = b[n:], c.windows[0]-n, c.windows[id]-n
		}
		if _, err := c.Write(out.Bytes()); err != nil {
			return err
		}
	}
	return nil
}

// read reads one frame, and answers it.
func (c *rawConn) read() error {
	frame, err := c.ReadFrame()
	if err != nil {
		return err
	}
	switch frame := frame.(type) {
	case *http2.SettingsFrame:
		if frame.IsAck() {
			return nil
		}
		if n, ok := frame.Value(http2.SettingInitialWindowSize); ok {
			c.first = int(n)
			for id := range c.windows {
				if id > 0 {
					c.windows[id] += int(n) - 65535
				}
			}
		}
		return c.WriteSettingsAck()
	case *http2.PingFrame:
		if !frame.IsAck() {
			return c.WritePing(true, frame.Data)
		}
	case *http2.WindowUpdateFrame:
		c.windows[frame.StreamID] += int(frame.Increment)
	case *http2.RSTStreamFrame:
		return fmt.Errorf("stream %d: %v", frame.StreamID, frame.ErrCode)
	}
	return nil
}

// message frames a request of size bytes; b may be only its beginning.
func message(b []byte, size int) []byte {
	return append([]byte{0, byte(size >> 24), byte(size >> 16), byte(size >> 8), byte(size)}, b...)
}

// tinyFrames sends a request of 4 MB, a byte in a frame.
func tinyFrames(s *stage, n int) {
	// The bytes are ready before the connections open: the relay ends a connection without traffic.
	hello := join(field(deltaNode, node(nil)), text(deltaType, entryType))
	names := repeat(deltaNames, 95_000, func(i int) string { return fmt.Sprintf("evil/%035d", i) })
	together(n, func(int) {
		c := s.rawDial()
		if c == nil {
			return
		}
		err := errors.Join(c.open(1, delta), c.send(1, message(hello, len(hello)), 16<<10))
		if err == nil {
			err = c.send(1, message(names, len(names)), 1)
		}
		if err == nil {
			err = c.SetReadDeadline(time.Now().Add(await.Limit))
		}
		for err == nil {
			err = c.read()
		}
		s.tell("%v", err)
	})
}

// partialRequests sends, on each of a hundred streams, a request of 63 KiB but for its last byte.
func partialRequests(s *stage, n int) {
	together(n, func(int) {
		c := s.rawDial()
		if c == nil {
			return
		}
		const size = 63 << 10
		part := message(protowire.AppendTag(nil, sotwError, protowire.BytesType), size)
		part = append(part, make([]byte, size-6)...)
		hello := join(field(deltaNode, node(nil)), text(deltaType, "example.com/v1/Nothing"))
		var err error
		for id := uint32(1); id < 200 && err == nil; id += 2 {
			if err = errors.Join(c.open(id, delta), c.send(id, message(hello, len(hello)), 16<<10)); err == nil {
				err = c.send(id, part, 16<<10)
			}
		}
		if err != nil {
			s.tell("%v", err)
		}
	})
}

// fullStreams opens as many streams as the defaults under the manifest let one address, or fifty, have. Each has
// a connection, headers of 7 KB, and a part of a request: some of 60 KB, which count, else of 7 KB.
func fullStreams(s *stage, n int) {
	// Just below what one address, and all, may have of the 3,264 connections at one of two listeners.
	const ofOne, ofAll, large = 1800, 2400, 64
	var more [][2]string
	for i := range 7 {
		more = append(more, [2]string{fmt.Sprintf("x-%d", i), strings.Repeat("x", 900)})
	}
	hello := join(field(deltaNode, node(nil)), text(deltaType, entryType))
	big := message(field(deltaNames, bytes.Repeat([]byte("x"), 1<<20)), 2<<20)
	each := ofOne
	if n > 1 {
		each = ofAll / n
	}
	together(n, func(i int) {
		for k := range each {
			c := s.rawDialFrom(&net.TCPAddr{IP: net.IPv4(127, 0, 1, byte(i+1))})
			if c == nil {
				return
			}
			err := errors.Join(c.open(1, delta, more...), c.send(1, message(hello, len(hello)), 16<<10))
			if part := big[:7<<10]; err == nil {
				if k < max(large/n, 1) {
					part = big[:60<<10] // before the window opens for more
				}
				err = c.send(1, part, 7<<10)
			}
			if err != nil {
				s.tell("%v", err)
			}
		}
	})
}
