package downstream

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"meshrelay/downstream/admit"
	"meshrelay/downstream/refusal"
	"meshrelay/downstream/snapshot"
	"meshrelay/downstream/subscription"
	"meshrelay/downstream/views"
	"meshrelay/events"
	"meshrelay/internal/identity"
	"meshrelay/internal/panics"
)

const (
	protocolSotW  = "sotw"
	protocolDelta = "delta"

	// healthType is a type that Istio's agent may request before its first xDS request (PROTOCOL S1).
	healthType = "type.googleapis.com/istio.v1.HealthInformation"
	// defaultReceiveLimit is the default limit of gRPC clients for the size of a response.
	defaultReceiveLimit = 4 << 20
)

// conn is one stream of one client. It has up to three goroutines: gRPC's waits for the end (wait), run
// handles requests, and send runs while there is something to send (turn). They share the subscriptions,
// which mu guards.
type conn struct {
	server   *Server
	stream   grpc.ServerStream
	ctx      context.Context         // derived from the context of the stream
	cancel   context.CancelCauseFunc // see end
	protocol string
	listener *Listener
	peer     *peer.Peer
	who      identity.Identity // until Server.authenticate: as the certificate tells
	judged   atomic.Uint64     // authenticator.changes when who was proven
	expiry   *time.Timer       // ends the stream; nil: never
	use      *admit.Stream     // set by Server.enter
	opened   time.Time
	place    int // index in Server.conns, guarded by Server.mu
	turn     turn
	sending  atomic.Bool // gRPC is sending a response

	// answerable counts the sent responses that the client has not answered.
	answerable atomic.Int64

	told  atomic.Bool // a push woke the stream, which has not planned a round since
	heard atomic.Bool // the first request has come
	hears atomic.Bool // the client has asked for trouble.TypeURL

	// Only the receiving goroutine uses these.
	incoming incoming

	// Both are set before the client gets a view.
	form  snapshot.Form
	claim views.Origin // its cluster and revision

	// mu guards all below.
	mu     sync.Mutex
	closed bool
	number uint64       // of the client, from Server.lastID; 0 before the first request
	client views.Client // set together with number
	view   *view        // nil until the first request
	rule   *views.Rule  // by which it has the view
	subs   *subscription.Set
	kept   subscription.Usage // as it is counted in peers
	// asksStatus is set while a request for statusType waits for its answer. statusEnd ends the stream some time
	// after the first one.
	asksStatus bool
	statusEnd  *time.Timer
	hearing    hearing
	// asked is set when a request came after the last round. planned is view.changes at the last round.
	asked   bool
	planned uint64
	// has is the newest push whose changes the client has acknowledged. plannedRound is the newest push at
	// the time of the last round. sends is set while the responses of a round are being sent.
	has, plannedRound uint64
	sends             bool
	outdated          bool // the round was planned by a rule that showed something else
}

func newConn(s *Server, stream grpc.ServerStream, protocol string, l *Listener, p *peer.Peer) *conn {
	c := &conn{
		server: s, stream: stream, protocol: protocol, listener: l, peer: p, who: l.TLS.identify(p), opened: time.Now(),
		subs: subscription.New(protocol == protocolDelta, s.controlPlane, lookup),
	}
	c.ctx, c.cancel = context.WithCancelCause(stream.Context())
	c.incoming = incoming{ctx: c.ctx, decoding: s.decoding, limits: &s.limits, fields: fieldsOf[protocol]}
	return c
}

// wait waits for the end of the stream, and returns its status. It ends the stream if the first request does
// not come in time.
func (c *conn) wait() error {
	timeout := c.server.cfg.timeouts.first
	silent := time.AfterFunc(timeout, func() {
		if !c.heard.Load() {
			c.end(refusal.New(refusal.Silent, codes.DeadlineExceeded, "no request came within %v", timeout))
		}
	})
	defer silent.Stop()
	<-c.ctx.Done()
	return c.status()
}

// errEnded is the cause of the end of a stream that the client has ended.
var errEnded = errors.New("the client has ended the stream")

// end ends the stream with the status of err; nil means OK. Only the first call has an effect.
func (c *conn) end(err error) {
	if err == nil {
		err = errEnded
	}
	c.cancel(err)
}

