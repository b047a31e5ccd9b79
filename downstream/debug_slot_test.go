package downstream

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statusv3 "github.com/envoyproxy/go-control-plane/envoy/service/status/v3"
	"google.golang.org/grpc/codes"

	"meshrelay/downstream/refusal"
)

// slotted is a Debugger with one slot, whose documents are as long as their names say.
type slotted struct{ taken atomic.Int64 }

func (s *slotted) Begin() (func(), error) {
	if n := s.taken.Add(1); n > 1 {
		s.taken.Add(-1)
		return nil, errors.New("no slot")
	}
	return func() { s.taken.Add(-1) }, nil
}

func (s *slotted) Handle(name string) ([]byte, error) {
	if name == "large" {
		return []byte(strings.Repeat("x", 1<<20)), nil
	}
	return []byte("small"), nil
}

func (s *slotted) SyncStatus() []*statusv3.ClientConfig { return nil }

func withSlot() (*slotted, option) {
	s := &slotted{}
	return s, func(c *Config, d *Deps) {
		d.Debug = s
		c.Listeners = []Listener{{Address: "127.0.0.1:0", Debug: DebugLoopback}}
	}
}

func ask(name string) *discoveryv3.DiscoveryRequest {
	return &discoveryv3.DiscoveryRequest{Node: node(), TypeUrl: debugType, ResourceNames: []string{name}}
}

func document(resp *discoveryv3.DiscoveryResponse) string {
	return string(resp.GetResources()[0].GetValue())
}

// TestDebugDocumentsShareSlots: until they are sent, and large ones until their stream ends.
func TestDebugDocumentsShareSlots(t *testing.T) {
	slots, set := withSlot()
	r := startRelay(t, true, set)
	one, two := r.sotw(), r.sotw()
	for range 3 {
		one.send(ask("small"))
		if got := document(one.next()); got != "small" {
			t.Errorf("got %q", got)
		}
		r.eventually(t, "the slot is free", func() bool { return slots.taken.Load() == 0 })
	}
	one.send(ask("large"))
	if got := document(one.next()); len(got) != 1<<20 {
		t.Errorf("got %d bytes", len(got))
	}
	two.send(ask("small"))
	if got := document(two.next()); !strings.Contains(got, "no slot") {
		t.Errorf("without a slot, got %.100q", got)
	}
	one.send(ask("large")) // it has one
	if got := document(one.next()); len(got) != 1<<20 {
		t.Errorf("got %d bytes", len(got))
	}
	one.cancel()
	r.eventually(t, "the slot is free", func() bool { return slots.taken.Load() == 0 })
	two.send(ask("small"))
	if got := document(two.next()); got != "small" {
		t.Errorf("got %.100q", got)
	}
}

// TestOneDebugAnswerWaitsForAClient: the relay sends away a client that does not read its answer.
func TestOneDebugAnswerWaitsForAClient(t *testing.T) {
	slots, set := withSlot()
	r := startRelay(t, true, set)
	s := r.stalled(meshURL)
	for range 4 { // one is with the transport, one is being sent, one waits
		if err := s.Send(ask("large")); err != nil {
			break // it was sent away
		}
	}
	for {
		if _, err := s.Recv(); err != nil {
			wantCode(t, err, codes.ResourceExhausted)
			break
		}
	}
	wantRefused(t, r, refusal.Debug, 1)
	r.eventually(t, "the slot is free", func() bool { return slots.taken.Load() == 0 })
}

// TestLargeDebugAnswerEndsItsStream: in a while, as nobody tells whether it was read.
func TestLargeDebugAnswerEndsItsStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slots, set := withSlot()
		r := startInMemory(t, true, set, func(c *Config, _ *Deps) { c.replyTimeout = 50 * time.Millisecond })
		s := r.sotw()
		s.send(ask("large"))
		s.next()
		wantCode(t, s.end(), codes.DeadlineExceeded)
		wantRefused(t, r, refusal.Unread, 1)
		r.eventually(t, "the slot is free", func() bool { return slots.taken.Load() == 0 })
	})
}
