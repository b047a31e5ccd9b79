package downstream

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"meshrelay/downstream/subscription"
	"meshrelay/mirror"
)

// TestClientsThatHaveAPushAreCounted: half, all, those that go, those that come later, and those
// that skip a push.
func TestClientsThatHaveAPushAreCounted(t *testing.T) {
	at := func(s int) time.Time { return time.Unix(int64(1000+s), 0) }
	r := rounds{distribution: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "seconds"})}
	a, b, c := r.enter(), r.enter(), r.enter()
	r.begin(at(-9), at(0))
	r.begin(at(-9), at(1))
	late := r.enter()
	check := func(what string, number uint64, clients, acknowledged int, half, all time.Time) {
		t.Helper()
		want := Round{number, clients, acknowledged, half, all}
		got, over := r.get(number)
		if got == nil || *got != want {
			t.Fatalf("%s: %+v, want %+v", what, got, want)
		}
		if ended := over == nil; ended == all.IsZero() {
			t.Errorf("%s: its end is awaited: %v", what, !ended)
		}
	}
	_, first := r.get(1)
	_, second := r.get(2)
	check("nobody has it", 1, 3, 0, time.Time{}, time.Time{})
	r.reach(a, 2, at(2)) // has skipped the first
	check("one has it", 1, 3, 1, time.Time{}, time.Time{})
	r.reach(b, 1, at(3))
	check("two have it", 1, 3, 2, at(3), time.Time{})
	check("and the second not", 2, 3, 1, time.Time{}, time.Time{})
	r.leave(c, at(4))
	check("the third goes", 1, 2, 2, at(3), at(4))
	if !mirror.IsClosed(first) || mirror.IsClosed(second) {
		t.Error("the first push has ended, and the second not")
	}
	check("the third goes", 2, 2, 1, at(4), time.Time{})
	r.leave(late, at(5))
	r.reach(1, 2, at(6))
	check("all have it", 2, 2, 2, at(4), at(6))
	if count, sum := observed(t, r.distribution); count != 2 || sum != 13+15 {
		t.Errorf("%d pushes that all clients have, after %v s, want 2 after 13 and 15", count, sum)
	}

	for range 3 * keptRounds {
		r.begin(at(7), at(7))
	}
	if got, _ := r.get(2); got != nil || r.newest.Load() != 2+3*keptRounds {
		t.Error("an old push is followed")
	}
	_, over := r.get(r.newest.Load() - keptRounds + 1)
	r.begin(at(7), at(7))
	if !mirror.IsClosed(over) {
		t.Error("the end of a push that is not followed any more is awaited for ever")
	}
	r.reach(2, r.newest.Load(), at(8)) // which has missed more than are kept
	check("after many", r.newest.Load(), 2, 1, at(8), time.Time{})
	r.leave(2, at(9))
	check("and the last goes", r.newest.Load(), 1, 1, at(8), at(9))
}

// observed returns what a histogram has counted.
func observed(t *testing.T, h prometheus.Histogram) (count uint64, sum float64) {
	t.Helper()
	reg := prometheus.NewRegistry()
	reg.MustRegister(h)
	is := must(reg.Gather())[0].Metric[0].Histogram
	return is.GetSampleCount(), is.GetSampleSum()
}

// TestAPushThatNoClientHasIsNoDistribution: nobody was connected, or those who were have gone.
func TestAPushThatNoClientHasIsNoDistribution(t *testing.T) {
	r := rounds{distribution: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "seconds"})}
	r.begin(time.Unix(1, 0), time.Unix(1, 0))
	has := r.enter()
	r.begin(time.Unix(2, 0), time.Unix(2, 0))
	r.leave(has, time.Unix(3, 0))
	if count, _ := observed(t, r.distribution); count > 0 {
		t.Errorf("%d pushes count", count)
	}
}

// TestAnAcknowledgementCostsNoAllocation, however many pushes are followed.
func TestAnAcknowledgementCostsNoAllocation(t *testing.T) {
	r := rounds{distribution: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "seconds"})}
	has := r.enter()
	if n := testing.AllocsPerRun(1000, func() {
		r.begin(time.Unix(1, 0), time.Unix(1, 0))
		r.reach(has, r.newest.Load(), time.Unix(2, 0))
		has = r.newest.Load()
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestAPushThatAClientCanNotBeToldIsNotAcknowledged: its stream ends.
func TestAPushThatAClientCanNotBeToldIsNotAcknowledged(t *testing.T) {
	r := startRelay(t, true)
	r.put(se("shop", "a", "0"))
	c := r.toNobody()
	c.has = r.server.rounds.enter()
	if _, err := c.round(); err != nil {
		t.Fatal(err)
	}
	answer := &subscription.Request{TypeURL: seV1, Nonce: c.subs.Watch(seV1).Status().SentNonce}
	if _, err := c.subs.Request(answer, subscription.Limits{Types: 1}, time.Now()); err != nil || !c.subs.Settled() {
		t.Fatalf("the first response is not acknowledged: %v", err)
	}
	r.server.rounds.begin(time.Now(), time.Now())
	had := c.has
	c.view = &view{} // which has never had what the client has
	if _, err := c.round(); err == nil {
		t.Fatal("it was told")
	}
	if c.has != had {
		t.Errorf("it counts as one that has push %d", c.has)
	}
}
