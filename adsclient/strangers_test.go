package adsclient

import (
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"

	"meshrelay/internal/testing/await"
	"meshrelay/internal/testing/fakexds"
)

// refusesDelta rejects each delta response that has resources.
func refusesDelta(r *Response) error {
	if r.Delta && r.Len() > 0 {
		return &DeltaError{Why: "no names"}
	}
	return nil
}

// TestDeltaIsLeftForSotW_C14, also where the config asks for delta, with the same address and soon.
func TestDeltaIsLeftForSotW_C14(t *testing.T) {
	for name, tc := range map[string]struct {
		protocol Protocol
		relay    bool
	}{"delta": {Delta, false}, "auto": {Auto, true}} {
		t.Run(name, func(t *testing.T) {
			s := fakexds.Start(t, &fakexds.Server{Relay: tc.relay})
			other := fakexds.Start(t, &fakexds.Server{})
			s.Set(seURL, entry("shop/a"))
			h := newRecorder()
			h.reject = refusesDelta
			start(t, h, func(c *Config) { c.Protocol = tc.protocol }, s.Addr, other.Addr)
			h.await(t, "the sync with SotW", func() bool { return h.synced == s.Addr && h.last().Protocol == SotW })
			left := slices.IndexFunc(h.states, at(s.Addr, Disconnected))
			if want := s.Addr + ": delta is left for SotW: no names"; left < 0 || h.states[left].Err.Error() != want {
				t.Errorf("states %v, want %q", h.states, want)
			}
			for _, r := range s.Requests() {
				if r.Delta && r.ErrorWasGiven {
					t.Errorf("the server gets a NACK: %+v", r)
				}
			}
			if n := other.Streams(); n != 0 {
				t.Errorf("%d streams to the next address", n)
			}
		})
	}
}

// TestDeltaIsTriedAgainAfterAFailure_C14: the server may have been replaced.
func TestDeltaIsTriedAgainAfterAFailure_C14(t *testing.T) {
	s := fakexds.Start(t, &fakexds.Server{})
	s.Set(seURL, entry("shop/a"))
	h := newRecorder()
	h.reject = refusesDelta
	start(t, h, delta, s.Addr)
	h.await(t, "the sync with SotW", func() bool { return h.synced == s.Addr && h.last().Protocol == SotW })
	h.mu.Lock()
	h.reject = nil
	h.mu.Unlock()
	s.Fail(errNoHeader)
	s.End(errNoHeader)
	h.await(t, "a failure", func() bool { st := h.last(); return st.Phase == Disconnected && !st.Answered })
	s.Fail(nil)
	h.await(t, "the sync with delta", func() bool { return h.synced == s.Addr && h.last().Protocol == Delta })
}

// TestAServerWithoutSotWIsNotAskedOften_C14: it has two streams for each pause.
func TestAServerWithoutSotWIsNotAskedOften_C14(t *testing.T) {
	for _, protocol := range []Protocol{Delta, Auto} {
		inBubble(t, func(t *testing.T, nw *network) {
			s := &fakexds.Server{NoSotW: true}
			nw.serve(t, "server", s)
			s.Set(seURL, entry("shop/a"))
			h := newRecorder()
			h.reject = refusesDelta
			nw.start(t, h, func(c *Config) {
				c.Protocol, c.MinBackoff, c.MaxBackoff = protocol, 0, 0 // the defaults
			}, "server")
			await.Pass(time.Hour)
			h.mu.Lock()
			defer h.mu.Unlock()
			if n := s.Streams(); n < 100 || n > 300 {
				t.Errorf("%s: %d delta streams in an hour", protocol, n)
			}
			told := slices.ContainsFunc(h.states, func(st State) bool {
				return st.Err != nil && strings.HasSuffix(st.Err.Error(), "no SotW here; its delta can not be used: no names")
			})
			if !told {
				t.Errorf("%s: the last of %d states is %v", protocol, len(h.states), h.last())
			}
		})
	}
}

// TestAServerThatForbidsPingsIsPingedLess_C17: gRPC's servers allow a ping every five minutes by default.
func TestAServerThatForbidsPingsIsPingedLess_C17(t *testing.T) {
	inBubble(t, func(t *testing.T, nw *network) {
		s := &fakexds.Server{Options: []grpc.ServerOption{grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{})}}
		nw.serve(t, "server", s)
		h := newRecorder()
		nw.start(t, h, sotw, "server")
		await.Pass(12 * time.Hour)
		h.mu.Lock()
		defer h.mu.Unlock()
		if n := s.Streams(); n != 2 {
			t.Errorf("%d streams in twelve hours", n)
		}
		ended := slices.IndexFunc(h.states, at("server", Disconnected))
		if ended < 0 || !strings.Contains(h.states[ended].Err.Error(), "from now on the relay pings it every 5m10s") {
			t.Errorf("states %v", h.states)
		}
	})
}

// TestOtherAddressesArePingedAsBefore_C17, and one that forbids pings is found dead within 5 min 20 s.
func TestOtherAddressesArePingedAsBefore_C17(t *testing.T) {
	c := newClient(t, newRecorder(), nil, "strict", "lax")
	c.pinged["strict"] = true
	for address, want := range map[string]time.Duration{"strict": 310 * time.Second, "lax": 30 * time.Second} {
		if got := c.pings(address); got.Time != want || got.Timeout != 10*time.Second || got.PermitWithoutStream {
			t.Errorf("%s: %+v", address, got)
		}
	}
}
