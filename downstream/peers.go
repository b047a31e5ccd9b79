package downstream

import (
	"net"
	"sync"

	"golang.org/x/sync/semaphore"
	"golang.org/x/time/rate"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
)

// usage is what subscriptions make the relay keep.
type usage struct {
	names, nameBytes int
	// versions is the bytes of initial_resource_versions that wait to be compared.
	versions int
}

func (u usage) plus(o usage) usage {
	return usage{u.names + o.names, u.nameBytes + o.nameBytes, u.versions + o.versions}
}

func (u usage) minus(o usage) usage {
	return usage{u.names - o.names, u.nameBytes - o.nameBytes, u.versions - o.versions}
}

// peers counts what each peer, and all of them together, take up. A peer is who a verified
// certificate names, or else an address.
type peers struct {
	mu    sync.Mutex // guards all below
	byKey map[string]*peerUse
	kept  usage // of all peers
	swept int   // how many were left when those were last forgotten that have gone
}

// peerUse is what one peer takes up. peers.mu guards it, but for its last two fields.
type peerUse struct {
	key     string
	streams int
	kept    usage
	limiter *rate.Limiter // of new streams
	// views counts the derived views that its streams have. It and fills, which bounds those
	// that are being filled, are guarded by views.mu.
	views int
	fills *semaphore.Weighted // nil: it has filled none
}

func newPeers() *peers { return &peers{byKey: map[string]*peerUse{}} }

// enter counts a stream of a peer, and returns how many it has. The caller ends that with
// leave.
func (ps *peers) enter(key string, limits *Limits) (p *peerUse, streams int) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	share := mostOf(limits.NewStreamsPerSecond)
	if p = ps.byKey[key]; p == nil {
		ps.sweep()
		p = &peerUse{key: key, limiter: rate.NewLimiter(rate.Limit(share), share)}
		ps.byKey[key] = p
	} else if p.limiter.Burst() != share {
		p.limiter.SetLimit(rate.Limit(share))
		p.limiter.SetBurst(share)
	}
	p.streams++
	return p, p.streams
}

// sweep forgets peers that have gone, once there are twice as many as when it last did. One
// that has opened many streams of late is remembered for a second.
func (ps *peers) sweep() {
	const few = 1024
	if len(ps.byKey) < 2*ps.swept+few {
		return
	}
	for key, p := range ps.byKey {
		if p.streams == 0 && p.rested() {
			delete(ps.byKey, key)
		}
	}
	ps.swept = len(ps.byKey)
}

// rested reports whether a peer has opened no more streams than it may in a second.
func (p *peerUse) rested() bool { return p.limiter.Tokens() >= float64(p.limiter.Burst()) }

func (ps *peers) leave(p *peerUse) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if p.streams--; p.streams == 0 && p.rested() {
		delete(ps.byKey, p.key)
	}
}

// keep changes what a stream of p keeps from was to is, and returns why that is refused when
// it is more than its peer, or all together, may have. Then nothing is changed.
func (ps *peers) keep(p *peerUse, was, is usage, limits *Limits) error {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	of, all := p.kept.plus(is).minus(was), ps.kept.plus(is).minus(was)
	for _, b := range []struct {
		grown       bool
		of, most    int
		what, limit string
		why         reason
	}{
		{is.names > was.names, of.names, limits.MaxNamesPerPeer, "resource names of " + p.key, "downstream.maxNamesPerPeer", reasonNames},
		{is.names > was.names, all.names, limits.MaxNames, "resource names of all clients", "downstream.maxNames", reasonNames},
		{is.nameBytes > was.nameBytes, of.nameBytes, limits.MaxNameBytesPerPeer, "bytes of resource names of " + p.key, "downstream.maxNameBytesPerPeer", reasonNames},
		{is.nameBytes > was.nameBytes, all.nameBytes, limits.MaxNameBytes, "bytes of resource names of all clients", "downstream.maxNameBytes", reasonNames},
		{is.versions > was.versions, of.versions, mostOf(limits.MaxVersionBytes), "bytes of resource versions of " + p.key, "three quarters of downstream.maxVersionBytes", reasonVersions},
		{is.versions > was.versions, all.versions, limits.MaxVersionBytes, "bytes of resource versions that wait to be compared", "downstream.maxVersionBytes", reasonVersions},
	} {
		if b.grown && b.of > b.most {
			return refuse(b.why, codes.ResourceExhausted, "more than %d %s (%s); try again later", b.most, b.what, b.limit)
		}
	}
	p.kept, ps.kept = of, all
	return nil
}

// free is keep for less than before.
func (ps *peers) free(p *peerUse, u usage) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	p.kept, ps.kept = p.kept.minus(u), ps.kept.minus(u)
}

// peerKey names the peer of a stream of the listener.
func (t *TLS) peerKey(p *peer.Peer) string {
	if ids := t.identitiesOf(p); len(ids) > 0 {
		return bounded(ids[0])
	}
	return addressKey(p.Addr)
}

// addressKey names whoever has an address: of IPv6 the network of 64 bits, which one host
// may have to itself.
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
