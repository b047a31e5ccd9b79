package downstream

import (
	"net"
	"sync"
	"time"
)

// gate lets connections in, up to a limit for all listeners together and one for each address,
// and knows those
// that are in: gRPC waits for handshakes before it tells anybody to go, and so for clients
// that never finish theirs.
type gate struct {
	most    func() (all, ofOne int)
	refused func(from net.Addr, why reason)

	mu    sync.Mutex // guards all below
	shut  bool
	in    map[*gated]struct{}
	byKey map[string]int // how many are in, by addressKey
}

func newGate(most func() (all, ofOne int), refused func(from net.Addr, why reason)) *gate {
	return &gate{most: most, refused: refused, in: map[*gated]struct{}{}, byKey: map[string]int{}}
}

// behind returns lis without the connections that are turned away.
func (g *gate) behind(lis net.Listener) net.Listener { return gatedListener{lis, g} }

// enter takes a connection in, or returns nil and has it closed.
func (g *gate) enter(c net.Conn) *gated {
	all, ofOne := g.most()
	key := addressKey(c.RemoteAddr())
	g.mu.Lock()
	var why reason
	switch {
	case len(g.in) >= all:
		why = reasonConnections
	case g.byKey[key] >= ofOne:
		why = reasonPeer
	}
	if why != "" || g.shut {
		shut := g.shut
		g.mu.Unlock()
		c.Close()
		if !shut {
			g.refused(c.RemoteAddr(), why)
		}
		return nil
	}
	defer g.mu.Unlock()
	in := &gated{Conn: c, gate: g, key: key}
	g.in[in] = struct{}{}
	g.byKey[key]++
	return in
}

func (g *gate) leave(c *gated) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.in, c)
	if g.byKey[c.key]--; g.byKey[c.key] == 0 {
		delete(g.byKey, c.key)
	}
}

// close lets nobody in any more, and ends the connections that have not finished their
// handshake; with all, every connection.
func (g *gate) close(all bool) {
	g.mu.Lock()
	g.shut = true
	var ending []*gated
	for c := range g.in {
		if all || !c.ready {
			ending = append(ending, c)
		}
	}
	g.mu.Unlock()
	for _, c := range ending {
		c.Close()
	}
}

type gatedListener struct {
	net.Listener
	gate *gate
}

func (l gatedListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		setUserTimeout(c, keepaliveTimeout)
		if in := l.gate.enter(c); in != nil {
			return in, nil
		}
	}
}

// gated is a connection that is in.
type gated struct {
	net.Conn
	gate  *gate
	key   string
	ready bool // its handshake is over; guarded by gate.mu
	once  sync.Once
}

// SetDeadline is how gRPC bounds the handshakes, and says that they are over: then there
// is no deadline any more.
func (c *gated) SetDeadline(t time.Time) error {
	if t.IsZero() {
		c.gate.mu.Lock()
		c.ready = true
		c.gate.mu.Unlock()
	}
	return c.Conn.SetDeadline(t)
}

func (c *gated) Close() error {
	c.once.Do(func() { c.gate.leave(c) })
	return c.Conn.Close()
}
