package admit

import (
	"context"
	"maps"
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
	// freeBytes is how many bytes of requests that are not complete a connection may bring uncounted: acknowledgements
	// and most first requests.
	freeBytes = 8 << 10
	// frameHead and recordAround are what frames, and records of TLS, bring beside their content, in bytes. reset is the
	// frame that ends a stream. Besides, a client sends a byte for each perByte of a large request, and of what it reads.
	frameHead, recordAround, reset, perByte = 9, 29, 13, 180
	// bytesWait is how long a connection waits for room for its bytes, and is then closed. requestTime is how long a
	// request may take that is larger than freeBytes where others wait for room.
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

// conn is a connection that enter has added. It counts the bytes that it has brought and that gRPC may hold: with one
// stream, those since its last complete request. With more they are those that are in no complete request, and what is
// beside requests is forgiven by what else the client does: frames around what is complete, answers to what it reads.
type conn struct {
	net.Conn
	admission *Admission
	listener  int
	record    int // recordAround, with TLS
	streams   atomic.Int32
	held      atomic.Int64 // bytes

	// admission.mu guards all below.
	peer    *Peer
	scopes  []*scope
	since   time.Time // of the last of: connected, handshake ended, last stream ended
	ready   bool      // the handshake has ended
	closed  bool
	waits   bool      // for room
	counted int       // bytes of held above freeBytes that scopes count
	late    time.Time // when they have counted for requestTime
}

// enter adds a connection. Over a limit, or after Shut, it closes the connection and returns nil. An old connection
// without a stream gives its place to a new one.
func (a *Admission) enter(nc net.Conn, listener int) *conn {
	c := &conn{Conn: nc, admission: a, listener: listener, since: time.Now()}
	a.mu.Lock()
	c.peer = a.peer(peerkey.Of(nc.RemoteAddr()), false)
	to := a.scopes(c.peer, listener)
	if a.unproven != nil { // the handshake tells whether it is one of them
		to = slices.Delete(to, 1, 2)
	}
	why, slow := a.refuses(to)
	if why != "" || a.shut {
		a.forget(c.peer, false)
		a.mu.Unlock()
		a.turnAway(nc, why)
		return nil
	}
	a.conns[c] = struct{}{}
	c.peer.handshaking++
	c.move(to)
	if slow != nil { // after c counts: its peer may be the same
		a.remove(slow)
		defer a.turnAway(slow, refusal.Connections)
	}
	a.mu.Unlock()
	return c
}

func (a *Admission) turnAway(c net.Conn, why refusal.Reason) {
	c.Close()
	if why != "" {
		a.refused(c.RemoteAddr(), why)
	}
}

// refuses returns why a new connection is refused, empty if it is not, and which one gives it its place, nil for none.
// The caller holds mu.
func (a *Admission) refuses(to []*scope) (refusal.Reason, *conn) {
	most := a.limits.Load().MaxConnections
	full := over(to, connections, most)
	switch {
	case full == nil:
		return "", nil
	case full == to[0]:
		return refusal.Peer, nil
	case full.conns == full.of(most): // else it was lowered, and one place is not enough
		if slow := a.slowest(full); slow != nil {
			return "", slow
		}
	}
	return refusal.Connections, nil
}

func connections(s *scope) int { return s.conns }

// slowest returns the connection that gives its place in a scope to a new one, which may never prove an identity: an old
// one that has proven none and has no stream. Where clients identify themselves, it is the oldest one in its handshake of
// the address that has most. It looks ten times a second at most while there is none. The caller holds mu.
func (a *Admission) slowest(in *scope) (slow *conn) {
	now, most := time.Now(), 0
	if now.Sub(a.looked) < readInterval && (a.unproven == nil || a.unknown.conns == a.unproven.conns) {
		return nil
	}
	for c := range a.conns {
		of := 0
		if a.unproven != nil && !c.ready {
			of = c.peer.handshaking
		}
		if c.streams.Load() > 0 || c.peer.Proven || of == 0 && now.Sub(c.since) <= slowHandshake || !slices.Contains(c.scopes, in) {
			continue
		}
		if slow == nil || of > most || of == most && c.since.Before(slow.since) {
			slow, most = c, of
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
		c.peer.handshaking--
	}
	c.count()
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

// count has the scopes count what is held now. The caller holds mu.
func (c *conn) count() {
	bytes := max(0, int(c.held.Load())-freeBytes)
	if c.closed || !c.ready { // the handshake has a timeout, and TLS bounds its messages
		bytes = 0
	}
	for _, s := range c.scopes {
		s.bytes += bytes - c.counted
	}
	if bytes < c.counted || c.closed && c.waits {
		close(c.admission.freed)
		c.admission.freed = make(chan struct{})
	}
	if c.counted == 0 {
		c.late = time.Now().Add(requestTime)
	}
	c.counted = bytes
}

func (c *conn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.take(n)
	return n, err
}

func (c *conn) Write(b []byte) (int, error) {
	began := time.Now()
	n, err := c.Conn.Write(b)
	c.admission.wrote(n, time.Since(began))
	c.give((n + perByte - 1) / perByte)
	return n, err
}

// take adds n bytes, and waits until there is room for those above freeBytes, or the connection is closed.
func (c *conn) take(n int) {
	if c.held.Add(int64(n)) <= freeBytes {
		return
	}
	a, end := c.admission, time.Now().Add(bytesWait)
	a.mu.Lock()
	defer a.mu.Unlock()
	for c.ready && !c.closed && c.held.Load() > freeBytes {
		full := over(c.scopes, func(s *scope) int { return s.bytes - c.counted + int(c.held.Load()) - freeBytes - 1 }, a.limits.Load().heldBytes())
		if full == nil {
			break
		}
		late, freed, left := a.latest(full), a.freed, time.Until(end)
		if late == nil && left <= 0 {
			late = c
		}
		if late != nil {
			a.remove(late)
			go a.turnAway(late, refusal.Receiving) // it locks mu
			continue
		}
		c.waits = true
		a.mu.Unlock()
		select {
		case <-freed:
		case <-time.After(min(left, time.Second)):
		}
		a.mu.Lock()
	}
	c.waits = false
	c.count()
}

// latest returns the connection that is closed to make room for bytes in a scope: one whose bytes have counted for
// requestTime, of the peer that has most. It looks ten times a second at most while there is none. The caller holds mu.
func (a *Admission) latest(in *scope) (late *conn) {
	now, most := time.Now(), 0
	if now.Sub(a.lookedLate) < readInterval {
		return nil
	}
	for c := range a.conns {
		if c.counted == 0 || !slices.Contains(c.scopes, in) {
			continue
		}
		most = max(most, c.peer.bytes)
		if now.After(c.late) && (late == nil || c.peer.bytes > late.peer.bytes || c.peer == late.peer && c.counted > late.counted) {
			late = c
		}
	}
	if late == nil || late.peer.bytes < most {
		a.lookedLate = now
		return nil
	}
	return late
}

// give takes bytes off, which gRPC does not hold, or no longer.
func (c *conn) give(bytes int) {
	was := c.held.Load()
	for !c.held.CompareAndSwap(was, max(0, was-int64(bytes))) {
		was = c.held.Load()
	}
	if was > freeBytes {
		c.admission.mu.Lock()
		c.count()
		c.admission.mu.Unlock()
	}
}

// complete notes a request of so many bytes.
func (c *conn) complete(bytes int) {
	if c.streams.Load() == 1 { // what is left is no part of a request, or less than a window
		c.give(math.MaxInt32)
	} else {
		c.give(bytes + bytes/perByte + frameHead + c.beside(0))
	}
}

// beside returns so many bytes and those around a record, if the peer has not had too many forgiven for nothing: what
// streams and requests share a record is not seen.
func (c *conn) beside(bytes int) int {
	if bytes += c.record; !c.peer.beside.AllowN(time.Now(), bytes) {
		return 0
	}
	return bytes
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
	c.ready, c.since = true, time.Now()
	c.peer.handshaking--
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
	open := slices.Collect(maps.Keys(a.conns))
	a.mu.Unlock()
	for _, c := range open {
		if all || c.streams.Load() == 0 {
			c.Close()
		}
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
	if secured != raw {
		c.record = recordAround
	}
	if why := c.prove(p.Identify(info)); why != "" {
		c.admission.turnAway(c, why)
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
	c := info.conn
	switch event := event.(type) {
	case *stats.InHeader:
		c.give(event.WireLength + frameHead + c.beside(0))
	case *stats.Begin:
		c.streams.Add(1)
	case *stats.InPayload:
		c.complete(event.WireLength)
	case *stats.End:
		if c.streams.Add(-1) > 0 {
			c.give(c.beside(reset))
			return
		}
		c.give(math.MaxInt32)
		c.admission.mu.Lock()
		c.since = time.Now()
		c.admission.mu.Unlock()
	}
}

// TagRPC implements stats.Handler.
func (Handler) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

// TagConn implements stats.Handler.
func (Handler) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

// HandleConn implements stats.Handler.
func (Handler) HandleConn(context.Context, stats.ConnStats) {}
