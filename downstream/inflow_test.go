package downstream

import (
	"context"
	"math/rand/v2"
	"slices"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"meshrelay/internal/http2frames"
)

// TestAStreamClaimsItsOwnOrNone: in whatever order streams come, end and claim.
func TestAStreamClaimsItsOwnOrNone(t *testing.T) {
	for seed := range uint64(2000) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		m, _ := testMeter()
		var next uint32 = 1
		var open, unclaimed []uint32
		for range 30 {
			switch {
			case rnd.IntN(3) == 0:
				if err := m.begin(http2frames.Frame{Type: http2frames.Headers, Stream: next}); err != nil {
					t.Fatal(err)
				}
				open, unclaimed = append(open, next), append(unclaimed, next)
				next += 2
			case rnd.IntN(2) == 0 && len(open) > 0:
				i := rnd.IntN(len(open))
				m.ended(open[i])
				open = slices.Delete(open, i, i+1)
			case len(unclaimed) > 0:
				i := rnd.IntN(len(unclaimed))
				id := unclaimed[i]
				unclaimed = slices.Delete(unclaimed, i, i+1)
				if got := m.claim(); got != nil && slices.Contains(open, id) && got != m.open[id] {
					t.Fatalf("seed %d: stream %d of %v claims another's", seed, id, open)
				}
			}
		}
	}
}

// TestAStreamThatIsAloneIsKnown: also when it is not the first one of its connection.
func TestAStreamThatIsAloneIsKnown(t *testing.T) {
	m, _ := testMeter()
	for id := uint32(1); id < 9; id += 2 {
		if err := m.begin(http2frames.Frame{Type: http2frames.Headers, Stream: id}); err != nil {
			t.Fatal(err)
		}
		mine := m.claim()
		if mine == nil || mine != m.open[id] {
			t.Fatalf("stream %d claims %p", id, mine)
		}
		woken := 0
		wake := func() { woken++ }
		mine.wake.Store(&wake)
		message := grpcMessage(10)
		for i := range message { // the length is there with the fifth byte
			if err := m.begin(http2frames.Frame{Type: http2frames.Data, Stream: id, Length: 1}); err != nil {
				t.Fatal(err)
			}
			if err := m.payload(message[i:i+1], 1); err != nil {
				t.Fatal(err)
			}
			if want := min(1, (i+1)/5); woken != want || mine.came.Load() != uint64(want) {
				t.Fatalf("woken %d times by %d bytes", woken, i+1)
			}
		}
		if err := m.begin(http2frames.Frame{Type: http2frames.Data, Flags: http2frames.FlagEndStream, Stream: id}); err != nil || woken != 2 {
			t.Errorf("woken %d times by one request and the end: %v", woken, err)
		}
		m.ended(id)
	}
	if m.claim() != nil {
		t.Error("a stream that was never opened has one")
	}
}

// TestAllStreamsOfAConnectionAreHeard: those that are alone, and those that are not.
func TestAllStreamsOfAConnectionAreHeard(t *testing.T) {
	r := startRelay(t, true)
	r.put(se("shop", "a", "a.example"))
	ads := r.dial()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	ask := func(s discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesClient, typeURL string) {
		t.Helper()
		if err := s.Send(subscribeDelta(typeURL)); err != nil {
			t.Fatal(err)
		}
		if resp, err := s.Recv(); err != nil || resp.TypeUrl != typeURL {
			t.Fatalf("%v, %v instead of %s", resp, err, typeURL)
		}
	}
	for round, n := range []int{1, 1, 5, 1} {
		streams := make([]discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesClient, n)
		for i := range streams {
			var err error
			if streams[i], err = ads.DeltaAggregatedResources(ctx); err != nil {
				t.Fatal(err)
			}
		}
		for _, typeURL := range []string{seV1, drV1, vsV1} {
			for _, s := range streams {
				ask(s, typeURL)
			}
		}
		for _, s := range streams {
			if err := s.CloseSend(); err != nil {
				t.Fatal(err)
			}
			if _, err := s.Recv(); err == nil || err.Error() != "EOF" {
				t.Errorf("round %d: a stream that its client ends, ends with %v", round, err)
			}
		}
	}
	eventually(t, "no stream is left", func() bool { return len(r.server.connections()) == 0 })
}
