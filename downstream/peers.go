package downstream

import (
	"net"
	"sync"

	"golang.org/x/sync/semaphore"
	"golang.org/x/time/rate"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"

	"meshrelay/downstream/refusal"
	"meshrelay/downstream/subscription"
)

// peers counts what each peer (a verified identity, or else an address) and all together take up.
type peers struct {
	mu    sync.Mutex // guards all below
	byKey map[string]*peerUse
	kept  subscription.Usage // of all peers
	swept int                // how many were left when those were last forgotten that have gone
}

// peerUse is what one peer takes up. peers.mu guards it, but for its last two fields.
type peerUse struct {
	key     string
	streams int
	usual   int // streams when the server was overloaded last, or is not
	kept    subscription.Usage
	limiter *rate.Limiter // of new streams
	// Guarded by views.mu: the derived views of its streams, and a bound for those being filled.
	views int
	fills *semaphore.Weighted // of those that are being filled
}

func newPeers() *peers { return &peers{byKey: map[string]*peerUse{}} }

// enter counts a stream of a peer. When overloaded, fits reports whether the peer has no more than it
// had before: the relay itself has old connections reconnect. The caller calls leave.
func (ps *peers) enter(key string, limits *Limits, overloaded bool) (p *peerUse, streams int, fits bool) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	share := mostOf(limits.NewStreamsPerSecond)
	if p = ps.byKey[key]; p == nil {
		ps.sweep(overloaded)
		p = &peerUse{key: key, limiter: rate.NewLimiter(rate.Limit(share), share), fills: semaphore.NewWeighted(int64(mostOf(maxFills)))}
		ps.byKey[key] = p
	} else if p.limiter.Burst() != share {
		p.limiter.SetLimit(rate.Limit(share))
		p.limiter.SetBurst(share)
	}
	p.streams++
	if !overloaded {
		p.usual = p.streams
	}
	return p, p.streams, p.streams <= p.usual
}

// sweep forgets peers that have gone, whenever their number has doubled. It keeps for a second those
// that have opened many streams.
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

// gone reports whether a peer has left, and has opened no more streams than it may in a second.
func (p *peerUse) gone(overloaded bool) bool {
	return p.streams == 0 && (p.usual == 0 || !overloaded) && p.limiter.Tokens() >= float64(p.limiter.Burst())
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

// keep changes what a stream of p keeps from was to is. It changes nothing, and returns why, when its
// peer or all together would keep too much.
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

// peerKey names the peer of a stream of the listener.
func (t *TLS) peerKey(p *peer.Peer) string {
	if ids := t.identitiesOf(p); len(ids) > 0 {
		return refusal.Bounded(ids[0])
	}
	return addressKey(p.Addr)
}

// addressKey names the host of an address: of IPv6 the network of 64 bits.
func addressKey(addr net.Addr) string {
	tcp, ok := addr.(*net.TCPAddr)
	if !ok {
		return addr.String()
	}
	ip := tcp.AddrPort().Addr().Unmap().WithZone("")
	if ip.Is6() && !ip.IsLoopback() {
		if network, err := ip.Prefix(64); err == nil {
			return network.String()
		}
	}
	return ip.String()
}
