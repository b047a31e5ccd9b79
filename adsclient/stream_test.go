package adsclient

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"meshrelay/internal/testing/fakexds"
)

func TestPingsKeepToIstiodsRules_C17(t *testing.T) {
	// istiod's enforcement: not more often than every 15 s, and none without a stream.
	p := keepaliveParams()
	if p.Time != 30*time.Second || p.Timeout != 10*time.Second || p.PermitWithoutStream {
		t.Errorf("keepalive %+v", p)
	}
}

func TestAutoUsesDeltaWhereThereIsNoSotW_C14(t *testing.T) {
	s := fakexds.Start(t, &fakexds.Server{NoSotW: true})
	h := newRecorder()
	start(t, h, nil, s.Addr)
	h.awaitResponses(t, 3)
	if st := h.last(); st.Protocol != Delta || st.Relay {
		t.Errorf("state %+v", st)
	}
}

// alone is a recorder that notices when two of its methods run at once.
type alone struct {
	*recorder
	running atomic.Int32
	twice   atomic.Bool
}

func (a *alone) enter() func() {
	if a.running.Add(1) > 1 {
		a.twice.Store(true)
	}
	return func() { a.running.Add(-1) }
}

func (a *alone) HandleResponse(r *Response) error {
	defer a.enter()()
	return a.recorder.HandleResponse(r)
}

func (a *alone) ResumeVersions(typeURL string) map[string]string {
	defer a.enter()()
	return a.recorder.ResumeVersions(typeURL)
}

func (a *alone) HandleState(s State) {
	defer a.enter()()
	a.recorder.HandleState(s)
}

func TestHandlerIsNeverCalledTwiceAtATime(t *testing.T) {
	s := fakexds.Start(t, &fakexds.Server{Relay: true})
	const types, streams = 60, 8
	urls := []string{meshURL}
	held := map[string]map[string]string{}
	for i := 1; i < types; i++ {
		url := fmt.Sprintf("example.com/v1/Kind%d", i)
		urls = append(urls, url)
		s.Set(url, entry("shop/a").WithVersion("1"))
		held[url] = map[string]string{"shop/a": "0"}
	}
	h := &alone{recorder: newRecorder()}
	h.held = held
	start(t, h, func(c *Config) { c.TypeURLs = func(bool) []string { return urls } }, s.Addr)
	for i := range streams {
		h.awaitResponses(t, types*(i+1))
		s.End(status.Error(codes.Unavailable, "again"))
	}
	if h.twice.Load() {
		t.Error("two methods of the handler ran at the same time")
	}
}

// TestReadingDoesNotWaitForWriting_C16 has a server that floods and never reads: a
// client that waited for its acknowledgements to be read would wait for ever.
func TestReadingDoesNotWaitForWriting_C16(t *testing.T) {
	s := fakexds.Start(t, &fakexds.Server{Options: []grpc.ServerOption{
		grpc.InitialWindowSize(64 << 10), grpc.InitialConnWindowSize(64 << 10),
	}})
	h := newRecorder()
	start(t, h, sotw, s.Addr)
	h.awaitResponses(t, 3)
	s.StopReading()
	// A long nonce makes the acknowledgements fill the server's window soon.
	nonce := strings.Repeat("n", 32<<10)
	for range acksWaiting + 64 {
		s.Send(&discoveryv3.DiscoveryResponse{TypeUrl: seURL, VersionInfo: "v", Nonce: nonce})
	}
	h.await(t, "the stream has ended with the reason", func() bool {
		for _, st := range h.states {
			if st.Phase == Disconnected && st.Answered && status.Code(st.Err) == codes.ResourceExhausted {
				return true
			}
		}
		return false
	})
}

func TestADenialAmongSeveralAddressesSlowsTheRoundDown_C16(t *testing.T) {
	inBubble(t, func(t *testing.T, nw *network) {
		denies := nw.serve(t, "denies", &fakexds.Server{})
		denies.Fail(status.Error(codes.PermissionDenied, "no"))
		down := nw.serve(t, "down", &fakexds.Server{})
		down.Fail(status.Error(codes.Unavailable, "not ready"))
		h := newRecorder()
		nw.start(t, h, func(c *Config) { c.Protocol, c.DeniedBackoff = SotW, 200*time.Millisecond }, denies.Addr, down.Addr)
		began := time.Now()
		h.await(t, "a second denial", func() bool {
			n := 0
			for _, st := range h.states {
				if st.Phase == Denied {
					n++
				}
			}
			return n == 2
		})
		if took := time.Since(began); took < 150*time.Millisecond {
			t.Errorf("the server that denies was asked again after %v", took)
		}
	})
}

