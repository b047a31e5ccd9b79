package downstream

import (
	"log/slog"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"meshrelay/downstream/refusal"
	"meshrelay/downstream/subscription"
)

// turn keeps a goroutine of a stream while there is something to send.
type turn struct {
	mu      sync.Mutex // guards all below
	running bool
	again   bool          // there may be more since the goroutine looked
	closed  bool          // no goroutine begins
	over    chan struct{} // closed when the last goroutine ends; nil: nobody waits
}

// begin reports whether the caller starts a goroutine.
func (t *turn) begin() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.running || t.closed {
		t.again = t.running
		return false
	}
	t.running = true
	return true
}

// rest reports whether the goroutine ends: nobody has called begin since it looked.
func (t *turn) rest() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.again && !t.closed {
		t.again = false
		return false
	}
	t.running, t.again = false, false
	if t.over != nil {
		close(t.over)
	}
	return true
}

// shut waits for the goroutine, and lets no other one begin. Call it once.
func (t *turn) shut() {
	t.mu.Lock()
	t.closed = true
	if t.running {
		t.over = make(chan struct{})
	}
	over := t.over
	t.mu.Unlock()
	if over != nil {
		<-over
	}
}

// signal tells that there may be something to send.
func (c *conn) signal() {
	if c.turn.begin() {
		go c.send()
	}
}

// send sends what the client lacks.
func (c *conn) send() {
	for {
		if err := c.guard(c.sendAll); err != nil {
			c.end(err)
		}
		if c.turn.rest() {
			return
		}
	}
}

func (c *conn) sendAll() error {
	for more := true; more; {
		if c.ctx.Err() != nil {
			return c.status()
		}
		err := c.sendReply()
		if err != nil || !isClosed(c.server.released) {
			return err
		}
		if more, err = c.round(); err != nil {
			return err
		}
	}
	return nil
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
	c.slot.sent(proto.Size(reply), c.server.cfg.replyTimeout, c.leftUnread)
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
		resp, ok, err := c.respond(round, began)
		if !ok {
			return true, err
		}
		if (resp.First || c.protocol == protocolDelta) && resp.Size > defaultReceiveLimit {
			c.server.comings.Log(c.log(), slog.LevelInfo, "response is larger than gRPC clients accept unless told to", "type", resp.TypeURL, "bytes", resp.Size, "usualLimit", defaultReceiveLimit)
		}
		if err := c.sendMsg(resp.Message); err != nil {
			return true, err
		}
		now := time.Now()
		c.server.work.BusyWith(resp.Size, now.Sub(began))
		began = now
		c.server.metrics.pushed(resp.Type, resp.Size, resp.ChangedAt, now)
		if c.debugs() {
			c.log().Debug("pushed", "type", resp.TypeURL, "nonce", resp.Nonce, "bytes", resp.Size)
		}
	}
}

// respond returns the next response of a round; ok is false at its end.
func (c *conn) respond(round *subscription.Round, now time.Time) (resp subscription.Response, ok bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if resp, ok = c.subs.Next(round, now); ok {
		return resp, true, nil
	}
	err = c.account() // of versions that clients resumed with, and that were compared
	c.sends = false
	c.hold() // clients do not acknowledge all types
	return resp, false, err
}

// plan begins a round; nil when the client has everything.
func (c *conn) plan() (*subscription.Round, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.view == nil {
		return nil, nil
	}
	c.plannedRound = c.server.rounds.number() // before the view is looked at, which has all of it
	changes := c.view.changes.Load()
	if !c.asked && changes == c.planned {
		c.hold()
		return nil, nil
	}
	c.asked, c.planned = false, changes
	round, err := c.subs.Plan(c.view.snapshot, c.server.metrics.pageEncoded)
	if err != nil {
		return nil, err
	}
	c.sends = round != nil
	c.hold()
	return round, nil
}

func (c *conn) sendMsg(m any) error {
	c.answerable.Add(1)
	c.sending.Store(true)
	defer c.sending.Store(false)
	timeout := c.server.cfg.SendTimeout
	unread := time.AfterFunc(timeout, func() {
		c.end(refusal.New(refusal.Unread, codes.DeadlineExceeded, "client has left a response unread for %v", timeout))
	})
	defer unread.Stop()
	return c.stream.SendMsg(m)
}
