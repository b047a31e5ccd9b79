package downstream

import (
	"context"
	"math"
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
	if err := s.changing.Acquire(ctx, alone); err != nil {
		return err
	}
	defer s.changing.Release(alone)
	if change != nil {
		held, cancel := context.WithTimeout(ctx, longestHold)
		defer cancel()
		hold := context.AfterFunc(held, func() { s.changing.Release(alone) })
		err := change(held)
		if !hold() { // the pause has ended before change
			_ = s.changing.Acquire(context.Background(), alone)
		}
		if err != nil {
			return err
		}
	}
	s.rules = rs
	complete := limits.complete()
	complete.MaxRequestBytes = s.limits.Load().MaxRequestBytes // gRPC's limit stays, too
	s.limits.Store(complete)
	s.admission.SetLimits(&complete.Limits)
	if stay, ended := s.moveClients(s.matchAgain); ended > 0 {
		s.log.Info("views changed, streams ended", "ended", ended, "clients", stay)
	}
	return nil
}

// alone is the weight of an exclusive hold of Server.changing.
const alone = math.MaxInt64

// newestRules waits for a running reload, and returns the rules.
func (s *Server) newestRules(ctx context.Context) (*views.Rules, error) {
	if err := s.changing.Acquire(ctx, 1); err != nil {
		return nil, status.FromContextError(err).Err()
	}
	defer s.changing.Release(1)
	return s.rules, nil
}

// longestHold bounds how long clients wait for the function change of a reload.
const longestHold = 5 * time.Second

// moveClients gives each client a view by the rule that match returns. It ends the stream if match returns an
// error. It returns the number of clients that stay, and of streams that end. The caller holds changing.
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
func (s *Server) learn(ctx context.Context) {
	if s.changing.Acquire(ctx, alone) != nil {
		return // ctx has ended
	}
	defer s.changing.Release(alone)
	same := *s.rules
	s.rules = &same // clients that are about to get a view call choose again
	s.moveClients(func(c *conn) (*views.Rule, error) { return c.rule, nil })
}

// learnOn calls learn for each element of known.News(), until ctx ends.
func (s *Server) learnOn(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.views.known.News():
			s.learn(ctx)
		}
	}
}

var errTooManyViews = status.Error(codes.Unavailable, "the views have changed, and there are too many of them now; reconnect")

// matchAgain returns the rule for a connected client.
func (s *Server) matchAgain(c *conn) (*views.Rule, error) {
	return s.rules.Of(c.listener.forViews(), c.client, c.who)
}

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
