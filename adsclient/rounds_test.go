package adsclient

import (
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"meshrelay/internal/fakexds"
)

// closed starts an HTTP/2 server that is alive, answers pings, and lets no stream be opened.
func closed(t *testing.T) string {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	serve := func(conn net.Conn) {
		defer conn.Close()
		if _, err := io.ReadFull(conn, make([]byte, len(http2.ClientPreface))); err != nil {
			return
		}
		framer := http2.NewFramer(conn, conn)
		err := framer.WriteSettings(http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: 0})
		for err == nil {
			var f http2.Frame
			if f, err = framer.ReadFrame(); err != nil {
				return
			}
			switch f := f.(type) {
			case *http2.SettingsFrame:
				if !f.IsAck() {
					err = framer.WriteSettingsAck()
				}
			case *http2.PingFrame:
				if !f.IsAck() {
					err = framer.WritePing(true, f.Data)
				}
			}
		}
	}
	serving.Go(func() {
		for {
			conn, err := lis.Accept()
			if err != nil {
				return
			}
			serving.Go(func() { serve(conn) })
		}
	})
	t.Cleanup(func() { lis.Close(); serving.Wait() })
	return lis.Addr().String()
}

func TestAServerThatLetsNoStreamBeOpenedIsLeft_C16(t *testing.T) {
	for _, p := range []Protocol{SotW, Delta, Auto} {
		t.Run(string(p), func(t *testing.T) {
			good := fakexds.Start(t, &fakexds.Server{})
			bad := closed(t)
			h := newRecorder()
			c := start(t, h, func(c *Config) { impatient(c); c.Protocol = p }, bad, good.Addr)
			awaitSync(t, h, c, good.Addr)
			h.mu.Lock()
			defer h.mu.Unlock()
			for _, s := range h.states {
				if at(bad, Disconnected)(s) && status.Code(s.Err) != codes.DeadlineExceeded {
					t.Errorf("it was left because of %v", s.Err)
				}
			}
		})
	}
}

// failures counts the ends of streams and attempts; the recorder is locked.
func (h *recorder) failures() (n int) {
	for _, s := range h.states {
		if s.Phase == Disconnected || s.Phase == Denied {
			n++
		}
	}
	return n
}

// TestADenialCountsInItsRoundOnly: when later everything is away for a moment, nobody is
// refused, and there is no reason to wait for as long as if somebody were.
func TestADenialCountsInItsRoundOnly(t *testing.T) {
	down := status.Error(codes.Unavailable, "restarting")
	for name, leave := range map[string]func(*Client, *fakexds.Server){
		"the stream ends":  func(_ *Client, s *fakexds.Server) { s.End(down) },
		"the stream moves": func(c *Client, _ *fakexds.Server) { c.back <- 0 },
	} {
		t.Run(name, func(t *testing.T) {
			first, second := fakexds.Start(t, &fakexds.Server{}), fakexds.Start(t, &fakexds.Server{})
			first.Fail(status.Error(codes.Unauthenticated, "who?"))
			h := newRecorder()
			c := start(t, h, func(c *Config) { impatient(c); c.DeniedBackoff = time.Minute }, first.Addr, second.Addr)
			awaitSync(t, h, c, second.Addr)
			first.Fail(down)
			second.Fail(down)
			h.mu.Lock()
			n := h.failures()
			h.mu.Unlock()
			leave(c, second)
			// The stream, both addresses, and another round.
			h.await(t, "another round", func() bool { return h.failures() >= n+4 })
		})
	}
}

// TestAMoveBeginsThePausesAnew: the stream that it ends had worked.
func TestAMoveBeginsThePausesAnew(t *testing.T) {
	const long = 5 * time.Second
	first, second := fakexds.Start(t, &fakexds.Server{}), fakexds.Start(t, &fakexds.Server{})
	first.Fail(errDown)
	second.Fail(errDown)
	h := newRecorder()
	c := start(t, h, func(c *Config) { impatient(c); c.MinBackoff, c.MaxBackoff = 20*time.Millisecond, long }, first.Addr, second.Addr)
	// By now the next pause is some 0.8 s.
	h.await(t, "eight rounds", func() bool { return h.failures() >= 16 })
	second.Fail(nil)
	awaitSync(t, h, c, second.Addr)
	second.Fail(errDown)
	h.mu.Lock()
	n := h.failures()
	h.mu.Unlock()
	began := time.Now()
	c.back <- 0
	h.await(t, "another round", func() bool { return h.failures() >= n+4 })
	if took := time.Since(began); took > 400*time.Millisecond {
		t.Errorf("after the move, and a round in which all failed, it took %v", took)
	}
}

// TestAnOfferThatIsLateIsNotTaken: the stream can have come by itself to where it is to move,
// or further.
func TestAnOfferThatIsLateIsNotTaken(t *testing.T) {
	first, second, third := fakexds.Start(t, &fakexds.Server{}), fakexds.Start(t, &fakexds.Server{}), fakexds.Start(t, &fakexds.Server{})
	first.Fail(errDown)
	h := newRecorder()
	c := start(t, h, impatient, first.Addr, second.Addr, third.Addr)
	awaitSync(t, h, c, second.Addr)
	for _, to := range []int{1, 2, 1} { // the last is taken from us when those before it are over
		c.back <- to
	}
	if n, m := second.Streams(), third.Streams(); n != 1 || m != 0 {
		t.Errorf("%d streams to the second address, %d to the third; want the one that there was", n, m)
	}
	first.Fail(nil)
	c.back <- 0
	awaitSync(t, h, c, first.Addr)
}
