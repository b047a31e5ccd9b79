package downstream

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"

	"meshrelay/downstream/refusal"
)

// lateness is how late streams may end that are over a timeout: one ticker looks at all of them.
const lateness = time.Second

// endLate ends streams that are over a timeout, and workers without work, until ctx ends.
func (s *Server) endLate(ctx context.Context) error {
	tick := time.NewTicker(max(min(lateness, s.cfg.SendTimeout/8, s.cfg.FirstRequestTimeout/8), time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		s.workers.thin()
		now := time.Now()
		for _, c := range s.connections() {
			if err := c.late(now); err != nil {
				c.end(err)
			}
		}
	}
}

// late returns over which timeout the stream is.
func (c *conn) late(now time.Time) error {
	cfg := &c.server.cfg
	since := c.sendingSince.Load()
	switch {
	case !c.expires.IsZero() && now.After(c.expires):
		return errExpired(c.expires)
	case !c.heard.Load() && now.Sub(c.opened) > cfg.FirstRequestTimeout:
		return refusal.New(refusal.Silent, codes.DeadlineExceeded, "no request came within %v", cfg.FirstRequestTimeout)
	case c.unread(now):
		return refusal.New(refusal.Unread, codes.DeadlineExceeded, "client has left a debug answer unread for %v", replyTimeout)
	case since != 0 && now.Sub(time.Unix(0, since)) > cfg.SendTimeout:
		return refusal.New(refusal.Unread, codes.DeadlineExceeded, "client has left a response unread for %v", cfg.SendTimeout)
	}
	return nil
}
