package push

import (
	"slices"
	"testing"
	"time"
)

// TestPaceIsGivenItsTime: one push after the other, at moments that the test makes up.
func TestPaceIsGivenItsTime(t *testing.T) {
	const ms = time.Millisecond
	start := time.Unix(1000, 0)
	p := newPace(options())
	check := func(what string, at time.Duration, why delay, ok bool) {
		t.Helper()
		gotAt, gotWhy, gotOK := p.next()
		if gotOK != ok || ok && (gotAt.Sub(start) != at || gotWhy != why) {
			t.Errorf("%s: due at %v by %q (%v), want %v by %q (%v)", what, gotAt.Sub(start), gotWhy, gotOK, at, why, ok)
		}
	}
	begin := func(at time.Duration, want ...string) {
		t.Helper()
		if got := slices.Sorted(slices.Values(p.begin(start.Add(at)))); !slices.Equal(got, want) {
			t.Errorf("at %v a push of %v begins, want %v", at, got, want)
		}
	}
	changed := func(at time.Duration, upstream string, n int) {
		for range n {
			p.changed(start.Add(at), upstream, true)
		}
	}
	check("nothing waits", 0, "", false)
	changed(0, "east", 1)
	check("an isolated change", company, "", true)
	begin(company, "east")
	changed(1*ms, "east", 1)
	changed(1*ms, "west", 1)
	check("the push has reached nobody", 1001*ms, byBacklog, true)
	p.worked(2 * ms)
	p.reached = true
	check("2 ms of work: brief", company+brief+10*time.Microsecond, byShare, true)
	p.worked(18 * ms)
	check("20 ms of work: as long, on two CPUs by half, and a little", company+21*ms, byShare, true)
	p.worked(380 * ms)
	check("400 ms of work: twice as long", company+800*ms, byShare, true)
	p.worked(time.Minute)
	check("more work than that", company+time.Second, byShare, true)
	begin(company+time.Second, "east", "west")
	p.reached = true
	changed(1100*ms, "west", 600)
	check("a response", 1100*ms+company, "", true)
	begin(1101*ms, "west")
	p.reached = true
	changed(1150*ms, "west", 1)
	check("a burst", 1250*ms, byBurst, true)
	changed(1160*ms, "east", 1)
	check("another upstream meanwhile", 1160*ms+company, "", true)
	begin(1161*ms, "east")
	changed(1200*ms, "west", 1)
	check("the burst goes on, and nobody has been reached", 2150*ms, byBacklog, true)
	p.reached = true
	check("the burst goes on", 1300*ms, byBurst, true)
	p.worked(200 * ms)
	check("its end has to be paid for", 1461*ms, byShare, true)
	begin(1461*ms, "west")
	check("nothing waits", 0, "", false)
	if len(p.sources) != 0 {
		t.Errorf("%d upstreams that are quiet are kept", len(p.sources))
	}
}

// TestSteadyChangesAreNoBurst, however long they last, and are one when they come faster.
func TestSteadyChangesAreNoBurst(t *testing.T) {
	for _, tc := range []struct {
		aSecond int
		want    bool
	}{{1, false}, {100, false}, {1900, false}, {4000, true}} {
		p, now := newPace(options()), time.Unix(1000, 0)
		for range 5 * tc.aSecond {
			now = now.Add(time.Second / time.Duration(tc.aSecond))
			p.changed(now, "east", true)
			p.begin(now)
			p.changed(now, "east", false) // which is no change more
		}
		if got := p.sources["east"].held; got != tc.want {
			t.Errorf("%d a second: burst %v, want %v", tc.aSecond, got, tc.want)
		}
	}
}
