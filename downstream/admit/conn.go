package admit

import (
	"context"
	"math"
	"net"
	"slices"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/stats"

	"meshrelay/downstream/refusal"
	"meshrelay/internal/peerkey"
)

const (
	// slowHandshake is how long a connection may have no stream where others need its place.
	slowHandshake = 3 * time.Second
	// freeBytes is how many bytes of a request that is not complete a connection may bring uncounted: acknowledgements
	// and most first requests.
	freeBytes = 8 << 10
	// besideMessage is what a message brings in addition to its bytes, in bytes: the heads of frames and records.
	besideMessage = 64
	// bytesWait is how long a connection waits for room for its bytes. requestTime is how long a request may take that
	// is larger than freeBytes. After either time, the relay closes the connection.
	bytesWait   = 10 * time.Second
	requestTime = 30 * time.Second
)

// Listen returns one of the listeners, by its number. It accepts only connections within the limits.
func (a *Admission) Listen(lis net.Listener, number int) net.Listener {
	return &listener{lis, a, number}
}

type listener struct {
	net.Listener
	admission *Admission
	number    int
}

func (l *listener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if in := l.admission.enter(c, l.number); in != nil {
			return in, nil
		}
	}
}

// conn is a connection that enter has added. It counts the bytes that it has brought since the last request that was
// complete: so many gRPC may hold for it.
type conn struct {
	net.Conn
	admission *Admission
	listener  int
	since     time.Time
	streams   atomic.Int32
	held      atomic.Int64 // bytes

	// admission.mu guards all below.
	peer    *Peer
	scopes  []*scope
	ready   bool // the handshake has ended
	closed  bool
	counted int         // bytes of held above freeBytes that scopes count
	late    *time.Timer // runs while some count
}

// enter adds a connection. Over a limit, or after Shut, it closes the connection and returns nil. An old connection
// without a stream gives its place to a new one.
func (a *Admission) enter(nc net.Conn, listener int) *conn {
	c := &conn{Conn: nc, admission: a, listener: listener, since: time.Now()}
	var slow *conn
	a.mu.Lock()
	c.peer = a.peer(peerkey.Of(nc.RemoteAddr()), false)
	to := a.scopes(c.peer, listener)
	if a.unproven != nil { // the handshake tells whether it is one of them
		to = slices.Delete(to, 1, 2)
	}
	shut, why := a.shut, a.refuses(to)
	if !shut && why == refusal.Connections {
		if slow = a.slowest(); slow != nil {
			a.remove(slow)
			why = a.refuses(to)
		}
	}
	if shut || why != "" {
		a.forget(c.peer, false)
	} else {
		a.conns[c] = struct{}{}
		a.handshaking++
		c.move(to)
	}
	a.mu.Unlock()
	if slow != nil {
		slow.Close()
		a.refused(slow.RemoteAddr(), refusal.Connections)
	}
	if !shut && why == "" {
		return c
	}
	nc.Close()
	if !shut {
		a.refused(nc.RemoteAddr(), why)
	}
	return nil
}

// refuses returns why a new connection is refused, empty if it is not. The caller holds mu.
func (a *Admission) refuses(scopes []*scope) refusal.Reason {
	most := a.limits.Load().MaxConnections
	switch over(scopes, connections, most) {
	case nil:
		if a.unproven == nil || a.unproven.conns+a.handshaking < max(1, most*ofHandshaking/whole) {
			return ""
		}
	case scopes[0]:
		return refusal.Peer
	}
	return refusal.Connections
}

func connections(s *scope) int { return s.conns }

// slowest returns the oldest of the connections without a stream, as in their handshake, nil if it is not old. It looks
// at all of them ten times a second at most. The caller holds mu.
func (a *Admission) slowest() (slow *conn) {
	now := time.Now()
	if now.Sub(a.looked) < readInterval {
		return nil
	}
	for c := range a.conns {
		if c.streams.Load() == 0 && now.Sub(c.since) > slowHandshake && (slow == nil || c.since.Before(slow.since)) {
			slow = c
		}
	}
	if slow == nil {
		a.looked = now
	}
	return slow
}

// remove ends what enter began. The caller holds mu.
func (a *Admission) remove(c *conn) {
	if c.closed {
		return
	}
	c.closed = true
	delete(a.conns, c)
	if !c.ready {
		a.handshaking--
	}
	c.count(0)
	c.move(nil)
}

// move counts the connection in other scopes. Nothing of its bytes counts. The caller holds mu.
func (c *conn) move(to []*scope) {
	for _, s := range c.scopes {
		s.conns--
	}
	for _, s := range to {
		s.conns++
	}
	c.scopes = to
	c.admission.forget(c.peer, false)
}

// count has the scopes count so many bytes. The caller holds mu.
func (c *conn) count(bytes int) {
	bytes = max(0, bytes)
	for _, s := range c.scopes {
		s.bytes += bytes - c.counted
	}
	if bytes < c.counted {
		close(c.admission.freed)
		c.admission.freed = make(chan struct{})
	}
	switch c.counted = bytes; {
	case bytes == 0 && c.late != nil:
		c.late.Stop()
		c.late = nil
	case bytes > 0 && c.late == nil:
		c.late = time.AfterFunc(requestTime, c.refuse)
	}
}

