package downstream

import (
	"errors"
	"io"
	"log/slog"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"meshrelay/downstream/admit"
	"meshrelay/downstream/refusal"
	"meshrelay/downstream/snapshot"
	"meshrelay/downstream/subscription"
	"meshrelay/downstream/views"
	"meshrelay/events"
	"meshrelay/trouble"
)

// receive handles requests until the stream ends. It returns the error of a refused request, or nil.
func (c *conn) receive() (refused error) {
	for {
		if err := c.guard(c.next); err != nil {
			err = c.reasonOf(err)
			c.end(err)
			if refusal.Is(err) {
				return err
			}
			return nil
		}
	}
}

// reasonOf returns the status of the stream for an error of a request.
func (c *conn) reasonOf(err error) error {
	switch {
	case errors.Is(err, io.EOF):
		return nil
	case !refusal.Is(err) && status.Code(err) == codes.ResourceExhausted: // an error of gRPC about the size
		return refusal.New(refusal.Bytes, codes.ResourceExhausted,
			"request of more than %d bytes (a ninety-sixth of the memory limit, at most %d without client certificates): %s",
			c.listener.requestBytes(c.server.limits.Load()), admit.OpenRequestBytes, status.Convert(err).Message())
	}
	return err
}

// next waits for a request and handles it.
func (c *conn) next() error {
	in := &c.incoming
	in.first = !c.heard.Load()
	if err := c.stream.RecvMsg(in); err != nil {
		return err
	}
	req := in.req
	in.req = nil // it may be large, and the stream may wait long for the next request
	if in.err != nil {
		return in.err
	}
	if err := c.await(req.Nonce); err != nil {
		return err
	}
	known, err := c.know(req)
	if !known || err != nil {
		return err
	}
	asks := true
	switch {
	case req.TypeURL == statusType:
		err = c.askStatus()
	case req.TypeURL == trouble.TypeURL && c.protocol == protocolDelta:
		asks = c.askTrouble(req)
	default:
		asks, err = c.subscribe(&req.Request)
	}
	if err == nil && asks {
		c.signal()
	}
	return err
}

// subscribe applies a request to the subscriptions. asks reports whether the request may need a response.
func (c *conn) subscribe(req *subscription.Request) (asks bool, err error) {
	limits := c.server.limits.Load()
	most := subscription.Limits{Types: limits.MaxTypesPerClient, Names: limits.MaxNamesPerClient, NameBytes: limits.MaxNameBytesPerClient}
	c.mu.Lock()
	defer c.mu.Unlock()
	result, err := c.subs.Request(req, most, time.Now())
	if latency := c.subs.Latency(); latency > 0 {
		c.server.metrics.answers.Observe(latency.Seconds())
	}
	if err == nil {
		err = c.account()
	}
	if err != nil {
		return false, err
	}
	c.record(result, c.subs.Watch(req.TypeURL), req)
	asks = result.Asks(req)
	c.asked = c.asked || asks
	return asks, nil
}

// know reads the first request, and gives the client a view. It returns false for the requests that Istio's
// agent may send before.
func (c *conn) know(req *request) (bool, error) {
	if c.heard.Load() {
		return true, nil
	}
	if req.TypeURL == healthType {
		return false, nil
	}
	client, err := views.ParseNode(req.node)
	if err != nil {
		return false, err
	}
	if client.Istiod {
		c.form = snapshot.Short
		c.subs.Use(c.form)
	}
	if err := c.begin(&client); err != nil {
		return false, err
	}
	return true, nil
}

// viewer returns the client as views count it.
func (c *conn) viewer() viewer {
	return viewer{c.protocol == protocolDelta, c.form, seat{c.use.Peer, c.claim}, c.server.limits.Load().MaxViewsPerPeer}
}

