package downstream

import (
	"context"
	"errors"
	"math"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// CheckReload returns the error that Reload would return, and changes nothing.
func (s *Server) CheckReload(views []View, limits Limits) error {
	_, err := newRules(views, s.cfg.Listeners)
	_, limitsErr := limits.complete()
	return errors.Join(err, limitsErr)
}

// Reload replaces the views and the limits. It ends the streams of clients without a view
// (PermissionDenied); all others are matched again, and sent what differs for them. Streams and
// connections beyond a lowered limit stay.
//
// change, which may be nil, changes what Resources shows, and returns when that is done. Meanwhile no
// client is sent anything new or given a view. That ends after longestHold and with ctx: then the
// context of change is over, and clients see what there is.
//
// When Reload returns an error, that of change or of its arguments, views and limits stay. It is
// safe for use by several goroutines.
func (s *Server) Reload(ctx context.Context, views []View, limits Limits, change func(held context.Context) error) error {
	rs, err := newRules(views, s.cfg.Listeners)
	complete, limitsErr := limits.complete()
	if err := errors.Join(err, limitsErr); err != nil {
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
		if !hold() { // clients go on meanwhile
			_ = s.changing.Acquire(context.Background(), alone)
		}
		if err != nil {
			return err
		}
	}
	s.rules = rs
	s.limits.Store(complete)
	s.limiter.SetLimit(rate.Limit(complete.NewStreamsPerSecond))
	s.limiter.SetBurst(complete.NewStreamsPerSecond)
	if stay, ended := s.moveClients(s.matchAgain); ended > 0 {
		s.log.Info("views changed, streams end for it", "ended", ended, "clients", stay)
	}
	return nil
}

// alone is the share of Server.changing that leaves none to others.
const alone = math.MaxInt64

// newestRules returns the rules, once no reload is under way.
func (s *Server) newestRules(ctx context.Context) (*rules, error) {
	if err := s.changing.Acquire(ctx, 1); err != nil {
		return nil, status.FromContextError(err).Err()
	}
	defer s.changing.Release(1)
	return s.rules, nil
}

// longestHold is for how long clients may wait for a reload.
const longestHold = 5 * time.Second

// moveClients gives every client the view of the rule that match returns, or ends its stream. It
// returns how many stay and how many streams end. The caller holds changing.
func (s *Server) moveClients(match func(*conn) (*rule, error)) (stay, ended int) {
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
		moves = append(moves, move{from: from, to: variantOf(r, c.client), who: c.viewer(), done: func(v *view) bool {
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

// learn makes known the clusters and revisions of resources, and gives clients that claim them
// views of their own.
func (s *Server) learn(ctx context.Context) {
	if s.changing.Acquire(ctx, alone) != nil {
		return // the end was asked for
	}
	defer s.changing.Release(alone)
	same := *s.rules
	s.rules = &same // who is about to get a view is matched again
	s.moveClients(func(c *conn) (*rule, error) { return c.rule, nil })
}

// learnOn calls learn whenever there is something to learn, until ctx ends.
func (s *Server) learnOn(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.views.known.news:
			s.learn(ctx)
		}
	}
}

var errTooManyViews = status.Error(codes.Unavailable, "the views have changed, and there are too many at present to go on; reconnect")

// matchAgain returns the rule for a client that is connected.
func (s *Server) matchAgain(c *conn) (*rule, error) {
	if c.client.unlabelled && s.rules.byLabels && c.listener.View == "" {
		return nil, status.Errorf(codes.Unavailable,
			"the views have changed, and the labels of the node are more than the %d bytes that are kept; reconnect", maxLabelBytes)
	}
	return s.rules.choose(*c.listener, c.client, c.listener.TLS.identitiesOf(c.peer))
}

// moveTo gives the client a view by a rule. Without a view it ends the stream with err, and the
// caller releases the old view. It is false when the stream has ended before.
func (c *conn) moveTo(v *view, r *rule, err error) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.view == nil:
		return false
	case v == nil:
		c.view = nil
		c.end(err)
	default:
		c.sees(v, r)
	}
	return true
}
