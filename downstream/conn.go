package downstream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"meshrelay/internal/breakage"
)

const (
	protocolSotW  = "sotw"
	protocolDelta = "delta"

	// healthType is what an agent may send ahead of its first xDS request (PROTOCOL
	// S1).
	healthType = "type.googleapis.com/istio.v1.HealthInformation"
	// defaultReceiveLimit is gRPC's; clients that kept it can not take more.
	defaultReceiveLimit = 4 << 20
)

// conn is one stream of one client. One goroutine receives requests and never waits
// for anything but them; another sends what the client lacks, one round after the
// other. They share the watches, under mu.
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
	// sendingSince is when the send under way began, in nanoseconds since the epoch;
	// zero when none is.
	sendingSince atomic.Int64

	// answerable counts the responses that may still be acknowledged.
	answerable atomic.Int64

	heard atomic.Bool // the first request has come
	begun bool        // the client has a view; of the receiving goroutine
	pace  pace        // likewise

	// mu guards all below.
	mu      sync.Mutex
	closed  bool
	id      string
	client  client
	log     *slog.Logger
	view    *view  // nil until the first request
	rule    *rule  // by which it has the view
	seesAs  string // the name of the View
	limited bool   // by its View, which hides something
	watches *watches
	slot    slot
	nonce   uint64
	kept    usage // as it is counted in peers
	// asked says that a request came since the watches were last planned for, planned what
	// the view's count of changes was then.
	asked   bool
	planned uint64

	steps []step // of the sending goroutine: the round under way
}

func newConn(s *Server, stream grpc.ServerStream, protocol string, l *Listener, p *peer.Peer, use *peerUse) *conn {
	return &conn{
		server: s, stream: stream, protocol: protocol, listener: l, peer: p, use: use, opened: time.Now(),
		wake: make(chan struct{}, 1), ended: make(chan error, 3), distrusted: make(chan error, 1), log: s.log, watches: newWatches(),
	}
}

// guard runs f and reports its end. A panic ends this stream only: in a goroutine of
// its own it would otherwise end the process.
func (c *conn) guard(f func() error) {
	defer c.server.streams.Done()
	defer func() {
		if r := recover(); r != nil {
			c.server.metrics.panics.Inc()
			c.server.log.Error("panic while serving a stream", "client", c.name(), "panic", r, "stack", string(debug.Stack()))
			c.ended <- status.Error(codes.Internal, "internal error; see the relay's log")
		}
	}()
	c.ended <- f()
}

// supervise waits for the end of the stream. What still runs when it returns ends
// with the stream's context.
func (c *conn) supervise(ctx context.Context) error {
	timeout := c.server.cfg.SendTimeout
	tick := time.NewTicker(max(timeout/8, time.Millisecond))
	defer tick.Stop()
	silent := time.NewTimer(c.server.cfg.FirstRequestTimeout)
	defer silent.Stop()
	expiry, expires := expiryOf(c.peer)
	var expired <-chan time.Time
	if expires {
		timer := time.NewTimer(time.Until(expiry))
		defer timer.Stop()
		expired = timer.C
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
			return errExpired(expiry)
		case <-silent.C:
			if !c.heard.Load() {
				return refuse(reasonSilent, codes.DeadlineExceeded, "no request came within %v", c.server.cfg.FirstRequestTimeout)
			}
		case now := <-tick.C:
			if c.unread(now) {
				return refuse(reasonUnread, codes.DeadlineExceeded, "client has left a debug answer unread for %v", replyTimeout)
			}
			since := c.sendingSince.Load()
			if since != 0 && now.Sub(time.Unix(0, since)) > timeout {
				return refuse(reasonUnread, codes.DeadlineExceeded, "client has left a response unread for %v", timeout)
			}
		}
	}
}

// cause returns why a stream has ended whose context is over, of which n goroutines have not
// reported: gRPC ends a stream by itself when a request is too large.
func (c *conn) cause(err error, n int) error {
	for i := 0; i < n && !isRefused(err); i++ {
		if next := <-c.ended; isRefused(next) {
			err = next
		}
	}
	return err
}

