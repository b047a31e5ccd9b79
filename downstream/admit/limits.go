package admit

import "cmp"

// Limits limit clients. A zero value means the default. The config sets the first three; the others are constants,
// except in tests.
type Limits struct {
	// MaxConnections and MaxStreams bound the clients of all listeners together. When one is lowered, open ones stay.
	MaxConnections, MaxStreams int
	// MaxRequestBytes bounds a request. OpenRequestBytes bounds it on listeners that do not require certificates.
	MaxRequestBytes int
	// NewStreamsPerSecond bounds new streams. More wait for up to a second, and are then refused (PROTOCOL S25).
	NewStreamsPerSecond int
	// RequestsPerSecond bounds the requests of a peer, without acknowledgements. The relay delays the requests of a
	// faster one, and ends a stream after ten seconds of delay. All peers have four times as many.
	RequestsPerSecond int
}

// OpenRequestBytes bounds the requests of listeners that do not require certificates: the default of gRPC.
const OpenRequestBytes = 4 << 20

// Complete sets the defaults of l.
func (l *Limits) Complete() {
	l.MaxConnections = cmp.Or(l.MaxConnections, 20_000)
	l.MaxStreams = cmp.Or(l.MaxStreams, 20_000)
	l.MaxRequestBytes = cmp.Or(l.MaxRequestBytes, 32<<20)
	l.NewStreamsPerSecond = cmp.Or(l.NewStreamsPerSecond, 2000)
	l.RequestsPerSecond = cmp.Or(l.RequestsPerSecond, 8000)
}

// heldBytes bounds the bytes of requests that gRPC holds for all connections.
func (l *Limits) heldBytes() int { return max(heldLeast, 4*l.MaxRequestBytes) }

const (
	heldLeast       = 16 << 20
	burst           = 8        // seconds of requests, at once: the streams of a load balancer come back together
	allPeers        = 4        // times the requests of one peer
	besidePerSecond = 32 << 10 // bytes of a peer that are taken to be beside its requests, and are not seen
)
