package subscription

import (
	"fmt"
	"testing"
	"time"

	"meshrelay/downstream/snapshot"
)

// latencies drives one subscription to ServiceEntries, with a clock of its own.
type latencies struct {
	t   *testing.T
	set *Set
	now time.Time
	of  *snapshot.Collection
	// changes counts pushes.
	changes int
}

func newLatencies(t *testing.T, delta bool) *latencies {
	l := &latencies{t: t, set: New(delta, nil, lookup), now: time.Unix(1_800_000_000, 0), of: filled(3)}
	l.request(&Request{TypeURL: seV1})
	return l
}

// later returns the time a while later.
func (l *latencies) later(d time.Duration) { l.now = l.now.Add(d) }

func (l *latencies) request(req *Request) time.Duration {
	l.t.Helper()
	if _, err := l.set.Request(req, Limits{Types: 4, Names: 10, NameBytes: 1000}, l.now); err != nil {
		l.t.Fatal(err)
	}
	return l.set.Latency()
}

// push changes a resource, sends the response, and returns its nonce.
func (l *latencies) push() (nonce string) {
	l.t.Helper()
	l.changes++
	res := se("shop", "s-000000", fmt.Sprint("x", l.changes))
	l.of.Apply([]snapshot.Update{{Name: res.FullName(), Item: res}}, l.now)
	round, err := l.set.Plan(func(Type) *snapshot.Snapshot { return l.of.Current() }, func(int) {})
	if err != nil || round == nil {
		l.t.Fatalf("nothing to send: %v", err)
	}
	for {
		resp, ok := l.set.Next(round, l.now)
		if !ok {
			return nonce
		}
		nonce = resp.Nonce
	}
}

func (l *latencies) owes(want time.Time) {
	l.t.Helper()
	if got := l.set.AwaitedSince(); !got.Equal(want) {
		l.t.Errorf("an ACK is owed since %v, want %v", got, want)
	}
}

func forBothProtocols(t *testing.T, f func(*testing.T, *latencies)) {
	for name, delta := range map[string]bool{"sotw": false, "delta": true} {
		t.Run(name, func(t *testing.T) { f(t, newLatencies(t, delta)) })
	}
}

// TestTheFirstAnswerToTheNewestResponseHasALatency: an ACK or a NACK.
func TestTheFirstAnswerToTheNewestResponseHasALatency(t *testing.T) {
	forBothProtocols(t, func(t *testing.T, l *latencies) {
		first := l.push()
		l.later(2 * time.Second)
		if d := l.request(&Request{TypeURL: seV1, Nonce: first}); d != 2*time.Second {
			t.Errorf("the ACK came after %v", d)
		}
		l.later(time.Second)
		if d := l.request(&Request{TypeURL: seV1, Nonce: first}); d != 0 {
			t.Errorf("the repeated ACK counts as %v", d)
		}
		second := l.push()
		l.later(3 * time.Second)
		if d := l.request(&Request{TypeURL: seV1, Nonce: first}); d != 0 {
			t.Errorf("the ACK of an older response counts as %v", d)
		}
		if d := l.request(&Request{TypeURL: seV1, Nonce: second, Rejected: true, Error: "no"}); d != 3*time.Second {
			t.Errorf("the NACK came after %v", d)
		}
		if d := l.request(&Request{TypeURL: seV1, Nonce: second, Rejected: true, Error: "no"}); d != 0 {
			t.Errorf("the repeated NACK counts as %v", d)
		}
		if d := l.request(&Request{TypeURL: drV1}); d != 0 {
			t.Errorf("a subscription counts as %v", d)
		}
	})
}

// TestAClientOwesAnACKSinceItHasAcknowledgedNothing: since the oldest response without an ACK, or since the last
// ACK of an older response. A NACK does not end it.
func TestAClientOwesAnACKSinceItHasAcknowledgedNothing(t *testing.T) {
	forBothProtocols(t, func(t *testing.T, l *latencies) {
		l.owes(time.Time{})
		began := l.now
		first := l.push()
		l.later(time.Second)
		second := l.push()
		l.owes(began)
		l.later(time.Second)
		l.request(&Request{TypeURL: seV1, Nonce: first})
		l.owes(l.now)
		l.request(&Request{TypeURL: seV1, Nonce: second})
		l.owes(time.Time{})

		l.later(time.Second)
		third := l.push()
		l.owes(l.now)
		began = l.now
		l.later(time.Second)
		l.request(&Request{TypeURL: seV1, Nonce: third, Rejected: true, Error: "no"})
		l.owes(began)
		l.request(&Request{TypeURL: seV1, Nonce: "made up"})
		l.owes(began)
	})
}
