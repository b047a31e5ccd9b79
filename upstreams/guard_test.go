package upstreams_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"meshrelay/internal/testing/await"
)

// running runs a script's timer until the test ends.
func (s *xdsScript) running() {
	s.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- s.x.u.RunTimer(ctx) }()
	s.t.Cleanup(func() { cancel(); s.ok(<-done) })
}

// after lets time pass in a bubble.
func (s *xdsScript) after(d time.Duration) {
	s.t.Helper()
	await.Settle(d)
}

// names returns ns/P0, ns/P1, …
func names(prefix string, n int) (out []string) {
	for i := range n {
		out = append(out, fmt.Sprintf("ns/%s%d", prefix, i))
	}
	return out
}

func TestTheIntakeDoesNotSpinWhileAHoldThatIsOverWaitsForANewStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newXDSScript(t, guarded(30, 10, time.Minute))
		s.running()
		s.ok(s.sotw(xdsEntryURL, entries("e", 40)...))
		s.ok(s.delta(xdsEntryURL, names("e", 40)))
		s.demand("held", s.x.Status().Held != nil)
		s.after(55 * time.Second)
		s.open("sotw", false)
		s.after(6 * time.Second)
		if wait := s.x.u.Due(); s.x.Status().Held == nil || wait < 100*time.Millisecond {
			t.Errorf("due again in %v, held %+v", wait, s.x.Status().Held)
		}
	})
}