func TestEndOfAnAnsweredStreamIsSaidToBe_C18(t *testing.T) {
	inBubble(t, func(t *testing.T, nw *network) {
		s := nw.serve(t, "s", &fakexds.Server{Options: []grpc.ServerOption{grpc.KeepaliveParams(keepalive.ServerParameters{
			MaxConnectionAge: 50 * time.Millisecond, MaxConnectionAgeGrace: 20 * time.Millisecond,
		})}})
		h := newRecorder()
		nw.start(t, h, sotw, s.Addr)
		h.await(t, "the end of a stream", func() bool { return h.last().Phase == Disconnected })
		h.mu.Lock()
		defer h.mu.Unlock()
		for _, st := range h.states {
			if st.Phase == Disconnected && (!st.Answered || status.Code(st.Err) != codes.Unavailable) {
				t.Errorf("state %+v", st)
			}
		}
	})
}

func TestNACKTextIsBoundedAndValid_C7(t *testing.T) {
	s := fakexds.Start(t, &fakexds.Server{})
	h := newRecorder()
	h.reject = func(*Response) error { return errors.New("\xff" + strings.Repeat("ä", 100000)) }
	start(t, h, sotw, s.Addr)
	nack := s.Await("a NACK", func(r fakexds.Request) bool { return r.ErrorWasGiven })
	if n := len(nack.Error); n < 1000 || n > 2*maxDetail {
		t.Errorf("the text has %d bytes", n)
	}
	if nack.Version != "" {
		t.Errorf("NACK of the first response has the version %q", nack.Version)
	}
}

func TestDeltaResponsesAreAcknowledgedAndRejected_C6_C7(t *testing.T) {
	s := fakexds.Start(t, &fakexds.Server{Relay: true})
	h := newRecorder()
	start(t, h, delta, s.Addr)
	h.awaitResponses(t, 3)
	s.Send(&discoveryv3.DeltaDiscoveryResponse{TypeUrl: seURL, Nonce: "good"})
	ack := s.Await("the ACK", func(r fakexds.Request) bool { return r.Nonce == "good" })
	if ack.ErrorWasGiven || ack.TypeURL != seURL {
		t.Errorf("ACK %+v", ack)
	}
	h.mu.Lock()
	h.reject = func(*Response) error { return errors.New("team-a/db: body does not decode") }
	h.mu.Unlock()
	s.Send(&discoveryv3.DeltaDiscoveryResponse{TypeUrl: seURL, Nonce: "bad"})
	nack := s.Await("the NACK", func(r fakexds.Request) bool { return r.Nonce == "bad" })
	if nack.Error != "team-a/db: body does not decode" {
		t.Errorf("NACK %+v", nack)
	}
	if len(nack.Names) != 0 || len(nack.Unsubscribed) != 0 {
		t.Errorf("the NACK changes the subscription: %+v", nack)
	}
}

// TestAServerThatTakesSmallerRequestsIsAskedForEverything_C15: a relay's limit is for its
// operator to set, so a request below ours can still be too large.
func TestAServerThatTakesSmallerRequestsIsAskedForEverything_C15(t *testing.T) {
	for _, at := range []string{"the first type", "a later type"} {
		t.Run(at, func(t *testing.T) {
			s := fakexds.Start(t, &fakexds.Server{Relay: true, Options: []grpc.ServerOption{grpc.MaxRecvMsgSize(64 << 10)}})
			s.Set(seURL, entry("shop/a").WithVersion("1"))
			s.Set(vsURL, entry("shop/b").WithVersion("1"))
			held := map[string]string{}
			for i := range 2000 {
				held[fmt.Sprintf("namespace-of-some-length/service-entry-of-some-length-%d", i)] = "AAAAAAAAAAAAAAAAAAAAAA"
			}
			h := newRecorder()
			h.held = map[string]map[string]string{seURL: held, vsURL: {"shop/b": "1"}}
			start(t, h, func(c *Config) {
				if at == "the first type" {
					// Nothing is answered before the request that is too large.
					s.Withhold(meshURL, true)
				}
			}, s.Addr)
			h.await(t, "complete answers", func() bool {
				complete := map[string]bool{}
				for i, r := range h.responses {
					complete[r] = complete[r] || h.complete[i]
				}
				return complete[seURL+" shop/a"] && complete[vsURL+" shop/b"]
			})
			if n := s.Streams(); n != 2 {
				t.Errorf("%d streams: want one that failed, and one that works", n)
			}
		})
	}
}

