package downstream

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
)

// shortOf has memory be short whenever the result is true.
func shortOf(d *Deps) *atomic.Bool {
	short := new(atomic.Bool)
	d.Overloaded = func() error {
		if short.Load() {
			return errors.New("memory is short")
		}
		return nil
	}
	return short
}

// TestWhoIsSentAwayForItsAgeIsLetBackIn while memory is short: the relay has it reconnect, and
// it is no new client. Those that are new stay outside.
func TestWhoIsSentAwayForItsAgeIsLetBackIn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var short *atomic.Bool
		r := startInMemory(t, true, func(c *Config, d *Deps) {
			c.MaxConnectionAge = time.Minute
			short = shortOf(d)
		})
		r.put(se("shop", "x", "1"))
		first := r.deltaBy("a", seV1)
		first.next()
		short.Store(true)
		wantCode(t, r.deltaBy("new", seV1).end(), codes.ResourceExhausted)
		for range 3 { // and again, for as long as that lasts
			wantCode(t, first.end(), codes.Unavailable)
			r.eventually(t, "it has gone", func() bool { return r.server.open.Load() == 0 })
			first = r.deltaBy("a", seV1)
			if got := deltaNames(first.next()); got != "shop/x" {
				t.Errorf("let back in, it got %q", got)
			}
			// It alone has been waited for.
			wantCode(t, r.deltaBy("new", seV1).end(), codes.ResourceExhausted)
		}
	})
}

// TestWhoIsLetBackInAndMeetsALimitMayTryAgain: a limit that may be due to the many that come
// back at once.
func TestWhoIsLetBackInAndMeetsALimitMayTryAgain(t *testing.T) {
	var short *atomic.Bool
	r := startRelay(t, true, func(c *Config, d *Deps) {
		c.MaxHeaderBytes = 2 << 10
		short = shortOf(d)
	})
	first := r.deltaBy("a", seV1)
	first.next()
	short.Store(true)
	first.cancel()
	r.eventually(t, "it has gone", func() bool { return r.server.open.Load() == 0 })
	wantCode(t, r.deltaWith("padding", strings.Repeat("x", 2<<10)).end(), codes.ResourceExhausted)
	r.eventually(t, "it has gone again", func() bool { return r.server.open.Load() == 0 })
	r.deltaBy("a", seV1).next()
	wantCode(t, r.deltaBy("a", seV1).end(), codes.ResourceExhausted)
}

// TestPlacesToComeBackToAreForgottenAfterAnOverload: and are no more than there were streams.
func TestPlacesToComeBackToAreForgottenAfterAnOverload(t *testing.T) {
	ps, limits := newPeers(), &Limits{NewStreamsPerSecond: 1 << 20}
	var here []*peerUse
	for i := range 10 {
		p, _, fits := ps.enter(fmt.Sprint("host-", i), limits, false)
		if !fits {
			t.Error("a stream does not fit, and nothing is short")
		}
		here = append(here, p)
	}
	for _, p := range here {
		ps.leave(p, true)
	}
	if n := len(ps.byKey); n != 10 {
		t.Errorf("%d peers are remembered", n)
	}
	for i, want := range []bool{true, false} {
		if _, _, fits := ps.enter("host-1", limits, true); fits != want {
			t.Errorf("stream %d fits: %v", i, fits)
		}
	}
	p, _, fits := ps.enter("new", limits, true)
	if fits {
		t.Error("a new peer fits")
	}
	ps.leave(p, true)
	if ps.byKey["new"] != nil {
		t.Error("a peer that was refused is remembered")
	}
	for i := range 3000 {
		p, _, _ := ps.enter(fmt.Sprint("later-", i), limits, false)
		ps.leave(p, false)
	}
	for _, key := range []string{"host-0", "host-5"} {
		if p, _, _ := ps.enter(key, limits, false); p != nil {
			ps.leave(p, false)
		}
		if ps.byKey[key] != nil {
			t.Errorf("%s is remembered", key)
		}
	}
}
