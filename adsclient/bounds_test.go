package adsclient

import (
	"errors"
	"log/slog"
	"net"
	"slices"
	"strings"
	"testing"
	"unicode"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"golang.org/x/net/http2"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	networking "istio.io/api/networking/v1alpha3"

	"meshrelay/internal/testing/await"
	"meshrelay/internal/testing/fakexds"
)

// TestAResponseOverTheLimitIsSaidToBe_C15, and what the server knows is not forgotten for
// that: it would have to send even more.
func TestAResponseOverTheLimitIsSaidToBe_C15(t *testing.T) {
	s := fakexds.Start(t, &fakexds.Server{Relay: true})
	s.Set(vsURL, fakexds.MCP("shop/b", &networking.VirtualService{Hosts: []string{strings.Repeat("x", 1<<20)}}).WithVersion("2"))
	h := newRecorder()
	h.held = map[string]map[string]string{seURL: {"shop/a": "1"}}
	start(t, h, func(c *Config) { c.Protocol, c.MaxResponseBytes = Delta, 1<<20 }, s.Addr)
	h.await(t, "the limit in words", func() bool {
		return h.has(func(s State) bool {
			return s.Phase == Disconnected && strings.Contains(s.Err.Error(), "larger than the limit of 1048576 bytes") && strings.Contains(s.Err.Error(), "more memory")
		})
	})
	req := s.Await("the second stream", func(r fakexds.Request) bool { return r.Stream == 2 && r.TypeURL == seURL })
	if req.Held["shop/a"] != "1" {
		t.Errorf("held: %q", req.Held)
	}
}

// TestAServersWordsAreBoundedAndPrintable: they are logged, and shown in terminals.
func TestAServersWordsAreBoundedAndPrintable(t *testing.T) {
	for name, n := range map[string]int{"long": 8 << 10, "longer than headers may be": 1 << 20} {
		t.Run(name, func(t *testing.T) {
			s := fakexds.Start(t, &fakexds.Server{})
			s.Fail(status.Error(codes.Unauthenticated, "no\n\x1b[2J\u202e"+strings.Repeat("ä", n/2)))
			h := newRecorder()
			var log strings.Builder
			c := start(t, h, func(c *Config) {
				sotw(c)
				c.Logger = slog.New(slog.NewTextHandler(&log, nil))
			}, s.Addr)
			h.await(t, "the end", func() bool {
				return h.has(func(s State) bool { return s.Phase == Disconnected || s.Phase == Denied })
			})
			h.mu.Lock()
			defer h.mu.Unlock()
			i := slices.IndexFunc(h.states, func(s State) bool { return s.Err != nil })
			shown := h.states[i].Err.Error()
			if len(shown) > 2*maxErrorText || strings.ContainsFunc(shown, func(r rune) bool { return !unicode.IsPrint(r) }) {
				t.Errorf("%d bytes: %q", len(shown), shown)
			}
			if known := c.Addresses()[0].LastError; len(known) > 2*maxErrorText {
				t.Errorf("%d bytes are kept", len(known))
			}
			if denied := h.states[i].Phase == Denied; denied != (n < maxHeaderBytes) {
				t.Errorf("state %v", h.states[i])
			}
		})
	}
}

func FuzzClean(f *testing.F) {
	f.Add("plain")
	f.Add("\x1b[2J" + strings.Repeat("\xff", 2*maxErrorText))
	f.Add(strings.Repeat("x", maxErrorText-1) + "äöü")
	f.Fuzz(func(t *testing.T, text string) {
		shown := clean(text)
		if len(shown) > 3*maxErrorText+len("…") || strings.ContainsFunc(shown, func(r rune) bool { return !unicode.IsPrint(r) }) {
			t.Errorf("%d bytes: %q", len(shown), shown)
		}
		if clean(shown) != shown {
			t.Errorf("not settled: %q", shown)
		}
	})
}

// TestHeadersWithoutEndEndTheStream has a server that never finishes a header block.
func TestHeadersWithoutEndEndTheStream(t *testing.T) {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan int, 1)
	go func() {
		conn, err := lis.Accept()
		if err != nil {
			served <- 0
			return
		}
		defer conn.Close()
		served <- floodHeaders(conn)
	}()
	h := newRecorder()
	start(t, h, sotw, lis.Addr().String())
	h.await(t, "the end", func() bool { return h.has(at(lis.Addr().String(), Disconnected)) })
	lis.Close()
	if n := await.Value(t, "the end of the connection", served); n == 0 || n > 8<<20 {
		t.Errorf("%d bytes of headers were taken", n)
	}
}

// floodHeaders sends a header block without an end to the first stream, and returns how
// many bytes that took.
func floodHeaders(conn net.Conn) (sent int) {
	preface := make([]byte, len(http2.ClientPreface))
	if _, err := conn.Read(preface); err != nil {
		return 0
	}
	f := http2.NewFramer(conn, conn)
	if f.WriteSettings() != nil {
		return 0
	}
	for {
		frame, err := f.ReadFrame()
		if err != nil {
			return 0
		}
		if _, ok := frame.(*http2.HeadersFrame); ok {
			break
		}
	}
	// A literal header that is not indexed: its name, and a value of 4,000 bytes.
	block := append([]byte{0x00, 0x01, 'x', 0x7f, 0xa1, 0x1e}, []byte(strings.Repeat("v", 4000))...)
	err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block})
	for ; err == nil; sent += len(block) {
		err = f.WriteContinuation(1, false, block)
	}
	return sent
}

var errWords = errors.New("words")

func TestErrorsKeepTheirCode(t *testing.T) {
	long := strings.Repeat("x", 4<<10)
	for code, err := range map[codes.Code]error{
		codes.Unauthenticated: status.Error(codes.Unauthenticated, long), codes.Unavailable: status.Error(codes.Unavailable, "a\nb"),
	} {
		got := explain(err)
		if status.Code(got) != code || len(got.Error()) > 2*maxErrorText || strings.Contains(got.Error(), "\n") {
			t.Errorf("%v: %v", code, got)
		}
	}
	if got := explain(errWords); !errors.Is(got, errWords) {
		t.Errorf("%v", got)
	}
}

// TestUnsolicitedTypesAreAcknowledgedAndNotKept_S26: a server could name types for ever.
func TestUnsolicitedTypesAreAcknowledgedAndNotKept_S26(t *testing.T) {
	s := &stream{protocol: SotW, accepted: map[string]string{}}
	for _, typeURL := range []string{"a/v1/A", "a/v1/B"} {
		ack := s.acknowledge(&Response{TypeURL: typeURL, Nonce: "n", Version: "7"}, nil).(*discoveryv3.DiscoveryRequest)
		if ack.VersionInfo != "7" || ack.ResponseNonce != "n" {
			t.Errorf("ACK %v", ack)
		}
		nack := s.acknowledge(&Response{TypeURL: typeURL, Nonce: "n", Version: "7"}, errWords).(*discoveryv3.DiscoveryRequest)
		if nack.VersionInfo != "" || nack.ErrorDetail == nil {
			t.Errorf("NACK %v", nack)
		}
	}
	if len(s.accepted) != 0 {
		t.Errorf("kept: %v", s.accepted)
	}
}
