package downstream

import (
	"errors"
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
	d.Overloaded = func(bool) error {
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
			c.timeouts.age = time.Minute
			short = shortOf(d)
		})
		r.put(se("shop", "x", "1"))
		first := r.deltaBy("a", seV1)
		first.next()
		short.Store(true)
		wantCode(t, r.deltaBy("new", seV1).end(), codes.ResourceExhausted)
		for range 3 { // and again, for as long as that lasts
			wantCode(t, first.end(), codes.Unavailable)
			r.eventually(t, "it has gone", func() bool { return r.streams() == 0 })
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
		short = shortOf(d)
	})
	first := r.deltaBy("a", seV1)
	first.next()
	short.Store(true)
	first.cancel()
	r.eventually(t, "it has gone", func() bool { return r.streams() == 0 })
	wantCode(t, r.deltaAs(seV1, "PADDING", strings.Repeat("x", 300<<10)).end(), codes.InvalidArgument)
	r.eventually(t, "it has gone again", func() bool { return r.streams() == 0 })
	r.deltaBy("a", seV1).next()
	wantCode(t, r.deltaBy("a", seV1).end(), codes.ResourceExhausted)
}
