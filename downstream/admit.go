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
)

// serve waits until a stream ends, and returns its status. gRPC cancels the stream's context when it returns.
// That ends the goroutines that receive and send.
func (s *Server) serve(stream grpc.ServerStream, protocol string, l *Listener) error {
	p, ok := peer.FromContext(stream.Context())
	if !ok {
		return status.Error(codes.Internal, "stream has no peer")
	}
	s.metrics.streams.WithLabelValues(protocol).Inc()
	c := newConn(s, stream, protocol, l, p)
	s.streams.Go(c.run)
	return c.wait()
}

// run admits the stream, and handles requests until the stream ends. It has a goroutine of its own, so that
// the stack of gRPC's, which only waits, stays small.
func (c *conn) run() {
	err := c.server.enter(c)
	if err != nil {
		c.end(err)
	} else {
		err = c.server.leave(c, c.receive())
	}
	c.server.account(c, err)
}

// account counts and logs how a stream has ended.
func (s *Server) account(c *conn, err error) {
	if code := status.Code(err); code != codes.OK && code != codes.Canceled && code != codes.Unavailable {
		s.metrics.refused.WithLabelValues(code.String()).Inc()
	}
	var r *refusal.Error
	if errors.As(err, &r) {
		s.refuse(s.log, "client refused", c.peer.Addr, r.Reason, err)
	}
}

// enter takes a stream in, or returns why not. The caller calls leave.
func (s *Server) enter(c *conn) (err error) {
	open := s.open.Add(1)
	overload := s.overloaded()
	use, own, fits := s.peers.enter(c.listener.TLS.peerKey(c.peer), s.limits.Load(), overload != nil)
	c.use = use
	if overload != nil && !fits {
		err = refusal.New(refusal.Overload, codes.ResourceExhausted, "%s", refusal.Bounded(overload.Error()))
	} else {
		err = s.admit(c.ctx, open, use, own)
	}
	if err != nil {
		s.forget(use)
		return err
	}
	s.add(c)
	if err := c.greet(); err != nil {
		s.remove(c)
		s.forget(use)
		return err
	}
	s.metrics.clients.WithLabelValues(c.protocol).Inc()
	return nil
}

// greet begins a stream that is among the connections: from now on it is told what ends it.
func (c *conn) greet() error {
	if err := c.server.trusts(c.listener, c.peer); err != nil {
		return err
	}
	if isClosed(c.server.draining) {
		return errDraining
	}
	return c.stream.SendHeader(c.server.headers())
}

// leave frees what the server keeps of a stream that has ended. It returns why the stream has ended: refused
// if a request was refused, else the cause.
func (s *Server) leave(c *conn, refused error) error {
	c.turn.shut()
	c.reached()
	err := cmp.Or(refused, c.status())
	c.close(err)
	s.metrics.clients.WithLabelValues(c.protocol).Dec()
	s.remove(c)
	s.forget(c.use)
	return err
}

// forget counts a stream of a peer out.
func (s *Server) forget(use *peerUse) {
	s.peers.leave(use, s.overloaded() != nil)
	s.open.Add(-1)
}

// beginnings are the headers that streams begin with, which nobody writes to: streams share them.
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

// headers returns those that a stream begins with.
func (s *Server) headers() metadata.MD {
	if isClosed(s.released) {
		return s.beginnings.serving
	}
	return s.beginnings.holding
}

// admit returns why a new stream is refused. streams and own are how many there are with it, of all
// peers and of its own.
func (s *Server) admit(ctx context.Context, streams int64, use *peerUse, own int) error {
	if isClosed(s.draining) {
		return errDraining
	}
	limits := s.limits.Load()
	if streams > int64(limits.MaxStreams) {
		return refusal.New(refusal.Streams, codes.ResourceExhausted,
			"%d streams are open, no more are served at once (downstream.maxStreams); try again later", limits.MaxStreams)
	}
	if own > limits.MaxStreamsPerPeer {
		return refusal.New(refusal.Peer, codes.ResourceExhausted,
			"%d streams of %s are open, no more of one peer are served at once (downstream.maxStreamsPerPeer); try again later", limits.MaxStreamsPerPeer, use.key)
	}
	if size := headerBytes(ctx); size > s.cfg.MaxHeaderBytes {
		return refusal.New(refusal.Headers, codes.ResourceExhausted,
			"the headers have %d bytes, more than %d (downstream.maxHeaderBytes)", size, s.cfg.MaxHeaderBytes)
	}
	until := time.Now().Add(time.Second)
	// First its own share, so that others need not wait behind it.
	if share := mostOf(limits.NewStreamsPerSecond); share < limits.NewStreamsPerSecond {
		if err := admitted(ctx, use.limiter, until); err != nil {
			return refusal.New(refusal.Rate, codes.ResourceExhausted,
				"more than %d new streams a second of %s (three quarters of downstream.newStreamsPerSecond); try again later", share, use.key)
		}
	}
	if err := admitted(ctx, s.limiter, until); err != nil {
		return refusal.New(refusal.Rate, codes.ResourceExhausted,
			"more than %d new streams a second (downstream.newStreamsPerSecond); try again later", limits.NewStreamsPerSecond)
	}
	return nil
}

// admitted waits until the limiter lets one more through.
func admitted(ctx context.Context, limiter *rate.Limiter, until time.Time) error {
	if limiter.Allow() {
		return nil
	}
	return limiter.Wait(deadline{ctx, until})
}

// deadline is a context with an earlier deadline than its own, for those who look at it before they wait.
// One that ends by itself would be kept by the stream's for as long as that lives.
type deadline struct {
	context.Context
	at time.Time
}

func (d deadline) Deadline() (at time.Time, ok bool) { return d.at, true }

// headerBytes returns the size of a stream's headers, reckoned as HTTP/2 does.
func headerBytes(ctx context.Context) (n int) {
	md, _ := metadata.FromIncomingContext(ctx)
	for name, values := range md {
		for _, v := range values {
			n += len(name) + len(v) + 32
		}
	}
	return n
}

// connectionRefused counts a connection that is not let in, or closed, for a limit.
func (s *Server) connectionRefused(from net.Addr, why refusal.Reason) {
	limits := s.limits.Load()
	s.refuse(s.log, "connection closed: over a limit", from, why, nil,
		"maxConnections", limits.MaxConnections, "maxConnectionsPerPeer", limits.MaxConnectionsPerPeer)
}

// refuse counts and logs a client that is refused. err tells more of why, and may be nil.
func (s *Server) refuse(log *slog.Logger, msg string, from net.Addr, why refusal.Reason, err error, attrs ...any) {
	s.metrics.refusals.WithLabelValues(string(why)).Inc()
	attrs, reason := append([]any{"address", from.String(), "reason", why}, attrs...), string(why)
	if err != nil {
		detail := refusal.Bounded(err.Error())
		attrs, reason = append(attrs, "err", detail), reason+": "+detail
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
