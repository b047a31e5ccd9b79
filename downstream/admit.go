package downstream

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"meshrelay/downstream/admit"
	"meshrelay/downstream/refusal"
	"meshrelay/events"
	"meshrelay/internal/identity"
	"meshrelay/internal/peerkey"
	"meshrelay/mirror"
)

// serve waits until a stream ends, and returns its status. When serve returns, gRPC cancels the stream's
// context. That ends the goroutines that receive and send.
func (s *Server) serve(stream grpc.ServerStream, protocol string, l *Listener) error {
	p, ok := peer.FromContext(stream.Context())
	if !ok {
		return status.Error(codes.Internal, "stream has no peer")
	}
	c := newConn(s, stream, protocol, l, p)
	s.streams.Go(c.run)
	return c.wait()
}

// run admits the stream, and handles requests until the stream ends. It has its own goroutine, so that the
// stack of gRPC's goroutine stays small.
func (c *conn) run() {
	err := c.server.enter(c)
	if err != nil {
		c.end(err)
	} else {
		err = c.server.leave(c, c.receive())
	}
	c.server.account(c, err)
}

// account counts and logs the end of a stream.
func (s *Server) account(c *conn, err error) {
	if code := status.Code(err); code != codes.OK && code != codes.Canceled && code != codes.Unavailable {
		s.metrics.refused.WithLabelValues(code.String()).Inc()
	}
	if r, is := errors.AsType[*refusal.Error](err); is {
		s.refuse(s.log.With("listener", c.listener.Address), "client refused", c.who, c.peer.Addr, r.Reason, err)
	}
}

// enter admits a stream and sends its headers, or returns why the stream is refused. After a success, the
// caller calls leave.
func (s *Server) enter(c *conn) (err error) {
	if mirror.IsClosed(s.draining) {
		return errDraining
	}
	proven := !c.who.IsZero() // by now
	if c.use, err = s.admission.Open(c.ctx, peerKey(c.who, c.peer.Addr), proven, c.listener.number, s.overloaded(proven)); err != nil {
		return err
	}
	if err := c.guard(func() error { return s.authenticate(c) }); err != nil { // it looks at what strangers send
		s.forget(c)
		return err
	}
	s.add(c)
	if err := c.greet(); err != nil {
		s.remove(c)
		s.forget(c)
		return err
	}
	s.metrics.clients.WithLabelValues(c.protocol).Inc()
	return nil
}

// peerKey returns the name of a stream's peer in the counts: its identity or its address.
func peerKey(who identity.Identity, from net.Addr) string {
	if !who.IsZero() {
		return refusal.Bounded(who.Names[0])
	}
	return peerkey.Of(from)
}

// Shed ends streams of the peer that has most: of peers without an identity first, and at most a quarter of its
// streams, the newest.
func (s *Server) Shed() {
	byPeer := map[*admit.Peer][]*conn{}
	var most *admit.Peer
	for _, c := range s.connections() {
		p := c.use.Peer
		byPeer[p] = append(byPeer[p], c)
		if most == nil || most.Proven && !p.Proven || most.Proven == p.Proven && len(byPeer[p]) > len(byPeer[most]) {
			most = p
		}
	}
	ending := byPeer[most]
	slices.SortFunc(ending, func(a, b *conn) int { return b.opened.Compare(a.opened) })
	for _, c := range ending[:(len(ending)+3)/4] {
		c.end(errShed)
	}
}

var errShed = refusal.New(refusal.Overload, codes.ResourceExhausted, "the relay has no memory left; try again later")

// greet sends the headers of a stream. The stream is in Server.conns already, so that a change of what is trusted
// or a shutdown from now on ends it.
func (c *conn) greet() error {
	if err := c.server.judge(c); err != nil {
		return err
	}
	if mirror.IsClosed(c.server.draining) {
		return errDraining
	}
	return c.stream.SendHeader(c.server.headers())
}

// leave frees the resources of a stream that has ended. It returns refused, or else the status of the stream.
func (s *Server) leave(c *conn, refused error) error {
	c.turn.shut()
	c.reached()
	err := cmp.Or(refused, c.status())
	c.close(err)
	s.metrics.clients.WithLabelValues(c.protocol).Dec()
	s.remove(c)
	s.forget(c)
	return err
}

// forget removes a stream from the counts, with its place to come back to if it was shed. It stops the timer of its
// expiry.
func (s *Server) forget(c *conn) {
	if c.expiry != nil {
		c.expiry.Stop()
	}
	c.use.Close(s.overloaded(c.use.Proven) != nil && !errors.Is(context.Cause(c.ctx), errShed))
}

// beginnings are the response headers of streams. All streams share them, and nobody changes them.
type beginnings struct{ serving, holding metadata.MD }

func newBeginnings(relayName string) beginnings {
	b := beginnings{serving: metadata.Pairs(ProtocolHeader, protocolDelta)}
	if relayName != "" {
		b.serving.Set(NameHeader, relayName)
	}
	b.holding = b.serving.Copy()
	b.holding.Set(HoldsHeader, "true")
	return b
}

// headers returns the response headers of a new stream.
func (s *Server) headers() metadata.MD {
	if mirror.IsClosed(s.released) {
		return s.beginnings.serving
	}
	return s.beginnings.holding
}

// connectionRefused counts and logs a connection that the relay closes because of a limit.
func (s *Server) connectionRefused(from net.Addr, why refusal.Reason) {
	s.refuse(s.log, "connection closed: over a limit", identity.Identity{}, from, why, nil, "most", s.limits.Load().MaxConnections)
}

// refuse counts a refused client, and tells of it in the log and the journal, in part if its peer is refused often. err
// has the details, and may be nil.
func (s *Server) refuse(log *slog.Logger, msg string, who identity.Identity, from net.Addr, why refusal.Reason, err error, attrs ...any) {
	s.metrics.refusals.WithLabelValues(string(why)).Inc()
	unlogged, ok := s.refused.Allow(peerKey(who, from))
	if !ok {
		return
	}
	attrs, reason := append([]any{"address", from.String(), "reason", why}, attrs...), string(why)
	if !who.IsZero() {
		attrs = append(attrs, "identity", who.Names[0])
	}
	if err != nil {
		detail := refusal.Bounded(err.Error())
		attrs, reason = append(attrs, "err", detail), reason+": "+detail
	}
	if unlogged > 0 {
		attrs = append(attrs, "unloggedOfPeers", unlogged)
	}
	s.events.Record(events.Event{Type: events.TurnedAway, By: events.ByRelay, Client: from.String(), Text: msg, Reason: reason})
	s.refusals.Warn(log, msg, attrs...)
}

var errDraining = status.Error(codes.Unavailable, "relay is shutting down; reconnect")