// TestWhoIsTurnedAwayForALimitStillSaysWhatItHolds: a server that has no room for a client has
// none for sending it everything either.
func TestWhoIsTurnedAwayForALimitStillSaysWhatItHolds_C15(t *testing.T) {
	s := fakexds.Start(t, &fakexds.Server{Relay: true})
	s.Set(seURL, entry("shop/a").WithVersion("1"))
	h := newRecorder()
	h.held = map[string]map[string]string{meshURL: {"mesh": "1"}, seURL: {"shop/a": "1"}}
	s.Fail(status.Error(codes.ResourceExhausted, "the relay refuses new clients: it uses 930 MiB of its memory limit of 1024 MiB, and accepts new clients below 90 %"))
	c := start(t, h, nil, s.Addr)
	h.await(t, "the server refuses the request", func() bool { return h.failures() >= 1 })
	s.Fail(nil)
	awaitSync(t, h, c, s.Addr)
	h.await(t, "the client names its versions", func() bool {
		return slices.ContainsFunc(s.Requests(), func(r fakexds.Request) bool { return r.Held["shop/a"] == "1" })
	})
}

// TestTheFirstRequestOfAllMayBeTooLarge_C15: that request finds out who the server is.
func TestTheFirstRequestOfAllMayBeTooLarge_C15(t *testing.T) {
	for _, p := range []Protocol{Auto, Delta} {
		t.Run(string(p), func(t *testing.T) {
			s := fakexds.Start(t, &fakexds.Server{Options: []grpc.ServerOption{grpc.MaxRecvMsgSize(64 << 10)}})
			s.Set(seURL, entry("shop/a").WithVersion("1"))
			held := map[string]string{}
			for i := range 2000 {
				held[fmt.Sprintf("namespace-of-some-length/service-entry-of-some-length-%d", i)] = "AAAAAAAAAAAAAAAAAAAAAA"
			}
			h := newRecorder()
			h.held = map[string]map[string]string{seURL: held}
			c := start(t, h, func(c *Config) {
				c.Protocol = p
				c.TypeURLs = func(bool) []string { return []string{seURL, vsURL} }
			}, s.Addr)
			awaitSync(t, h, c, s.Addr)
		})
	}
}

func TestWhatARequestCanNotSayDoesNotEndTheStream_C15(t *testing.T) {
	s := fakexds.Start(t, &fakexds.Server{Relay: true})
	h := newRecorder()
	h.held = map[string]map[string]string{seURL: {"shop/a": "1", "shop/\xff": "1", "shop/b": "\xff"}}
	start(t, h, delta, s.Addr)
	req := s.Await("the subscription", func(r fakexds.Request) bool { return r.TypeURL == seURL })
	if len(req.Held) != 2 || req.Held["shop/a"] != "1" || req.Held["shop/b"] != "" {
		t.Errorf("held: %q", req.Held)
	}
	h.awaitResponses(t, 3)
	if len(h.held[seURL]) != 3 {
		t.Errorf("the handler's map was changed: %q", h.held[seURL])
	}
}

func TestAnEndWithoutAReasonIsSaidInWords_C18(t *testing.T) {
	s := fakexds.Start(t, &fakexds.Server{})
	h := newRecorder()
	start(t, h, sotw, s.Addr)
	h.awaitResponses(t, 3)
	s.End(nil)
	h.await(t, "the end of the stream, with its server and in words", func() bool {
		for _, st := range h.states {
			if st.Phase == Disconnected {
				return strings.Contains(st.Err.Error(), s.Addr) && strings.Contains(st.Err.Error(), "ended the stream")
			}
		}
		return false
	})
}
