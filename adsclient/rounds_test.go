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

	"meshrelay/internal/testing/fakexds"
)

// closed starts an HTTP/2 server that is alive, answers pings, and lets no stream be opened.
func closed(t *testing.T, lis net.Listener) {
	t.Helper()
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
}

func TestAServerThatLetsNoStreamBeOpenedIsLeft_C16(t *testing.T) {
	for _, p := range []Protocol{SotW, Delta, Auto} {
		t.Run(string(p), func(t *testing.T) {
			inBubble(t, func(t *testing.T, nw *network) {
				good := nw.serve(t, "good", &fakexds.Server{})
				closed(t, nw.listen("bad"))
				h := newRecorder()
				c := nw.start(t, h, func(c *Config) { impatient(c); c.Protocol = p }, "bad", good.Addr)
				awaitSync(t, h, c, good.Addr)
				h.mu.Lock()
				defer h.mu.Unlock()
				for _, s := range h.states {
					if at("bad", Disconnected)(s) && status.Code(s.Err) != codes.DeadlineExceeded {
						t.Errorf("it was left because of %v", s.Err)
					}
				}
			})
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
	for name, moves := range map[string]bool{"the stream ends": false, "the stream moves": true} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, nw *network) {
				first, second := nw.serve(t, "first", &fakexds.Server{}), nw.serve(t, "second", &fakexds.Server{})
				first.Fail(status.Error(codes.Unauthenticated, "who?"))
				h := newRecorder()
				c := nw.start(t, h, func(c *Config) {
					impatient(c)
					c.DeniedBackoff = time.Minute
					if moves {
						c.FailbackAfter = time.Second
					}
				}, first.Addr, second.Addr)
				awaitSync(t, h, c, second.Addr)
				if moves {
					first.Fail(nil)
					first.Await("the probe", func(r fakexds.Request) bool { return r.Nonce != "" })
				}
				first.Fail(down) // what is open stays
				second.Fail(down)
				h.mu.Lock()
				n := h.failures()
				h.mu.Unlock()
				if !moves {
					second.End(down)
				}
				began := time.Now()
				// The stream, both addresses, and another round.
				h.await(t, "another round", func() bool { return h.failures() >= n+4 })
				if took := time.Since(began); took > 30*time.Second {
					t.Errorf("another round comes after %v", took)
				}
			})
		})
	}
}

// TestAMoveBeginsThePausesAnew: the stream that it ends had worked.
func TestAMoveBeginsThePausesAnew(t *testing.T) {
	inBubble(t, func(t *testing.T, nw *network) {
		const long = 5 * time.Second
		first, second := nw.serve(t, "first", &fakexds.Server{}), nw.serve(t, "second", &fakexds.Server{})
		first.Fail(errDown)
		second.Fail(errDown)
		h := newRecorder()
		c := nw.start(t, h, func(c *Config) {
			failback(500 * time.Millisecond)(c)
			c.MinBackoff, c.MaxBackoff = 20*time.Millisecond, long
		}, first.Addr, second.Addr)
		// By now the next pause is 1 s at least.
		h.await(t, "ten rounds", func() bool { return h.failures() >= 20 })
		second.Fail(nil)
		awaitSync(t, h, c, second.Addr)
		first.Fail(nil)
		first.Await("the probe", func(r fakexds.Request) bool { return r.Nonce != "" })
		first.Fail(errDown) // what is open stays
		second.Fail(errDown)
		h.mu.Lock()
		n := h.failures()
		h.mu.Unlock()
		h.await(t, "the move", func() bool { return h.failures() > n })
		began := time.Now()
		h.await(t, "another round", func() bool { return h.failures() >= n+4 })
		if took := time.Since(began); took > time.Second {
			t.Errorf("after the move, and a round in which all failed, it took %v", took)
		}
	})
}
