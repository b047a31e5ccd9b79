package downstream

import (
	"container/list"
	"net"
	"sync"
	"time"

	"meshrelay/downstream/refusal"
	"meshrelay/internal/peerkey"
)

// slowHandshake is how long a handshake may take where others wait for the place of the connection.
const slowHandshake = 3 * time.Second

// connLimiter limits the connections of all listeners, and those of each address. It knows the connections
// that have not finished their handshake: gRPC's graceful stop would wait for them.
type connLimiter struct {
	most    func() (all, ofOne int)
	refused func(from net.Addr, why refusal.Reason)
	// reserves is set when a listener identifies its clients, several when there are several listeners.
	reserves, several bool

	mu      sync.Mutex // guards all below
	shut    bool
	in      map[*limitedConn]struct{}
	byKey   map[string]int // number of connections, by peerkey.Of
	unknown int            // number of connections to listeners that identify nobody
}

func newConnLimiter(most func() (all, ofOne int), refused func(from net.Addr, why refusal.Reason), s *shares) *connLimiter {
	return &connLimiter{most: most, refused: refused, reserves: s.unknown != nil, several: len(s.byListener) > 0, in: map[*limitedConn]struct{}{}, byKey: map[string]int{}}
}

// behind returns a listener that accepts only connections within the limits. identifies reports whether its clients
// can have an identity.
func (l *connLimiter) behind(lis net.Listener, identifies bool) net.Listener {
	return &limitedListener{Listener: lis, connLimiter: l, unknown: !identifies}
}

// over returns why a listener can not have one more connection of an address, empty if it can. The caller holds mu.
func (l *connLimiter) over(lis *limitedListener, key string) refusal.Reason {
	all, ofOne := l.most()
	unknown := lis.unknown && l.reserves
	if unknown || l.several {
		ofOne = min(ofOne, mostOf(mostOf(all)))
	}
	switch {
	case len(l.in) >= all:
		return refusal.Connections
	case l.byKey[key] >= ofOne:
		return refusal.Peer
	case unknown && l.unknown >= mostOf(all), l.several && lis.open >= mostOf(all):
		return refusal.Connections
	}
	return ""
}

// enter adds a connection. Over a limit, or after close, it closes the connection and returns nil. A connection
// whose handshake is slow gives its place to a new one.
func (l *connLimiter) enter(c net.Conn, lis *limitedListener) *limitedConn {
	in := &limitedConn{Conn: c, limiter: l, listener: lis, key: peerkey.Of(c.RemoteAddr()), since: time.Now()}
	var slow *limitedConn
	l.mu.Lock()
	shut, why := l.shut, l.over(lis, in.key)
	if first := lis.waiting.Front(); !shut && why == refusal.Connections && first != nil && in.since.Sub(first.Value.(*limitedConn).since) > slowHandshake {
		slow = first.Value.(*limitedConn)
		l.remove(slow)
		why = l.over(lis, in.key)
	}
	if !shut && why == "" {
		l.add(in)
	}
	l.mu.Unlock()
	if slow != nil {
		slow.Conn.Close()
		l.refused(slow.RemoteAddr(), refusal.Connections)
	}
	if !shut && why == "" {
		return in
	}
	c.Close()
	if !shut {
		l.refused(c.RemoteAddr(), why)
	}
	return nil
}

// add counts a connection. The caller holds mu.
func (l *connLimiter) add(c *limitedConn) {
	l.in[c] = struct{}{}
	l.byKey[c.key]++
	c.listener.open++
	if c.listener.unknown {
		l.unknown++
	}
	c.place = c.listener.waiting.PushBack(c)
}

// remove ends what add began. The caller holds mu.
func (l *connLimiter) remove(c *limitedConn) {
	if _, there := l.in[c]; !there {
		return
	}
	delete(l.in, c)
	if l.byKey[c.key]--; l.byKey[c.key] == 0 {
		delete(l.byKey, c.key)
	}
	c.listener.open--
	if c.listener.unknown {
		l.unknown--
	}
	if !c.ready {
		c.listener.waiting.Remove(c.place)
	}
}

func (l *connLimiter) leave(c *limitedConn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.remove(c)
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
	unknown     bool // it identifies nobody

	// connLimiter.mu guards these fields. waiting has the connections in their handshake, the oldest first.
	open    int
	waiting list.List
}

func (l *limitedListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if in := l.connLimiter.enter(c, l); in != nil {
			return in, nil
		}
	}
}

// limitedConn is a connection that enter has added.
type limitedConn struct {
	net.Conn
	limiter  *connLimiter
	listener *limitedListener
	key      string
	since    time.Time
	place    *list.Element // in listener.waiting
	ready    bool          // the handshake has ended; guarded by limiter.mu
	once     sync.Once
}

// SetDeadline notes the end of the handshake: gRPC removes the deadline then.
func (c *limitedConn) SetDeadline(t time.Time) error {
	if t.IsZero() {
		c.limiter.mu.Lock()
		if _, in := c.limiter.in[c]; in && !c.ready {
			c.listener.waiting.Remove(c.place)
		}
		c.ready = true
		c.limiter.mu.Unlock()
	}
	return c.Conn.SetDeadline(t)
}

func (c *limitedConn) Close() error {
	c.once.Do(func() { c.limiter.leave(c) })
	return c.Conn.Close()
}
