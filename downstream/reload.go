package downstream

import (
	"errors"
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

// Reload replaces the views and the limits while the Server runs. No stream is closed for
// it, but those of clients that no view is for any more: they end with PermissionDenied.
// Every other client is matched anew, and if it is to see something else it is sent what
// differs from what it has. Streams and connections beyond a lowered limit stay.
//
// When it returns an error, nothing has changed: a view is wrong, or a listener's view is
// missing, or a limit is negative. It may be called from any goroutine.
func (s *Server) Reload(views []View, limits Limits) error {
	rs, err := newRules(views, s.cfg.Listeners)
	complete, limitsErr := limits.complete()
	if err := errors.Join(err, limitsErr); err != nil {
		return err
	}
	s.matching.Lock()
	defer s.matching.Unlock()
	s.rules = rs
	s.limits.Store(complete)
	s.limiter.SetLimit(rate.Limit(complete.NewStreamsPerSecond))
	s.limiter.SetBurst(complete.NewStreamsPerSecond)
	clients, ended := s.rematch()
	s.log.Info("views and limits replaced", "views", len(views), "clients", clients, "ended", ended)
	s.wakeAll()
	return nil
}

// rematch gives every client the view that the rules have for it. It returns how many were
// given one, and how many streams end. The caller holds matching.
func (s *Server) rematch() (clients, ended int) {
	var transfers []transfer
	for _, c := range s.connections() {
		c.mu.Lock()
		from, client := c.view, c.client
		c.mu.Unlock()
		if from == nil {
			continue
		}
		r, err := s.matchAgain(c, client)
		if err != nil {
			if c.evict(err) {
				s.views.release(from, c.protocol)
				ended++
			}
			continue
		}
		transfers = append(transfers, transfer{
			from: from, to: variantOf(r, client), protocol: c.protocol,
			settle: func(v *view) bool {
				if v == nil {
					ended++
					return c.evict(errTooManyViews)
				}
				clients++
				return c.moveTo(v, r)
			},
		})
	}
	s.views.move(transfers, time.Now())
	return clients, ended
}

var errTooManyViews = status.Error(codes.Unavailable, "the views have changed, and there are too many at present to go on; reconnect")

// matchAgain returns the rule for a client that is connected.
func (s *Server) matchAgain(c *conn, client client) (*rule, error) {
	if client.unlabelled && s.rules.byLabels && c.listener.View == "" {
		return nil, status.Errorf(codes.Unavailable,
			"the views have changed, and the labels of the node are more than the %d bytes that are kept; reconnect", maxLabelBytes)
	}
	return s.rules.choose(*c.listener, client, identitiesOf(c.peer))
}

// moveTo gives the client another view, or the same by another rule. It is false when the
// stream has ended.
func (c *conn) moveTo(v *view, r *rule) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.view == nil {
		return false
	}
	c.sees(v, r)
	return true
}

// evict takes the view from the client, and ends its stream. It is false when the stream has
// ended; if not, the caller releases the view.
func (c *conn) evict(err error) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.view == nil {
		return false
	}
	c.view = nil
	c.ended <- err // there is room: a client is evicted once
	return true
}
