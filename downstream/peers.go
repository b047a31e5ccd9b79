package downstream

import (
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"
	"golang.org/x/time/rate"
	"google.golang.org/grpc/codes"

	"meshrelay/downstream/refusal"
	"meshrelay/downstream/subscription"
	"meshrelay/internal/identity"
	"meshrelay/internal/peerkey"
)

// peers counts the streams, names and versions of each peer, and of all peers. A peer is a verified identity
// or, without one, an address.
type peers struct {
	mu    sync.Mutex // guards all below
	byKey map[string]*peerUse
	kept  subscription.Usage // of all peers
	swept int                // number of peers after the last sweep
}

// peerUse has the counts of one peer. peers.mu guards the fields before views.
type peerUse struct {
	key     string
	streams int
	usual   int // streams at the time of the last change without overload
	kept    subscription.Usage
	limiter *rate.Limiter // of new streams
	known   atomic.Bool   // it has an identity
	work    work
	// requests and answers limit what its streams ask for together.
	requests *rate.Limiter
	answers  *semaphore.Weighted
	// views.mu guards views. views counts the derived views of the peer's streams.
	views int
	fills *semaphore.Weighted // limits the fills for the peer at the same time
}

func newPeers() *peers { return &peers{byKey: map[string]*peerUse{}} }

// enter counts a stream of a peer. While the server is overloaded, fits reports whether the peer has no more
// streams than before: the relay itself makes old connections reconnect. The caller calls leave.
func (ps *peers) enter(key string, limits *Limits, overloaded bool) (p *peerUse, streams int, fits bool) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	share := mostOf(limits.NewStreamsPerSecond)
	if p = ps.byKey[key]; p == nil {
		ps.sweep(overloaded)
		p = &peerUse{key: key, limiter: rate.NewLimiter(rate.Limit(share), share), fills: semaphore.NewWeighted(int64(mostOf(maxFills)))}
		p.requests, p.answers = rate.NewLimiter(rate.Limit(peerRequests*limits.RequestsPerSecond), peerBurst), semaphore.NewWeighted(int64(mostOf(mostAnswers())))
		ps.byKey[key] = p
	} else {
		limitTo(p.limiter, share)
	}
	p.work.opened.Add(1)
	p.streams++
	if !overloaded {
		p.usual = p.streams
	}
	return p, p.streams, p.streams <= p.usual
}

// limitTo gives a limiter of new streams another limit, if it has another one.
func limitTo(limiter *rate.Limiter, most int) {
	if limiter.Burst() != most {
		limiter.SetLimit(rate.Limit(most))
		limiter.SetBurst(most)
	}
}

// sweep forgets the peers without streams, whenever the number of peers has doubled. It keeps a peer that has
// just opened many streams, for a second.
func (ps *peers) sweep(overloaded bool) {
	const few = 1024
	if len(ps.byKey) < 2*ps.swept+few {
		return
	}
	for key, p := range ps.byKey {
		if p.gone(overloaded) {
			delete(ps.byKey, key)
		}
	}
	ps.swept = len(ps.byKey)
}

// gone reports whether the peer can be forgotten: it has no streams, and its limiters are full again.
func (p *peerUse) gone(overloaded bool) bool {
	return p.streams == 0 && (p.usual == 0 || !overloaded) && p.limiter.Tokens() >= float64(p.limiter.Burst()) &&
		p.requests.Tokens() >= peerBurst
}

// paces returns how long a request waits because the streams of the peer send too many together.
func (p *peerUse) paces(limits *Limits, now time.Time) time.Duration {
	if most := rate.Limit(peerRequests * limits.RequestsPerSecond); p.requests.Limit() != most {
		p.requests.SetLimitAt(now, most)
	}
	return p.requests.ReserveN(now, 1).DelayFrom(now)
}

func (ps *peers) leave(p *peerUse, overloaded bool) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	p.streams--
	if !overloaded {
		p.usual = p.streams
	}
	if p.gone(overloaded) {
		delete(ps.byKey, p.key)
	}
}

// keep replaces the usage was of a stream of p by is. If the peer or all peers together would then exceed a
// limit, keep changes nothing and returns an error.
func (ps *peers) keep(p *peerUse, was, is subscription.Usage, limits *Limits) error {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	of, all := p.kept.Changed(was, is), ps.kept.Changed(was, is)
	for _, b := range []struct {
		grown       bool
		of, most    int
		what, limit string
		why         refusal.Reason
	}{
		{is.Names > was.Names, of.Names, limits.MaxNamesPerPeer, "resource names of " + p.key, "downstream.maxNamesPerPeer", refusal.Names},
		{is.Names > was.Names, all.Names, limits.MaxNames, "resource names of all clients", "downstream.maxNames", refusal.Names},
		{is.NameBytes > was.NameBytes, of.NameBytes, limits.MaxNameBytesPerPeer, "bytes of resource names of " + p.key, "downstream.maxNameBytesPerPeer", refusal.Names},
		{is.NameBytes > was.NameBytes, all.NameBytes, limits.MaxNameBytes, "bytes of resource names of all clients", "downstream.maxNameBytes", refusal.Names},
		{is.Versions > was.Versions, of.Versions, mostOf(limits.MaxVersionBytes), "bytes of resource versions of " + p.key, "three quarters of downstream.maxVersionBytes", refusal.Versions},
		{is.Versions > was.Versions, all.Versions, limits.MaxVersionBytes, "bytes of resource versions that wait to be compared", "downstream.maxVersionBytes", refusal.Versions},
	} {
		if b.grown && b.of > b.most {
			return refusal.New(b.why, codes.ResourceExhausted, "more than %d %s (%s); try again later", b.most, b.what, b.limit)
		}
	}
	p.kept, ps.kept = of, all
	return nil
}

// peerKey returns the name of a stream's peer in the counts: its identity or its address.
func peerKey(who identity.Identity, from net.Addr) string {
	if !who.IsZero() {
		return refusal.Bounded(who.Names[0])
	}
	return peerkey.Of(from)
}
