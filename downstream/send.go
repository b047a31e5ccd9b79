package downstream

import (
	"log/slog"
	"time"

	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"meshrelay/downstream/subscription"
)

// send sends what the client lacks until the stream ends.
func (c *conn) send() error {
	ctx := c.stream.Context()
	released := c.server.released
	open := false
	defer c.reached()
	for {
		if err := c.sendReply(); err != nil {
			return err
		}
		if open {
			more, err := c.round()
			if err != nil {
				return err
			}
			if more {
				continue
			}
		}
		select {
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		case <-released:
			open, released = true, nil
		case <-c.wake:
		}
	}
}

func (c *conn) sendReply() error {
	c.mu.Lock()
	reply := c.slot.reply
	c.slot.reply = nil
	c.mu.Unlock()
	if reply == nil {
		return nil
	}
	if err := c.sendMsg(reply); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.slot.sent(proto.Size(reply))
	return nil
}

// round brings every type to its newest snapshot, and reports whether it sent anything: then there may
// be more by now.
func (c *conn) round() (sent bool, err error) {
	began := time.Now()
	round, err := c.plan()
	c.reached()
	if round == nil || err != nil {
		return false, err
	}
	for {
		c.mu.Lock()
		resp, ok := c.subs.Next(round, time.Now())
		log := c.log
		if !ok {
			err = c.account() // of versions that clients resumed with, and that were compared
		}
		c.mu.Unlock()
		if !ok {
			return true, err
		}
		if (resp.First || c.protocol == protocolDelta) && resp.Size > defaultReceiveLimit {
			c.server.comings.Log(log, slog.LevelInfo, "response is larger than gRPC clients accept unless told to", "type", resp.TypeURL, "bytes", resp.Size, "usualLimit", defaultReceiveLimit)
		}
		if err := c.sendMsg(resp.Message); err != nil {
			return true, err
		}
		now := time.Now()
		c.server.work.BusyWith(resp.Size, now.Sub(began))
		began = now
		c.server.metrics.pushed(resp.Type, resp.Size, resp.ChangedAt, now)
		log.Debug("pushed", "type", resp.TypeURL, "nonce", resp.Nonce, "bytes", resp.Size)
	}
}

// plan begins a round; nil when the client has everything.
func (c *conn) plan() (*subscription.Round, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.view == nil {
		return nil, nil
	}
	changes := c.view.changes.Load()
	if !c.asked && changes == c.planned {
		return nil, nil
	}
	c.asked, c.planned = false, changes
	return c.subs.Plan(c.view.snapshot, c.server.metrics.pageEncoded)
}

func (c *conn) sendMsg(m any) error {
	c.answerable.Add(1)
	c.sendingSince.Store(time.Now().UnixNano())
	defer c.sendingSince.Store(0)
	return c.stream.SendMsg(m)
}
