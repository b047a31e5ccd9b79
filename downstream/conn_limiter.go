package downstream

import (
	"net"
	"sync"
	"time"

	"meshrelay/downstream/refusal"
	"meshrelay/internal/peerkey"
)

// connLimiter limits the connections of all listeners, and those of each address. It knows the connections
// that have not finished their handshake: gRPC's graceful stop would wait for them.
type connLimiter struct {
	most    func() (all, ofOne int)
	refused func(from net.Addr, why refusal.Reason)

	mu    sync.Mutex // guards all below
	shut  bool
	in    map[*limitedConn]struct{}
	byKey map[string]int // number of connections, by peerkey.Of
}

func newConnLimiter(most func() (all, ofOne int), refused func(from net.Addr, why refusal.Reason)) *connLimiter {
	return &connLimiter{most: most, refused: refused, in: map[*limitedConn]struct{}{}, byKey: map[string]int{}}
}

// behind returns a listener that accepts only connections within the limits.
func (l *connLimiter) behind(lis net.Listener) net.Listener { return limitedListener{lis, l} }

// enter adds a connection. Over a limit, or after close, it closes the connection and returns nil.
func (l *connLimiter) enter(c net.Conn) *limitedConn {
	all, ofOne := l.most()
	in := &limitedConn{Conn: c, limiter: l, key: peerkey.Of(c.RemoteAddr())}
	var why refusal.Reason
	l.mu.Lock()
	shut := l.shut
	switch {
	case shut:
	case len(l.in) >= all:
		why = refusal.Connections
	case l.byKey[in.key] >= ofOne:
		why = refusal.Peer
	default:
		l.in[in] = struct{}{}
		l.byKey[in.key]++
		l.mu.Unlock()
		return in
	}
	l.mu.Unlock()
	c.Close()
	if !shut {
		l.refused(c.RemoteAddr(), why)
	}
	return nil
}

func (l *connLimiter) leave(c *limitedConn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.in, c)
	if l.byKey[c.key]--; l.byKey[c.key] == 0 {
		delete(l.byKey, c.key)
	}
}

// close makes the limiter refuse new connections. It closes the connections that are in their handshake or,
// with all, every connection.
func (l *connLimiter) close(all bool) {
	l.mu.Lock()
	l.shut = true
	var ending []*limitedConn
	for c := range l.in {
		if all || !c.ready {
			ending = append(ending, c)
		}
	}
	l.mu.Unlock()
	for _, c := range ending {
		c.Close()
	}
}

type limitedListener struct {
	net.Listener
	connLimiter *connLimiter
}

func (l limitedListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if in := l.connLimiter.enter(c); in != nil {
			return in, nil
		}
	}
}

// limitedConn is a connection that enter has added.
type limitedConn struct {
	net.Conn
	limiter *connLimiter
	key     string
	ready   bool // the handshake has ended; guarded by limiter.mu
	once    sync.Once
}

// SetDeadline notes the end of the handshake: gRPC removes the deadline then.
func (c *limitedConn) SetDeadline(t time.Time) error {
	if t.IsZero() {
		c.limiter.mu.Lock()
		c.ready = true
		c.limiter.mu.Unlock()
	}
	return c.Conn.SetDeadline(t)
}

func (c *limitedConn) Close() error {
	c.once.Do(func() { c.limiter.leave(c) })
	return c.Conn.Close()
}
