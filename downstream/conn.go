package downstream

import (
	"context"
	"log/slog"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"meshrelay/downstream/refusal"
	"meshrelay/downstream/subscription"
)

const (
	protocolSotW  = "sotw"
	protocolDelta = "delta"

	// healthType is what an agent may send before its first xDS request (PROTOCOL S1).
	healthType = "type.googleapis.com/istio.v1.HealthInformation"
	// defaultReceiveLimit is gRPC's; clients that kept it can not take more.
	defaultReceiveLimit = 4 << 20
)

// conn is one stream of one client. One goroutine receives requests, another sends what the client
// lacks. They share the subscriptions, under mu.
type conn struct {
	server   *Server
	stream   grpc.ServerStream
	protocol string
	listener *Listener
	peer     *peer.Peer
	use      *peerUse
	opened   time.Time
	wake     chan struct{} // one slot: there may be something to send
	ended    chan error    // why it ends: of receive, of send, and of evict
	// distrusted has one slot: why the client's certificate is not good any more.
	distrusted chan error
	// sendingSince is when the send under way began, in Unix nanoseconds; zero when none is.
	sendingSince atomic.Int64

	// answerable counts the responses that may still be acknowledged.
	answerable atomic.Int64

	told  atomic.Bool // of a push, and has not got to it
	heard atomic.Bool // the first request has come
	pace  pace        // of the receiving goroutine

	// mu guards all below.
	mu     sync.Mutex
	closed bool
	id     string
	client client
	log    *slog.Logger
	view   *view // nil until the first request
	rule   *rule // by which it has the view
	subs   *subscription.Set
	slot   slot
	kept   subscription.Usage // as it is counted in peers
	// asked: a request came since the last round. planned is the view's count of changes then.
	asked   bool
	planned uint64
}

func newConn(s *Server, stream grpc.ServerStream, protocol string, l *Listener, p *peer.Peer, use *peerUse) *conn {
	return &conn{
		server: s, stream: stream, protocol: protocol, listener: l, peer: p, use: use, opened: time.Now(),
		wake: make(chan struct{}, 1), ended: make(chan error, 3), distrusted: make(chan error, 1), log: s.log,
		subs: subscription.New(protocol == protocolDelta, s.controlPlane, s.views.generators.lookup),
	}
}

// guard runs f and reports its end. A panic ends this stream only.
func (c *conn) guard(f func() error) {
	defer c.server.streams.Done()
	defer func() {
		if r := recover(); r != nil {
			c.server.metrics.panics.Inc()
			c.server.panicLog.Log(c.server.log, slog.LevelError, "panic while serving a stream", "client", c.name(), "panic", r, "stack", string(debug.Stack()))
			c.ended <- status.Error(codes.Internal, "internal error; see the relay's log")
		}
	}()
	c.ended <- f()
}

// supervise waits for the end of the stream. The context of the stream ends what still runs.
func (c *conn) supervise(ctx context.Context) error {
	timeout := c.server.cfg.SendTimeout
	tick := time.NewTicker(max(timeout/8, time.Millisecond))
	defer tick.Stop()
	silent := time.NewTimer(c.server.cfg.FirstRequestTimeout)
	defer silent.Stop()
	_, certificate := verified(c.peer)
	var expired <-chan time.Time
	if certificate != nil {
		expired = time.After(time.Until(certificate.NotAfter))
	}
	for {
		select {
		case err := <-c.ended:
			if ctx.Err() != nil {
				return c.cause(err, 1)
			}
			return err
		case <-ctx.Done():
			return c.cause(status.FromContextError(ctx.Err()).Err(), 2)
		case <-c.server.draining:
			return errDraining
		case err := <-c.distrusted:
			return err
		case <-expired:
			return errExpired(certificate.NotAfter)
		case <-silent.C:
			if !c.heard.Load() {
				return refusal.New(refusal.Silent, codes.DeadlineExceeded, "no request came within %v", c.server.cfg.FirstRequestTimeout)
			}
		case now := <-tick.C:
			if c.unread(now) {
				return refusal.New(refusal.Unread, codes.DeadlineExceeded, "client has left a debug answer unread for %v", replyTimeout)
			}
			since := c.sendingSince.Load()
			if since != 0 && now.Sub(time.Unix(0, since)) > timeout {
				return refusal.New(refusal.Unread, codes.DeadlineExceeded, "client has left a response unread for %v", timeout)
			}
		}
	}
}

// cause returns why a stream ended whose context is over, while n goroutines have not reported: gRPC
// itself ends a stream with a request that is too large.
func (c *conn) cause(err error, n int) error {
	for i := 0; i < n && !refusal.Is(err); i++ {
		if next := <-c.ended; refusal.Is(next) {
			err = next
		}
	}
	return err
}

func (c *conn) close(err error) {
	c.mu.Lock()
	v := c.view
	c.view, c.closed = nil, true
	known, log := c.id != "", c.log
	kept := c.kept
	c.kept = subscription.Usage{}
	c.slot.free()
	c.mu.Unlock()
	_ = c.server.peers.keep(c.use, kept, subscription.Usage{}, c.server.limits.Load()) // less is never refused
	if v != nil {
		c.server.views.release(v, c.viewer())
	}
	if !known {
		return
	}
	attrs := []any{"after", time.Since(c.opened).Round(time.Millisecond)}
	if err != nil && status.Code(err) != codes.Canceled {
		attrs = append(attrs, "err", err)
	}
	c.server.comings.Log(log, slog.LevelInfo, "client disconnected", attrs...)
}

// tell tells the client of a push.
func (c *conn) tell() {
	if c.sendingSince.Load() == 0 && !c.told.Swap(true) {
		c.server.work.Told()
	}
	c.signal()
}

// reached notes that the client has got to what it was told of.
func (c *conn) reached() {
	if c.told.Load() && c.told.Swap(false) {
		c.server.work.Reached()
	}
}

func (c *conn) signal() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

func (c *conn) name() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.id
}

// clientStatus returns the client's status; ok is false before its first request.
func (c *conn) clientStatus() (st ClientStatus, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.view == nil {
		return ClientStatus{}, false
	}
	st = ClientStatus{
		Connection: c.id, NodeID: c.client.nodeID, ClusterID: c.client.clusterID, Namespace: c.client.namespace,
		IstioVersion: c.client.istioVersion, Revision: c.client.revision, View: c.rule.Name,
		Address: c.peer.Addr.String(), Protocol: c.protocol, Connected: c.opened,
		Types: make([]TypeStatus, 0, len(c.subs.Watches())),
	}
	if c.peer.LocalAddr != nil {
		st.Listener = c.peer.LocalAddr.String()
	}
	for _, w := range c.subs.Watches() {
		st.Types = append(st.Types, w.Status())
	}
	return st, true
}
