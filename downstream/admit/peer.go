package admit

import (
	"context"
	"maps"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"
	"golang.org/x/time/rate"

	"meshrelay/downstream/subscription"
)

const (
	// answersPerCPU bounds the answers to requests of one peer that are made and written at the same time, for each CPU.
	answersPerCPU = 12
	// answerTime is how long an answer counts. After that it waits for the client to read.
	answerTime = 100 * time.Millisecond
)

// Peer is a proven identity or else an address, with what it takes.
type Peer struct {
	scope
	Proven      bool          // an identity
	usual       int           // streams at the time of the last change without overload
	handshaking int           // connections of the address
	beside      *rate.Limiter // of bytes beside requests

	// Work counts what was done for it.
	Work Work
	// Fills limits the views that are filled for it at the same time, and answers the answers to its requests.
	Fills   *semaphore.Weighted
	answers *semaphore.Weighted
	// Views and Kept are counted, and guarded, by those who count them.
	Views int
	Kept  subscription.Usage
}

// Work counts what was done for a peer. The zero Work is ready to use.
type Work struct {
	Opened, Requests, Delayed, Rejected, Responses, Bytes atomic.Uint64
}

// peer returns a peer, which has something afterwards: the caller holds mu until then.
func (a *Admission) peer(key string, proven bool) *Peer {
	p := a.byKey[key]
	if p == nil {
		a.sweep()
		p = &Peer{
			Proven: proven,
			beside: rate.NewLimiter(besidePerSecond, burst*besidePerSecond),
			Fills:  semaphore.NewWeighted(FillsPerPeer), answers: semaphore.NewWeighted(int64(answersPerCPU * runtime.GOMAXPROCS(0))),
		}
		part := whole
		for _, s := range a.scopes(p, 0)[1:] {
			part = min(part, s.part)
		}
		p.scope = *newScope(key, part*3/4, 1, a.limits.Load())
		a.byKey[key] = p
	}
	return p
}

// FillsPerPeer bounds the views that are filled for one peer at the same time.
const FillsPerPeer = 6

// sweep forgets the peers that have nothing, whenever the number of peers has doubled. It keeps a peer that has
// just opened many streams, for some seconds.
func (a *Admission) sweep() {
	const few = 1024
	if len(a.byKey) < 2*a.swept+few {
		return
	}
	maps.DeleteFunc(a.byKey, func(_ string, p *Peer) bool { return p.gone(false) })
	a.swept = len(a.byKey)
}

// gone reports whether the peer can be forgotten: it has nothing, and its limiters are full again.
func (p *Peer) gone(overloaded bool) bool {
	return p.conns == 0 && p.streams == 0 && (p.usual == 0 || !overloaded) &&
		p.opens.Tokens() >= float64(p.opens.Burst()) && p.requests.Tokens() >= float64(p.requests.Burst())
}

// Answer waits until a peer has not too many answers to requests, so that one that asks for everything on many streams
// leaves the CPUs to others. Pushes do not wait. The caller calls end. It fails when ctx ends.
func (p *Peer) Answer(ctx context.Context) (end func(), err error) {
	if err := p.answers.Acquire(ctx, 1); err != nil {
		return nil, err
	}
	free := sync.OnceFunc(func() { p.answers.Release(1) })
	late := time.AfterFunc(answerTime, free)
	return func() { late.Stop(); free() }, nil
}

// Each calls f with each peer, its connections and streams, and the bytes that count of its requests. A peer that has
// nothing is forgotten after a while.
func (a *Admission) Each(f func(p *Peer, connections, streams, bytes int)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, p := range a.byKey {
		f(p, p.conns, p.streams, p.bytes)
	}
}