func (c *conn) close(err error) {
	if breakage.I4 {
		go func() { <-make(chan struct{}); c.signal() }() // not in a normal build
	}
	c.mu.Lock()
	v := c.view
	c.view, c.closed = nil, true
	known, log := c.id != "", c.log
	kept := c.kept
	c.kept = usage{}
	c.slot.free()
	c.mu.Unlock()
	c.server.peers.free(c.use, kept)
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
	log.Info("client disconnected", attrs...)
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

// receive handles requests until the client ends the stream.
func (c *conn) receive() error {
	in := &incoming{ctx: c.stream.Context(), decoding: c.server.decoding, limits: &c.server.limits, meter: c.server.receiving.meterOf(c.peer.Addr)}
	for {
		in.first = !c.begun
		err := c.next(in)
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case !isRefused(err) && status.Code(err) == codes.ResourceExhausted: // gRPC's, of the size
			return refuse(reasonBytes, codes.ResourceExhausted,
				"request of more than %d bytes (downstream.maxRequestBytes): %s", c.server.cfg.MaxRequestBytes, status.Convert(err).Message())
		case err != nil:
			return err
		}
		c.signal()
	}
}

// next waits for a request and handles it.
func (c *conn) next(in *incoming) error {
	if c.protocol == protocolSotW {
		req := &discoveryv3.DiscoveryRequest{}
		in.sotw = req
		if err := c.take(in); err != nil {
			return err
		}
		if err := c.await(req.GetResponseNonce()); err != nil {
			return err
		}
		return c.handleSotW(req)
	}
	req := &discoveryv3.DeltaDiscoveryRequest{}
	in.delta = req
	if err := c.take(in); err != nil {
		return err
	}
	if err := c.await(req.GetResponseNonce()); err != nil {
		return err
	}
	return c.handleDelta(req)
}

// take waits for a request, and returns why it is refused if it is.
func (c *conn) take(in *incoming) error {
	if err := c.stream.RecvMsg(in); err != nil {
		return err
	}
	in.sotw, in.delta = nil, nil // it may be large, and the next one may be long in coming
	return in.err
}

