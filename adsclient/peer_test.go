package adsclient

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"meshrelay/internal/testing/await"
	"meshrelay/internal/testing/fakexds"
)

// met keeps what a Client is told of its servers.
type met struct {
	mu    sync.Mutex
	peers []Peer
}

func (m *met) add(p Peer) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.peers = append(m.peers, p)
}

func (m *met) all() []Peer {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.peers)
}

func TestARelayThatHoldsItsClientsTellsSoBeforeItAnswers(t *testing.T) {
	for _, protocol := range []Protocol{Auto, Delta, SotW} {
		t.Run(string(protocol), func(t *testing.T) {
			s := fakexds.Start(t, &fakexds.Server{Relay: true, Name: "hub", Holds: true})
			for _, url := range []string{meshURL, seURL, vsURL} {
				s.Withhold(url, true)
			}
			m := &met{}
			start(t, newRecorder(), func(c *Config) { c.Protocol, c.Met, c.Name = protocol, m.add, "other" }, s.Addr)
			want := Peer{Relay: true, Name: "hub", Holds: true}
			await.Until(t, "it tells", func() bool { return slices.Contains(m.all(), want) }, func() any { return m.all() })
		})
	}
}

func TestAnIstiodTellsNothingOfItself(t *testing.T) {
	s := fakexds.Start(t, &fakexds.Server{})
	m, h := &met{}, newRecorder()
	start(t, h, func(c *Config) { c.Met, c.Name = m.add, "hub" }, s.Addr)
	h.awaitResponses(t, 3)
	if got := m.all(); len(got) != 1 || got[0] != (Peer{}) {
		t.Errorf("told %+v", got)
	}
}

func TestARelayOfTheSameNameIsNotUsed(t *testing.T) {
	for _, protocol := range []Protocol{Auto, Delta, SotW} {
		for _, holds := range []bool{false, true} {
			s := fakexds.Start(t, &fakexds.Server{Relay: true, Name: "hub", Holds: holds})
			for _, url := range []string{meshURL, seURL, vsURL} {
				s.Withhold(url, holds)
			}
			h := newRecorder()
			start(t, h, func(c *Config) { c.Protocol, c.Name = protocol, "hub" }, s.Addr)
			h.await(t, "the failure", func() bool {
				var same *SameNameError
				st := h.last()
				return st.Phase == Disconnected && errors.As(st.Err, &same) && strings.Contains(st.Err.Error(), s.Addr+": the server is a relay of this relay's own name")
			})
			// It is tried again, in case that it is renamed.
			h.await(t, "more attempts", func() bool {
				n := 0
				for _, st := range h.states {
					if st.Phase == Disconnected {
						n++
					}
				}
				return n >= 3
			})
			h.mu.Lock()
			if len(h.responses) > 0 {
				t.Errorf("%s: taken from it: %q", protocol, h.responses)
			}
			h.mu.Unlock()
		}
	}
}

func TestARelayOfTheSameNameIsLeftForTheNextAddress(t *testing.T) {
	inBubble(t, func(t *testing.T, nw *network) {
		self := nw.serve(t, "self", &fakexds.Server{Relay: true, Name: "hub"})
		other := nw.serve(t, "other", &fakexds.Server{Relay: true, Name: "far"})
		h := newRecorder()
		c := nw.start(t, h, func(c *Config) { c.Name, c.FailbackAfter = "hub", 20*time.Millisecond }, self.Addr, other.Addr)
		h.awaitResponses(t, 3)
		h.mu.Lock()
		connected := slices.ContainsFunc(h.states, func(s State) bool { return s.Phase == Connected && s.Address == self.Addr })
		h.mu.Unlock()
		if connected {
			t.Error("the relay of the same name was used")
		}
		// Nor does the stream move back to it: a probe finds the name, too.
		before := self.Streams()
		await.Until(t, "it is tried again", func() bool { return self.Streams() >= before+3 })
		if a := c.Addresses(); !a[1].Active || !strings.Contains(a[0].LastError, "own name") || !a[0].HealthySince.IsZero() {
			t.Errorf("addresses %+v", a)
		}
	})
}

