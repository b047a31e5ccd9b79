package adsclient

import (
	"math/rand/v2"
	"time"

	"github.com/cenkalti/backoff/v5"
)

// pauses are the waits between rounds of attempts, which grow as gRFC A57 has it. They are two.
// One grows with rounds in which nothing syncs, and begins anew with each sync: whoever was away
// is found soon after it is back, also when it goes again at once. The other grows with streams
// that sync and end soon, because each of these costs the server a full answer, and begins anew
// when a stream stays.
type pauses struct {
	unreachable, unsteady *backoff.ExponentialBackOff
	denied                time.Duration
	// unsteadily and refused are what happened in the present round: a stream synced and ended
	// soon, and an address refused our identity.
	unsteadily, refused bool
}

func newPauses(least, most, denied time.Duration) *pauses {
	grows := func() *backoff.ExponentialBackOff {
		b := &backoff.ExponentialBackOff{InitialInterval: least, MaxInterval: most, RandomizationFactor: 0.5, Multiplier: 1.6}
		b.Reset()
		return b
	}
	return &pauses{unreachable: grows(), unsteady: grows(), denied: denied}
}

// stayed notes that the last stream had synced and stayed, and that a round begins.
func (p *pauses) stayed() {
	p.unreachable.Reset()
	p.unsteady.Reset()
	p.unsteadily, p.refused = false, false
}

// left notes that the last stream had synced and ended soon.
func (p *pauses) left() {
	p.unreachable.Reset()
	p.unsteadily = true
}

// afterRound returns the pause after a round, and begins the next.
func (p *pauses) afterRound() time.Duration {
	grown := p.unreachable
	if p.unsteadily {
		grown = p.unsteady
	}
	wait := grown.NextBackOff()
	if p.refused {
		wait = max(wait, jitter(p.denied))
	}
	p.unsteadily, p.refused = false, false
	return wait
}

// jitter returns d, give or take a tenth.
func jitter(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (0.9 + 0.2*rand.Float64()))
}
