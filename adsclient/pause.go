package adsclient

import (
	"math/rand/v2"
	"time"

	"github.com/cenkalti/backoff/v5"
)

// pauses are the waits between rounds of attempts, which grow as in gRFC A57. One grows with each
// round in which nothing syncs, and starts again with each sync: a server that was away is found
// soon. The other grows with each stream that syncs and ends soon, because each costs the server a
// full answer. It starts again when a stream stays.
type pauses struct {
	unreachable, unsteady *backoff.ExponentialBackOff
	denied                time.Duration
	// unsteadily: a stream of this round synced and ended soon. refused: an address refused the
	// identity.
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

// stayed begins a round after a stream that synced and stayed.
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

// afterRound returns the pause after a round, and begins another round.
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

// jitter returns d plus or minus a tenth.
func jitter(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (0.9 + 0.2*rand.Float64()))
}
