package downstream

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc/codes"

	"meshrelay/downstream/refusal"
)

// TestAcknowledgementsDoNotCount: a client that acknowledges all that it is sent is never
// too fast, however often it is sent something.
func TestAcknowledgementsDoNotCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startInMemory(t, true, func(c *Config, _ *Deps) { c.RequestsPerSecond = 1 })
		d := r.deltaBy("a", seV1)
		d.next()
		const pushes = 200
		for i := range pushes {
			r.put(se("shop", "a", fmt.Sprint(i)))
			resp := d.next()
			d.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: seV1, ResponseNonce: resp.Nonce})
		}
		r.eventually(t, "all are taken", func() bool { c := r.server.Clients(); return c[0].Types[0].ACKs == pushes })
		if n := testutil.ToFloat64(r.server.metrics.delayed); n != 0 {
			t.Errorf("%v were delayed", n)
		}
	})
}

// TestWhoAsksTooFastHurtsNobody: it is read from no faster than it may ask, and another
// client is pushed every change meanwhile. When it stops in time, it is served on.
func TestWhoAsksTooFastHurtsNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startInMemory(t, true, func(c *Config, _ *Deps) { c.RequestsPerSecond = 20 })
		r.put(se("shop", "a", "0"))
		good := r.deltaBy("good", seV1)
		good.next()
		fast := r.deltaBy("fast", drV1) // gets no pushes to acknowledge
		fast.next()
		const burst, more = 8 * 20, 30
		began := time.Now()
		sent := make(chan error, 1)
		go func() {
			for range burst + more { // stale ones, which nothing answers
				if err := fast.sendTo.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: drV1, ResponseNonce: "none"}); err != nil {
					sent <- err
					return
				}
			}
			sent <- nil
		}()
		for i := range 20 {
			r.put(se("shop", "a", fmt.Sprint("change ", i)))
			if got := deltaNames(good.next()); got != "shop/a" {
				t.Errorf("the client beside got %q", got)
			}
		}
		if err := <-sent; err != nil {
			t.Fatal(err)
		}
		fast.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: vsV1})
		fast.next()
		// Those beyond the burst take 1.5 s.
		if took := time.Since(began); took < 1400*time.Millisecond {
			t.Errorf("%d requests took %v", burst+more, took)
		}
		if n := testutil.ToFloat64(r.server.metrics.delayed); n == 0 {
			t.Errorf("%v requests are counted as delayed", n)
		}
		wantRefused(t, r, refusal.Requests, 0)
	})
}

// TestWhoAsksTooFastForTooLongIsEnded on the wire.
func TestWhoAsksTooFastForTooLongIsEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startInMemory(t, true, func(c *Config, _ *Deps) { c.RequestsPerSecond = 1 })
		d := r.deltaBy("a", seV1)
		d.next()
		go func() {
			for d.sendTo.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: seV1, ResponseNonce: "none"}) == nil {
			}
		}()
		r.eventually(t, "its requests wait", func() bool { return testutil.ToFloat64(r.server.metrics.delayed) > 0 })
		wantCode(t, d.end(), codes.ResourceExhausted)
		wantRefused(t, r, refusal.Requests, 1)
	})
}