func (c *conn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 && !c.take(n) {
		c.refuse()
		return 0, net.ErrClosed
	}
	return n, err
}

func (c *conn) Write(b []byte) (int, error) {
	began := time.Now()
	n, err := c.Conn.Write(b)
	c.admission.wrote(n, time.Since(began))
	return n, err
}

// take counts n bytes. It waits until there is room for those above freeBytes, and reports whether there is.
func (c *conn) take(n int) bool {
	held := int(c.held.Add(int64(n)))
	if held <= freeBytes {
		return true
	}
	a, end := c.admission, time.Now().Add(bytesWait)
	a.mu.Lock()
	defer a.mu.Unlock()
	if !c.ready { // the handshake has a timeout, and TLS bounds its messages
		return true
	}
	for !c.closed && over(c.scopes, func(s *scope) int { return s.bytes - c.counted + held - freeBytes - 1 }, a.limits.Load().heldBytes()) != nil {
		freed := a.freed
		a.mu.Unlock()
		late := time.NewTimer(time.Until(end))
		select {
		case <-freed:
		case <-late.C:
		}
		inTime := late.Stop()
		a.mu.Lock()
		if held = int(c.held.Load()); !inTime {
			return false
		}
	}
	if !c.closed { // else the next read tells
		c.count(held - freeBytes)
	}
	return true
}

// complete notes a request of so many bytes.
func (c *conn) complete(bytes int) {
	var was int64
	if c.streams.Load() == 1 { // what is left is no part of a request, or less than a window
		was = c.held.Swap(0)
	} else {
		was = c.held.Load()
		c.held.Add(-min(was, int64(bytes+besideMessage)))
	}
	if was > freeBytes {
		c.admission.mu.Lock()
		defer c.admission.mu.Unlock()
		c.count(int(c.held.Load()) - freeBytes)
	}
}

// refuse counts and closes a connection that is not closed yet.
func (c *conn) refuse() {
	c.admission.mu.Lock()
	closed := c.closed
	c.admission.mu.Unlock()
	if !closed {
		c.Close()
		c.admission.refused(c.RemoteAddr(), refusal.Receiving)
	}
}

func (c *conn) Close() error {
	c.admission.mu.Lock()
	c.admission.remove(c)
	c.admission.mu.Unlock()
	return c.Conn.Close()
}

// prove ends the handshake. It counts the connection as one of an identity, empty for none, and returns why there is
// no room for it.
func (c *conn) prove(identity string) refusal.Reason {
	a := c.admission
	a.mu.Lock()
	defer a.mu.Unlock()
	if c.closed {
		return ""
	}
	c.ready = true
	a.handshaking--
	c.held.Store(0)
	if p := c.peer; identity != "" {
		p = a.peer(identity, true)
		if over([]*scope{&p.scope}, connections, a.limits.Load().MaxConnections) != nil {
			return refusal.Peer
		}
		c.move(a.scopes(p, c.listener))
		c.peer = p
	} else if a.unproven != nil {
		if over([]*scope{a.unproven}, connections, a.limits.Load().MaxConnections) != nil {
			return refusal.Connections
		}
		c.move(a.scopes(p, c.listener))
	}
	return ""
}

// Shut makes listeners refuse new connections, and closes the connections without a stream: gRPC's graceful stop
// would wait for those in a handshake. With all, it closes every connection.
func (a *Admission) Shut(all bool) {
	a.mu.Lock()
	a.shut = true
	var ending []*conn
	for c := range a.conns {
		if all || c.streams.Load() == 0 {
			ending = append(ending, c)
		}
	}
	a.mu.Unlock()
	for _, c := range ending {
		c.Close()
	}
}

// Info is the result of a handshake on a connection of Listen.
type Info struct {
	credentials.AuthInfo
	conn *conn
}

// Credentials are the credentials of a listener. Identify returns the identity that a handshake has proven, empty for
// none.
type Credentials struct {
	credentials.TransportCredentials
	Identify func(credentials.AuthInfo) string
}

// ServerHandshake implements credentials.TransportCredentials.
func (p Credentials) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	secured, info, err := p.TransportCredentials.ServerHandshake(raw)
	c, ok := raw.(*conn)
	if err != nil || !ok {
		return secured, info, err
	}
	if why := c.prove(p.Identify(info)); why != "" {
		c.Close()
		c.admission.refused(c.RemoteAddr(), why)
		return nil, nil, net.ErrClosed
	}
	return secured, Info{info, c}, nil
}

// Handler notes streams and complete requests of connections. It implements stats.Handler.
type Handler struct{}

// HandleRPC implements stats.Handler.
func (Handler) HandleRPC(ctx context.Context, event stats.RPCStats) {
	p, _ := peer.FromContext(ctx)
	info, ok := p.AuthInfo.(Info)
	if !ok {
		return
	}
	switch event := event.(type) {
	case *stats.Begin:
		info.conn.streams.Add(1)
	case *stats.InPayload:
		info.conn.complete(event.WireLength)
	case *stats.End:
		if info.conn.streams.Add(-1) == 0 {
			info.conn.complete(math.MaxInt32)
		}
	}
}

// TagRPC implements stats.Handler.
func (Handler) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

// TagConn implements stats.Handler.
func (Handler) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

// HandleConn implements stats.Handler.
func (Handler) HandleConn(context.Context, stats.ConnStats) {}
