package downstream

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"meshrelay/downstream/refusal"
	"meshrelay/events"
	"meshrelay/internal/identity"
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
	var r *refusal.Error
	if errors.As(err, &r) {
		s.refuse(s.log.With("listener", c.listener.Address), "client refused", c.who, c.peer.Addr, r.Reason, err)
	}
}

// enter admits a stream and sends its headers, or returns why the stream is refused. After a success, the
// caller calls leave.
func (s *Server) enter(c *conn) (err error) {
	open := s.open.Add(1)
	limits, overload := s.limitsOf(c), s.overload(c)
	use, own, fits := s.peers.enter(peerKey(c.who, c.peer.Addr), limits, overload != nil)
	c.use = use
	if overload != nil && !fits {
		err = errOverload(overload)
	} else {
		err = s.admit(c, limits, open, own)
	}
	if err == nil {
		err = c.guard(func() error { return s.authenticate(c) }) // it parses what strangers send
	}
	if err == nil {
		err = s.shares.enter(c, limits.MaxStreams)
	}
	if err != nil {
		s.forget(c)
		return err
	}
	c.use.known.Store(!c.who.IsZero())
	s.add(c)
	if err := c.greet(); err != nil {
		s.remove(c)
		s.shares.leave(c)
		s.forget(c)
		return err
	}
	s.metrics.clients.WithLabelValues(c.protocol).Inc()
	return nil
}

// overload returns why a new stream is refused for lack of memory, or nil. Clients with an identity are refused last.
func (s *Server) overload(c *conn) error {
	if c.who.IsZero() {
		return s.overloaded()
	}
	return s.full()
}

func errOverload(overload error) error {
	return refusal.New(refusal.Overload, codes.ResourceExhausted, "%s", refusal.Bounded(overload.Error()))
}

// greet sends the headers of a stream. The stream is in Server.conns already, so that a change of what is trusted
// or a shutdown from now on ends it.
func (c *conn) greet() error {
	if err := c.server.judge(c); err != nil {
		return err
	}
	if isClosed(c.server.draining) {
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
	s.shares.leave(c)
	s.forget(c)
	return err
}

// forget removes a stream from the counts of its peer and of the server. It stops the timer of its expiry.
func (s *Server) forget(c *conn) {
	if c.expiry != nil {
		c.expiry.Stop()
	}
	s.peers.leave(c.use, s.overloaded() != nil)
	s.open.Add(-1)
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
	if isClosed(s.released) {
		return s.beginnings.serving
	}
	return s.beginnings.holding
}

// admit returns why a new stream is refused, nil if it is admitted. limits are those of limitsOf. streams counts the
// streams of all peers, and own those of its peer; both include the new one.
func (s *Server) admit(c *conn, limits *Limits, streams int64, own int) error {
	if isClosed(s.draining) {
		return errDraining
	}
	ctx, use := c.ctx, c.use
	if streams > int64(limits.MaxStreams) {
		return refusal.New(refusal.Streams, codes.ResourceExhausted,
			"%d streams are open, no more are served at once (downstream.maxStreams); try again later", limits.MaxStreams)
	}
	if size := headerBytes(ctx); size > s.cfg.MaxHeaderBytes {
		return refusal.New(refusal.Headers, codes.ResourceExhausted,
			"the headers have %d bytes, more than %d (downstream.maxHeaderBytes)", size, s.cfg.MaxHeaderBytes)
	}
	until := time.Now().Add(time.Second)
	// Check the limit of the peer first: its streams must not delay those of other peers.
	if err := admitPeer(ctx, limits, use, own, until); err != nil {
		return err
	}
	all := s.limits.Load().NewStreamsPerSecond
	if err := s.shares.pace(ctx, c, all, until); err != nil {
		return err
	}
	if err := admitted(ctx, s.limiter, until); err != nil {
		return refusal.New(refusal.Rate, codes.ResourceExhausted,
			"more than %d new streams a second (downstream.newStreamsPerSecond); try again later", all)
	}
	return nil
}

// admitPeer waits until a peer may open one more stream. own are its streams. It returns an error if they are too many,
// and after until.
func admitPeer(ctx context.Context, limits *Limits, use *peerUse, own int, until time.Time) error {
	if own > limits.MaxStreamsPerPeer {
		return refusal.New(refusal.Peer, codes.ResourceExhausted,
			"%d streams of %s are open, no more of one peer are served at once (downstream.maxStreamsPerPeer); try again later", limits.MaxStreamsPerPeer, use.key)
	}
	share := mostOf(limits.NewStreamsPerSecond)
	if share < limits.NewStreamsPerSecond && admitted(ctx, use.limiter, until) != nil {
		return refusal.New(refusal.Rate, codes.ResourceExhausted,
			"more than %d new streams a second of %s (three quarters of downstream.newStreamsPerSecond); try again later", share, use.key)
	}
	return nil
}

// admitted waits until the limiter allows one more stream.
func admitted(ctx context.Context, limiter *rate.Limiter, until time.Time) error {
	if limiter.Allow() {
		return nil
	}
	return limiter.Wait(deadline{ctx, until})
}

// deadline is a context with an earlier deadline, which the limiter compares with its wait. The context does
// not end at that deadline: a context.WithDeadline would stay in memory as long as the stream.
type deadline struct {
	context.Context
	at time.Time
}

func (d deadline) Deadline() (at time.Time, ok bool) { return d.at, true }

// headerBytes returns the size of a stream's headers, as HTTP/2 defines it.
func headerBytes(ctx context.Context) (n int) {
	md, _ := metadata.FromIncomingContext(ctx)
	for name, values := range md {
		for _, v := range values {
			n += len(name) + len(v) + 32
		}
	}
	return n
}

// connectionRefused counts and logs a connection that the relay closes because of a limit.
func (s *Server) connectionRefused(from net.Addr, why refusal.Reason) {
	limits := s.limits.Load()
	s.refuse(s.log, "connection closed: over a limit", identity.Identity{}, from, why, nil,
		"maxConnections", limits.MaxConnections, "maxConnectionsPerPeer", limits.MaxConnectionsPerPeer)
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

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