func TestARelayThatIsRenamedIsUsed(t *testing.T) {
	inBubble(t, func(t *testing.T, nw *network) {
		s := nw.serve(t, "s", &fakexds.Server{Relay: true, Name: "hub"})
		h := newRecorder()
		nw.start(t, h, func(c *Config) { c.Name = "hub" }, s.Addr)
		h.await(t, "the failure", func() bool { return h.last().Phase == Disconnected })
		s.Stop()
		nw.serve(t, s.Addr, &fakexds.Server{Relay: true, Name: "hub-2"})
		h.awaitResponses(t, 3)
	})
}

func TestWhatIsNoNameIsNotTaken(t *testing.T) {
	long := strings.Repeat("n", maxNameBytes)
	for _, tc := range []struct {
		md   metadata.MD
		want Peer
	}{
		{nil, Peer{}},
		{metadata.Pairs(nameHeader, "hub", holdsHeader, "true"), Peer{}}, // no relay
		{metadata.Pairs(relayHeader, "delta"), Peer{Relay: true}},
		{metadata.Pairs(relayHeader, "delta", nameHeader, "a-b_c.D9"), Peer{Relay: true, Name: "a-b_c.D9"}},
		{metadata.Pairs(relayHeader, "delta", nameHeader, long), Peer{Relay: true, Name: long}},
		{metadata.Pairs(relayHeader, "delta", nameHeader, long+"n"), Peer{Relay: true}},
		{metadata.Pairs(relayHeader, "delta", nameHeader, ""), Peer{Relay: true}},
		{metadata.Pairs(relayHeader, "delta", nameHeader, "a b"), Peer{Relay: true}},
		{metadata.Pairs(relayHeader, "delta", nameHeader, "é"), Peer{Relay: true}},
		{metadata.Pairs(relayHeader, "delta", nameHeader, "a", nameHeader, "b"), Peer{Relay: true}},
		{metadata.Pairs(relayHeader, "delta", holdsHeader, "no"), Peer{Relay: true}},
		{metadata.Pairs(relayHeader, "delta", holdsHeader, "true"), Peer{Relay: true, Holds: true}},
	} {
		if got := ParsePeer(tc.md); got != tc.want {
			t.Errorf("%v: %+v, want %+v", tc.md, got, tc.want)
		}
	}
}

func FuzzPeer(f *testing.F) {
	f.Add("hub", "true")
	f.Add(strings.Repeat("x", 300), "")
	f.Fuzz(func(t *testing.T, name, holds string) {
		p := ParsePeer(metadata.Pairs(relayHeader, "delta", nameHeader, name, holdsHeader, holds))
		if p.Name != "" && (p.Name != name || len(p.Name) > maxNameBytes) || !p.Relay || p.Holds != (holds == "true") {
			t.Errorf("%q %q: %+v", name, holds, p)
		}
		for _, c := range p.Name {
			if c <= ' ' || c > '~' {
				t.Errorf("a name with %q", c)
			}
		}
	})
}

// A stream that ends before it has headers is no greeting, and no failure of its own.
func TestAStreamWithoutHeadersEndsAsItDoes(t *testing.T) {
	s := fakexds.Start(t, &fakexds.Server{})
	s.Fail(status.Error(codes.Unavailable, "not ready"))
	h, m := newRecorder(), &met{}
	start(t, h, func(c *Config) { c.Protocol, c.Name, c.Met = SotW, "hub", m.add }, s.Addr)
	h.await(t, "the reason", func() bool {
		return h.last().Phase == Disconnected && strings.Contains(h.last().Err.Error(), "not ready")
	})
	if got := m.all(); len(got) > 0 {
		t.Errorf("told %+v", got)
	}
}
