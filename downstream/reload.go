package downstream

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"meshrelay/downstream/views"
)

// Reload replaces the views and the limits. It gives each client the view that it now has, and sends it the
// difference. It ends the streams of clients that match no view (PermissionDenied), and the streams to which the rest
// of an answer was not sent yet, if they may now read something else (Unavailable). Streams and connections above a
// lowered limit stay.
//
// Reload calls change, which may be nil, before it replaces them. change may change what Resources returns.
// While change runs, clients get no updates and no views. This pause ends after longestHold or when ctx ends:
// then held ends, too, and clients get updates again.
//
// After an error of change or of the views, views and limits are unchanged. Any goroutine may call
// Reload.
func (s *Server) Reload(ctx context.Context, all []views.View, limits Limits, change func(held context.Context) error) error {
	rs, err := views.New(all, listenersOf(s.cfg.Listeners))
	if err != nil {
		return err
	}
	now := s.hold()
	defer func() { s.free(now) }()
	if change != nil {
		held, cancel := context.WithTimeout(ctx, longestHold)
		defer cancel()
		hold := context.AfterFunc(held, func() { s.free(now) })
		err := change(held)
		if !hold() { // the pause has ended before change
			now = s.hold()
		}
		if err != nil {
			return err
		}
	}
	now = rs
	complete := limits.complete()
	complete.MaxRequestBytes = s.limits.Load().MaxRequestBytes // gRPC's limit stays, too
	s.limits.Store(complete)
	s.admission.SetLimits(&complete.Limits)
	if stay, ended := s.moveClients(func(c *conn) (*views.Rule, error) { return rs.Of(c.listener.forViews(), c.client, c.who) }); ended > 0 {
		s.log.Info("views changed, streams ended", "ended", ended, "clients", stay)
	}
	return nil
}

// serving is what clients get their views by. It is immutable.
type serving struct {
	rules *views.Rules
	held  chan struct{} // nil unless clients get no updates and no views; closed when they do again
}

// settled waits while clients are held, and returns the state.
func (s *Server) settled(ctx context.Context) (*serving, error) {
	st := s.serving.Load()
	for ; st.held != nil; st = s.serving.Load() {
		select {
		case <-st.held:
		case <-ctx.Done():
			return nil, status.FromContextError(ctx.Err()).Err()
		}
	}
	return st, nil
}

// lockChanges locks changes while clients are not held.
func (s *Server) lockChanges() {
	for s.changes.Lock(); s.serving.Load().held != nil; s.changes.Lock() {
		s.changes.Unlock()
		_, _ = s.settled(context.Background())
	}
}

// hold holds clients until free is called, and returns the rules.
func (s *Server) hold() *views.Rules {
	s.lockChanges()
	defer s.changes.Unlock()
	rs := s.serving.Load().rules
	s.serving.Store(&serving{rs, make(chan struct{})})
	return rs
}

// free lets clients go, which choose their views by rs.
func (s *Server) free(rs *views.Rules) { close(s.serving.Swap(&serving{rules: rs}).held) }

// longestHold bounds how long clients wait for the function change of a reload.
const longestHold = 5 * time.Second

// moveClients gives each client a view by the rule that match returns. It ends the stream if match returns an
// error. It returns the number of clients that stay, and of streams that end. The caller has called hold.
func (s *Server) moveClients(match func(*conn) (*views.Rule, error)) (stay, ended int) {
	var moves []move
	for _, c := range s.connections() {
		c.mu.Lock()
		from := c.view
		c.mu.Unlock()
		if from == nil {
			continue
		}
		r, err := match(c)
		if err != nil {
			if c.moveTo(nil, nil, err) {
				s.views.release(from, c.viewer())
				ended++
			}
			continue
		}
		moves = append(moves, move{from: from, to: r.Selection(c.client), who: c.viewer(), done: func(v *view) bool {
			if v == nil {
				ended++
			} else {
				stay++
			}
			return c.moveTo(v, r, errTooManyViews)
		}})
	}
	s.views.rematch(moves, time.Now())
	s.wakeAll()
	return stay, ended
}

// learn makes new clusters and revisions of resources known, and gives the clients that claim them their own
// views.
func (s *Server) learn() {
	defer s.free(s.hold())
	s.moveClients(func(c *conn) (*views.Rule, error) { return c.rule, nil })
}

// learnOn calls learn for each element of known.News(), until ctx ends.
func (s *Server) learnOn(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.views.known.News():
			s.learn()
		}
	}
}

var errTooManyViews = status.Error(codes.Unavailable, "the views have changed, and there are too many of them now; reconnect")

// moveTo sets the view and the rule of the client. If v is nil, it ends the stream with err, and the caller
// releases the old view. It returns false if the client has already released its view.
func (c *conn) moveTo(v *view, r *views.Rule, err error) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.view == nil:
		return false
	case v == nil:
		c.view = nil
		c.end(err)
	default:
		if !r.Same(c.rule) {
			c.outdated = c.sends
		}
		c.sees(v, r)
	}
	return true
}

// errOutdated ends a stream when a response to it was made for the view of before, and is not sent yet.
var errOutdated = status.Error(codes.Unavailable, "the views have changed while responses to this client were being sent; reconnect")
