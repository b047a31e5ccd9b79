package downstream

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"meshrelay/downstream/refusal"
)

// TestWhoAsksTooFastIsDelayedAndThenEnded, at moments that the test makes up.
func TestWhoAsksTooFastIsDelayedAndThenEnded(t *testing.T) {
	limits := &Limits{RequestsPerSecond: 500, MaxTypesPerClient: 256}
	start := time.Unix(1000, 0)
	// run makes n requests, every so often if they are not delayed, and returns how many were
	// delayed, when the last was taken, and the error that ended it.
	run := func(p *pace, from time.Time, n int, every time.Duration) (delayed int, at time.Time, err error) {
		at = from
		for range n {
			wait, _, err := p.next(limits, at)
			if err != nil {
				return delayed, at, err
			}
			if wait > 0 {
				delayed++
			}
			at = at.Add(max(wait, every))
		}
		return delayed, at, nil
	}
	t.Run("a burst is free", func(t *testing.T) {
		if delayed, _, err := run(&pace{}, start, 1024, 0); delayed > 0 || err != nil {
			t.Errorf("%d of 1024 are delayed, %v", delayed, err)
		}
	})
	t.Run("a larger one is slowed down to the rate", func(t *testing.T) {
		delayed, at, err := run(&pace{}, start, 1024+2500, 0)
		if err != nil || delayed != 2500 || at.Sub(start).Round(100*time.Millisecond) != 5*time.Second {
			t.Errorf("%d are delayed, by %v, %v", delayed, at.Sub(start), err)
		}
	})
	t.Run("one without end is ended after ten seconds", func(t *testing.T) {
		_, at, err := run(&pace{}, start, 1_000_000, 0)
		if status.Code(err) != codes.ResourceExhausted || at.Sub(start).Round(100*time.Millisecond) != 10*time.Second {
			t.Errorf("after %v: %v", at.Sub(start), err)
		}
	})
	t.Run("just above the rate, too", func(t *testing.T) {
		_, at, err := run(&pace{}, start, 1_000_000, 1900*time.Microsecond)
		if status.Code(err) != codes.ResourceExhausted {
			t.Errorf("after %v: %v", at.Sub(start), err)
		}
	})
	t.Run("at the rate it goes on for ever", func(t *testing.T) {
		if delayed, _, err := run(&pace{}, start, 1_000_000, 2*time.Millisecond); err != nil || delayed > 0 {
			t.Errorf("%d are delayed, %v", delayed, err)
		}
	})
	t.Run("bursts with pauses go on for ever", func(t *testing.T) {
		p, at := &pace{}, start
		for range 100 {
			_, end, err := run(p, at, 3000, 0)
			if err != nil {
				t.Fatal(err)
			}
			at = end.Add(3 * time.Second)
		}
	})
	t.Run("another rate counts from now on", func(t *testing.T) {
		p := &pace{}
		if _, _, err := run(p, start, 1024, 0); err != nil {
			t.Fatal(err)
		}
		slow := &Limits{RequestsPerSecond: 1, MaxTypesPerClient: 256}
		if wait, first, err := p.next(slow, start); wait != time.Second || !first || err != nil {
			t.Errorf("%v, %v, %v", wait, first, err)
		}
	})
}

// TestAcknowledgementsDoNotCount: a client that acknowledges all that it is sent is never
// too fast, however often it is sent something.
func TestAcknowledgementsDoNotCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startInMemory(t, true, func(c *Config, _ *Deps) { c.RequestsPerSecond = 1 })
		d := r.deltaBy("a", seV1)
		d.next()
		const pushes = leastBurst + 200
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
		const burst, more = leastBurst, 30
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
