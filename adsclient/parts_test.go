package adsclient

import (
	"fmt"
	"slices"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"meshrelay/internal/testing/fakexds"
)

// TestATypeIsAnsweredByItsLastPart_C21_S18: the client acknowledges each part, and all parts of an
// answer have the marks of the answer.
func TestATypeIsAnsweredByItsLastPart_C21_S18(t *testing.T) {
	s := fakexds.Start(t, &fakexds.Server{Relay: true})
	s.Withhold(seURL, true)
	h := newRecorder()
	h.held = map[string]map[string]string{seURL: {"shop/gone": "1"}}
	c := start(t, h, func(c *Config) {
		c.Protocol = Delta
		c.TypeURLs = func(bool) []string { return []string{seURL, vsURL} } // the first request never resumes
	}, s.Addr)
	h.await(t, "the other type is answered", func() bool { return len(h.responses) == 1 })
	h.mu.Lock()
	h.complete, h.relist, h.part = nil, nil, nil
	h.mu.Unlock()
	sent := 0
	send := func(mark string) {
		t.Helper()
		sent++
		r := entry(fmt.Sprintf("shop/s-%d", sent)).WithVersion("1")
		nonce := fmt.Sprintf("n-%d", sent)
		s.Send(&discoveryv3.DeltaDiscoveryResponse{
			TypeUrl: seURL, Nonce: nonce, SystemVersionInfo: mark,
			Resources: []*discoveryv3.Resource{{Name: r.Name, Version: r.Version, Resource: r.Any}},
		})
		if ack := s.Await("the ACK of "+nonce, func(r fakexds.Request) bool { return r.Nonce == nonce }); ack.ErrorWasGiven {
			t.Errorf("the answer to %s is %q", nonce, ack.Error)
		}
	}
	synced := func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		return h.synced != ""
	}
	for range 2 {
		if send("part"); synced() {
			t.Error("the client counts a part as the answer")
		}
	}
	send("")
	h.await(t, "it has synced", func() bool { return h.synced != "" })
	send("part")
	send("istio-1.30")

	c.Relist()
	s.Await("everything is asked for again", func(r fakexds.Request) bool { return r.TypeURL == seURL && slices.Equal(r.Names, []string{"*"}) })
	h.await(t, "the other type comes again", func() bool { return len(h.responses) == sent+2 })
	send("part")
	send("")
	send("")
	h.mu.Lock()
	defer h.mu.Unlock()
	other := 5 // the other type
	for what, tc := range map[string]struct{ got, want []bool }{
		"parts":    {h.part, []bool{true, true, false, true, false, true, false, false}},
		"complete": {h.complete, []bool{true, true, true, false, false, false, false, false}},
		"relist":   {h.relist, []bool{false, false, false, false, false, true, true, false}},
	} {
		if got := slices.Delete(tc.got, other, other+1); !slices.Equal(got, tc.want) {
			t.Errorf("%s: %v, want %v", what, got, tc.want)
		}
	}
}
