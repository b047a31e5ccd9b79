package downstream

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
)

func (r *relay) waitedFor() int {
	r.server.returning.mu.Lock()
	defer r.server.returning.mu.Unlock()
	return r.server.returning.count
}

// TestWhoIsSentAwayForItsAgeIsLetBackIn while memory is short: the relay has it reconnect, and
// it is no new client. Those that are new stay outside.
func TestWhoIsSentAwayForItsAgeIsLetBackIn(t *testing.T) {
	var short atomic.Bool
	r := startRelay(t, true, func(c *Config, d *Deps) {
		c.MaxConnectionAge, c.MaxConnectionAgeGrace = 300*time.Millisecond, 50*time.Millisecond
		d.Overloaded = func() error {
			if short.Load() {
				return errors.New("memory is short")
			}
			return nil
		}
	})
	r.put(se("shop", "x", "1"))
	first := r.deltaBy("a", seV1)
	first.next()
	short.Store(true)
	wantCode(t, r.deltaBy("new", seV1).end(), codes.ResourceExhausted)
	for range 3 { // and again, for as long as that lasts
		wantCode(t, first.end(), codes.Unavailable)
		eventually(t, "it is waited for", func() bool { return r.waitedFor() == 1 })
		first = r.deltaBy("a", seV1)
		if got := deltaNames(first.next()); got != "shop/x" {
			t.Errorf("let back in, it got %q", got)
		}
		// It alone has been waited for.
		wantCode(t, r.deltaBy("new", seV1).end(), codes.ResourceExhausted)
	}
}

// TestWhoIsLetBackInAndMeetsALimitMayTryAgain: a limit that may be due to the many that come
// back at once.
func TestWhoIsLetBackInAndMeetsALimitMayTryAgain(t *testing.T) {
	r := startRelay(t, true, func(c *Config, d *Deps) {
		c.MaxHeaderBytes = 2 << 10
		d.Overloaded = func() error { return errors.New("memory is short") }
	})
	r.server.returning.expect("127.0.0.1", 1, time.Now())
	wantCode(t, r.deltaWith("padding", strings.Repeat("x", 2<<10)).end(), codes.ResourceExhausted)
	r.deltaBy("a", seV1).next()
	wantCode(t, r.deltaBy("a", seV1).end(), codes.ResourceExhausted)
}

func TestWhoIsWaitedForIsForgottenInTime(t *testing.T) {
	var r returning
	now := time.Now()
	const most = 10
	for i := range 2 * most {
		r.expect(fmt.Sprint("host-", i%5), most, now.Add(time.Duration(i)*time.Second))
	}
	if r.count != most || len(r.until) != 5 {
		t.Errorf("%d of %d hosts are waited for", r.count, len(r.until))
	}
	// Two each of hosts 0 to 4, the first at 0 to 4 s, the second at 5 to 9 s.
	at := now.Add(returnWithin + 2500*time.Millisecond)
	for host, want := range map[string]int{"host-0": 1, "host-2": 1, "host-3": 2, "host-4": 2, "other": 0} {
		n := 0
		for r.take(host, at) {
			n++
		}
		if n != want {
			t.Errorf("%d clients of %s were let in, want %d", n, host, want)
		}
	}
	// Who never comes back is forgotten when others are expected.
	r.expect("later", most, now.Add(time.Hour))
	if r.count != 1 || len(r.until) != 1 {
		t.Errorf("%d of %d hosts are waited for: %v", r.count, len(r.until), r.until)
	}
}

// TestWhoHasGoneByItselfIsNotWaitedFor: it was not the relay that sent it away.
func TestWhoHasGoneByItselfIsNotWaitedFor(t *testing.T) {
	r := startRelay(t, true)
	r.put(se("shop", "x", "1"))
	d := r.deltaBy("a", seV1)
	d.next()
	d.cancel()
	eventually(t, "it has gone", func() bool { return r.server.open.Load() == 0 })
	if n := r.waitedFor(); n != 0 {
		t.Errorf("%d are waited for", n)
	}
}