func (c *conn) handleSotW(req *discoveryv3.DiscoveryRequest) error {
	if known, err := c.know(req.GetTypeUrl(), req.GetNode()); !known || err != nil {
		return err
	}
	if isDebugType(req.GetTypeUrl()) {
		return c.reply(req.GetTypeUrl(), req.GetResourceNames(), c.debugSotW)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked, c.watches.limits = true, c.server.limits.Load()
	result, err := c.watches.requestSotW(req, time.Now())
	if err == nil {
		err = c.account()
	}
	c.record(result, err, req.GetTypeUrl(), req.GetErrorDetail().GetMessage())
	return err
}

func (c *conn) handleDelta(req *discoveryv3.DeltaDiscoveryRequest) error {
	if known, err := c.know(req.GetTypeUrl(), req.GetNode()); !known || err != nil {
		return err
	}
	if isDebugType(req.GetTypeUrl()) {
		return c.reply(req.GetTypeUrl(), req.GetResourceNamesSubscribe(), c.debugDelta)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked, c.watches.limits = true, c.server.limits.Load()
	result, err := c.watches.requestDelta(req, time.Now())
	if err == nil {
		err = c.account()
	}
	c.record(result, err, req.GetTypeUrl(), req.GetErrorDetail().GetMessage())
	return err
}

// know makes sure that the client is known: by its first request, but for those that an
// agent sends ahead of it. It is false for these.
func (c *conn) know(typeURL string, node *corev3.Node) (bool, error) {
	if c.begun {
		return true, nil
	}
	if typeURL == healthType {
		return false, nil
	}
	client, err := parseNode(node)
	if err != nil {
		return false, err
	}
	return true, c.begin(client)
}

// viewer returns the client as its view counts it.
func (c *conn) viewer() viewer {
	return viewer{c.protocol, c.use, c.server.limits.Load().MaxViewsPerPeer}
}

// begin takes over what the client's first request tells of it, and gives it a view. If the
// rules change while the view is filled, it begins again.
func (c *conn) begin(client client) error {
	s := c.server
	c.heard.Store(true)
	for {
		gen, err := s.generation(c.stream.Context())
		if err != nil {
			return err
		}
		r, err := gen.rules.choose(*c.listener, client, c.listener.TLS.identitiesOf(c.peer))
		if err != nil {
			return err
		}
		v, err := s.views.admit(c.stream.Context(), variantOf(r, client), c.viewer())
		if err != nil {
			return err
		}
		if done, err := c.enter(gen, v, r, client); done {
			return err
		}
		s.views.release(v, c.viewer())
	}
}

// enter makes v the view of the client. It is false when other rules than those of gen apply
// by now.
func (c *conn) enter(gen *generation, v *view, r *rule, client client) (done bool, err error) {
	s := c.server
	if err := s.lock(c.stream.Context(), s.changing.RLocker(), nil); err != nil {
		s.views.release(v, c.viewer())
		return true, err
	}
	defer s.changing.RUnlock()
	if s.gen != gen {
		return false, nil
	}
	id := fmt.Sprintf("%s-%d", client.nodeID, s.lastID.Add(1))
	log := s.log.With("client", id)
	c.mu.Lock()
	closed := c.closed
	if !closed {
		c.id, c.client, c.log = id, client.lean(), log
		c.sees(v, r)
	}
	c.mu.Unlock()
	c.begun = true
	if closed {
		s.views.release(v, c.viewer())
		return true, status.Error(codes.Canceled, "stream has ended")
	}
	log.Info("client connected", "address", c.peer.Addr.String(), "protocol", c.protocol,
		"istioVersion", client.istioVersion, "revision", client.revision, "view", r.Name)
	return true, nil
}

// sees gives the client a view, by a rule. The caller holds mu.
func (c *conn) sees(v *view, r *rule) {
	c.view, c.rule, c.seesAs, c.limited, c.asked = v, r, r.Name, r.Accepts != nil, true
}

// cluster returns the cluster that the client claims to be in, empty while it has not.
func (c *conn) cluster() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.client.clusterID
}

// await delays a client that asks too fast: what it sends meanwhile stays with it, once the
// window is full. What answers a response is not counted, as there are never more of these
// than the server wants.
func (c *conn) await(nonce string) error {
	if nonce != "" && c.answerable.Load() > 0 {
		c.answerable.Add(-1)
		return nil
	}
	wait, first, err := c.pace.next(c.server.limits.Load(), time.Now())
	if wait == 0 {
		return err
	}
	c.server.metrics.delayed.Inc()
	if first && c.server.refusals.Allow() {
		c.server.log.Warn("client asks too fast, its requests are delayed", "client", c.name(), "address", c.peer.Addr.String(),
			"requestsPerSecond", c.server.limits.Load().RequestsPerSecond)
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-c.stream.Context().Done():
		return status.FromContextError(c.stream.Context().Err()).Err()
	}
}

// record counts and logs what a request was. The caller holds mu.
func (c *conn) record(result outcome, err error, typeURL, reason string) {
	if err != nil {
		return
	}
	w := c.watches.byType[typeURL]
	switch result {
	case outcomeACK:
		c.server.metrics.kind(w.kind).acks.Inc()
	case outcomeNACK:
		c.server.metrics.kind(w.kind).nacks.Inc()
		c.log.Warn("client rejected a response", "type", bounded(typeURL), "nonce", w.nonce, "err", bounded(reason))
	case outcomeSubscribed, outcomeStale:
		c.log.Debug("request", "type", bounded(typeURL), "stale", result == outcomeStale)
	}
}

// account counts what the watches keep, and returns why that is refused when it is too much.
// The caller holds mu.
func (c *conn) account() error {
	is := c.watches.kept()
	if is == c.kept || c.closed {
		return nil
	}
	if err := c.server.peers.keep(c.use, c.kept, is, c.watches.limits); err != nil {
		return err
	}
	c.kept = is
	return nil
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
		IstioVersion: c.client.istioVersion, Revision: c.client.revision, View: c.seesAs,
		Address: c.peer.Addr.String(), Protocol: c.protocol, Connected: c.opened,
		Types: make([]TypeStatus, 0, len(c.watches.sorted)),
	}
	if c.peer.LocalAddr != nil {
		st.Listener = c.peer.LocalAddr.String()
	}
	for _, w := range c.watches.sorted {
		st.Types = append(st.Types, w.snapshotStatus())
	}
	return st, true
}