// status returns the status of a stream that has ended, nil for OK.
func (c *conn) status() error {
	err := context.Cause(c.ctx)
	if errors.Is(err, errEnded) {
		return nil
	}
	if _, ok := status.FromError(err); ok {
		return err
	}
	return status.FromContextError(err).Err()
}

// guard runs f, and returns a panic of f as an error, so that the panic ends only this stream.
func (c *conn) guard(f func() error) error {
	err := panics.Contain(f)
	if p := (*panics.Panic)(nil); errors.As(err, &p) {
		c.server.metrics.panics.Inc()
		c.server.panicLog.Log(c.server.log, slog.LevelError, "panic while serving a stream", "client", c.name(), "panic", p.Value, "stack", p.Stack)
		return status.Error(codes.Internal, "internal error; see the relay's log")
	}
	return err
}

func (c *conn) close(err error) {
	c.mu.Lock()
	v := c.view
	c.view, c.closed = nil, true
	known := c.number != 0
	kept := c.kept
	c.kept, c.subs = subscription.Usage{}, &subscription.Set{} // gRPC may refer to the stream until its connection closes
	has := c.has
	c.leaveStatus()
	c.mu.Unlock()
	_ = c.server.usage.keep(c.use.Peer, kept, subscription.Usage{}, c.server.limits.Load()) // less is never refused
	if v != nil {
		c.server.views.release(v, c.viewer())
	}
	if !known {
		return
	}
	c.server.rounds.leave(has, time.Now())
	attrs, reason := []any{"after", time.Since(c.opened).Round(time.Millisecond)}, ""
	if err != nil && status.Code(err) != codes.Canceled { // else the client has ended the stream
		attrs, reason = append(attrs, "err", err), refusal.Bounded(err.Error())
	}
	c.server.events.Record(events.Event{Type: events.Gone, By: events.ByClient, Client: c.id(), Tool: isTool(c.client.NodeID), Reason: reason})
	c.server.comings.Log(c.log(), slog.LevelInfo, "client disconnected", attrs...)
}

// tell wakes the stream after a push.
func (c *conn) tell() {
	if !c.sending.Load() && !c.told.Swap(true) {
		c.server.work.Told()
	}
	c.signal()
}

// reached notes that the stream has planned a round after the push that woke it.
func (c *conn) reached() {
	if c.told.Load() && c.told.Swap(false) {
		c.server.work.Reached()
	}
}

func (c *conn) name() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.id()
}

// id returns the name of the client, empty before the first request. After that, the name does not change;
// before, the caller holds mu.
func (c *conn) id() string {
	if c.number == 0 {
		return ""
	}
	return fmt.Sprintf("%s-%d", c.client.NodeID, c.number)
}

// ToolName is the name in the node ID of the relay's own commands, such as "relay get".
const ToolName = "relay-get"

// isTool reports whether a node ID is one of the relay's own commands.
func isTool(nodeID string) bool {
	parts := strings.Split(nodeID, "~")
	return len(parts) == 4 && strings.HasPrefix(parts[2], ToolName+".")
}

// log returns a logger with the name of the client.
func (c *conn) log() *slog.Logger { return c.server.log.With("client", c.id()) }

// debugs reports whether the log has level debug.
func (c *conn) debugs() bool { return c.server.log.Enabled(c.ctx, slog.LevelDebug) }

// clientStatus returns the client's status; ok is false before its first request.
func (c *conn) clientStatus() (st ClientStatus, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.view == nil {
		return ClientStatus{}, false
	}
	st = ClientStatus{
		Connection: c.id(), NodeID: c.client.NodeID, ClusterID: c.client.ClusterID, Namespace: c.client.Namespace,
		IstioVersion: c.client.IstioVersion, Revision: c.client.Revision, View: c.rule.Name,
		Address: c.peer.Addr.String(), Protocol: c.protocol, Connected: c.opened,
		Types: make([]TypeStatus, 0, len(c.subs.Watches())),
	}
	if c.peer.LocalAddr != nil {
		st.Listener = c.peer.LocalAddr.String()
	}
	if !c.who.IsZero() {
		st.Identity = refusal.Bounded(c.who.Names[0])
	}
	for _, w := range c.subs.Watches() {
		st.Types = append(st.Types, w.Status())
	}
	return st, true
}
