package downstream

import (
	"net"
	"sync"
	"time"

	"meshrelay/downstream/refusal"
)

// connLimiter bounds the connections of all listeners and of each address. It knows which of them have
// finished their handshake: gRPC waits for the others before it sends a GOAWAY.
type connLimiter struct {
	most    func() (all, ofOne int)
	refused func(from net.Addr, why refusal.Reason)

	mu    sync.Mutex // guards all below
	shut  bool
	in    map[*limitedConn]struct{}
	byKey map[string]int // how many are in, by addressKey
}

func newConnLimiter(most func() (all, ofOne int), refused func(from net.Addr, why refusal.Reason)) *connLimiter {
	return &connLimiter{most: most, refused: refused, in: map[*limitedConn]struct{}{}, byKey: map[string]int{}}
}

// behind returns lis without the connections that are turned away.
func (l *connLimiter) behind(lis net.Listener) net.Listener { return limitedListener{lis, l} }

// enter takes a connection in, or closes it and returns nil.
func (l *connLimiter) enter(c net.Conn) *limitedConn {
	all, ofOne := l.most()
	in := &limitedConn{Conn: c, limiter: l, key: addressKey(c.RemoteAddr())}
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

// close lets nobody in any more, and ends connections in their handshake, or all.
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

// limitedConn is a connection that is in.
type limitedConn struct {
	net.Conn
	limiter *connLimiter
	key     string
	ready   bool // its handshake is over; guarded by limiter.mu
	once    sync.Once
}

// SetDeadline is how gRPC bounds handshakes: without a deadline, that is over.
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