// begin gives a new client a view. It repeats this if the state changes meanwhile.
func (c *conn) begin(client *views.Client) error {
	s := c.server
	c.claim = views.Origin{Cluster: client.ClusterID, Revision: client.Revision}
	c.heard.Store(true)
	for {
		st, err := s.settled(c.ctx)
		if err != nil {
			return err
		}
		r, err := st.rules.Of(c.listener.forViews(), *client, c.who)
		if err != nil {
			return err
		}
		v, err := s.views.admit(c.ctx, r.Selection(*client), c.viewer())
		if err != nil {
			return err
		}
		done, err := c.enter(st, v, r, client)
		if done && err == nil {
			return nil
		}
		if s.views.release(v, c.viewer()); done {
			return err
		}
	}
}

// enter sets the view of a new client. It returns false if the state is no longer st: whoever moves clients has changed
// it before.
func (c *conn) enter(st *serving, v *view, r *views.Rule, client *views.Client) (done bool, err error) {
	s := c.server
	c.mu.Lock()
	closed, stays := c.closed, s.serving.Load() == st
	if stays && !closed {
		c.number, c.client = s.lastID.Add(1), *client
		c.has = s.rounds.enter()
		c.sees(v, r)
	}
	c.mu.Unlock()
	if closed || !stays {
		return stays, status.Error(codes.Canceled, "stream has ended")
	}
	from := "from " + c.peer.Addr.String()
	if r.Name != "" {
		from += ", view " + r.Name
	}
	s.events.Record(events.Event{Type: events.Connected, By: events.ByClient, Client: c.id(), Tool: isTool(client.NodeID), Text: from})
	s.comings.Log(c.log(), slog.LevelInfo, "client connected", "address", c.peer.Addr.String(), "protocol", c.protocol,
		"istioVersion", client.IstioVersion, "revision", client.Revision, "view", r.Name)
	return true, nil
}

// sees sets the view and the rule of the client. The caller holds mu.
func (c *conn) sees(v *view, r *views.Rule) {
	c.view, c.rule, c.asked = v, r, true
}

// await delays a client that sends requests too fast. Answers to responses do not count, because the server
// decides their number.
func (c *conn) await(nonce string) error {
	if nonce != "" && c.answerable.Load() > 0 {
		c.answerable.Add(-1)
		c.use.Work.Requests.Add(1)
		return nil
	}
	wait, first, err := c.use.Request(time.Now())
	if wait == 0 || err != nil {
		return err
	}
	c.server.metrics.delayed.Inc()
	if first {
		c.server.refusals.Warn(c.server.log, "client sends requests too fast, they are delayed", "client", c.name(), "address", c.peer.Addr.String())
	}
	select {
	case <-time.After(wait):
		return nil
	case <-c.ctx.Done():
		return status.FromContextError(c.ctx.Err()).Err()
	}
}

// record counts and logs a request. The caller holds mu.
func (c *conn) record(result subscription.Outcome, w *subscription.Watch, req *subscription.Request) {
	switch result {
	case subscription.ACK:
		c.server.metrics.of(w.Type).acks.Inc()
		c.hold()
	case subscription.NACK:
		c.use.Work.Rejected.Add(1)
		c.server.metrics.of(w.Type).nacks.Inc()
		c.server.events.Record(events.Event{
			Type: events.NACK, By: events.ByClient, Client: c.id(), Text: "rejects " + refusal.Bounded(w.TypeURL), Reason: refusal.Bounded(req.Error),
		})
		c.server.nacks.Warn(c.log(), "client rejected a response", "type", refusal.Bounded(w.TypeURL), "nonce", w.Status().SentNonce,
			"err", refusal.Bounded(req.Error))
	case subscription.Subscribed, subscription.Stale:
		if c.debugs() {
			c.log().Debug("request", "type", refusal.Bounded(w.TypeURL), "stale", result == subscription.Stale)
		}
	}
}

// account updates the counted usage of the stream. It returns an error if the usage exceeds a limit. The
// caller holds mu.
func (c *conn) account() error {
	is := c.subs.Usage()
	if is == c.kept || c.closed {
		return nil
	}
	if err := c.server.usage.keep(c.use.Peer, c.kept, is, c.server.limits.Load()); err != nil {
		return err
	}
	c.kept = is
	return nil
}
