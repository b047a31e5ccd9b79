package downstream

import (
	"log/slog"
	"sync"
	"time"

	"google.golang.org/grpc/codes"

	"meshrelay/downstream/refusal"
	"meshrelay/downstream/subscription"
	"meshrelay/mirror"
)

// turn decides when a stream needs a goroutine that sends. At most one runs at a time.
type turn struct {
	mu      sync.Mutex // guards all below
	running bool
	again   bool          // begin was called while the goroutine ran
	closed  bool          // begin starts no goroutine any more
	over    chan struct{} // closed when the goroutine ends; nil: nobody waits
}

// begin reports whether the caller must start a goroutine.
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

// rest reports whether the goroutine must end, because begin was not called since the last look.
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

// shut prevents new goroutines, and waits for the running one. Call it once.
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

// signal starts the goroutine that sends, unless it runs.
func (c *conn) signal() {
	if c.turn.begin() {
		go c.send()
	}
}

// send sends responses until the client has everything, or the stream ends.
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
		err := c.sendStatus()
		if err != nil || !mirror.IsClosed(c.server.released) || c.server.views.known.Learning() { // learn wakes the stream
			return err
		}
		if err = c.sendTrouble(); err != nil {
			return err
		}
		if more, err = c.inTurn(c.round); err != nil {
			return err
		}
	}
	return nil
}

// round plans and sends one round of responses. It reports whether it sent any: there may then be newer
// changes.
func (c *conn) round() (sent bool, err error) {
	began := time.Now()
	round, err := c.plan()
	c.reached()
	if round == nil || err != nil {
		return false, err
	}
	responses, bytes := 0, 0
	for {
		resp, ok, err := c.respond(round, began)
		if !ok {
			c.sent(responses, bytes)
			return true, err
		}
		if (resp.First || c.protocol == protocolDelta) && resp.Size > defaultReceiveLimit {
			c.server.comings.Log(c.log(), slog.LevelInfo, "response is larger than the default limit of gRPC clients", "type", resp.TypeURL, "bytes", resp.Size, "usualLimit", defaultReceiveLimit)
		}
		if err := c.sendMsg(resp.Message); err != nil {
			c.sent(responses, bytes)
			return true, err
		}
		now := time.Now()
		c.server.work.BusyWith(resp.Size, now.Sub(began))
		responses, bytes = responses+1, bytes+resp.Size
		began = now
		c.server.metrics.pushed(resp.Type, resp.Size, resp.ChangedAt, now)
		if c.debugs() {
			c.log().Debug("pushed", "type", resp.TypeURL, "nonce", resp.Nonce, "bytes", resp.Size)
		}
	}
}

// respond returns the next response of a round. ok is false after the last one.
func (c *conn) respond(round *subscription.Round, now time.Time) (resp subscription.Response, ok bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.view == nil { // a reload has ended the stream
		return resp, false, c.status()
	}
	if resp, ok = c.subs.Next(round, now); ok {
		if c.outdated {
			return resp, false, errOutdated
		}
		return resp, true, nil
	}
	err = c.account() // the versions of a resuming client are freed
	c.sends = false
	c.hold() // some types are never acknowledged
	return resp, false, err
}

// inTurn runs a round. If it answers a request, it waits until the peer of the client has not too many answers.
func (c *conn) inTurn(round func() (bool, error)) (sent bool, err error) {
	c.mu.Lock()
	asked := c.asked && c.view != nil
	c.mu.Unlock()
	if !asked {
		return round()
	}
	end, err := c.use.Answer(c.ctx)
	if err != nil {
		return false, c.status()
	}
	defer end()
	return round()
}

// plan plans a round. It returns nil when the client has everything.
func (c *conn) plan() (*subscription.Round, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.view == nil {
		return nil, nil
	}
	c.plannedRound = c.server.rounds.newest.Load() // read before the view, which then has all changes of that push
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
	c.sends, c.outdated = round != nil, false
	c.hold()
	return round, nil
}

func (c *conn) sendMsg(m any) error {
	if err := c.server.judge(c); err != nil {
		return err
	}
	c.answerable.Add(1)
	c.sending.Store(true)
	defer c.sending.Store(false)
	timeout := c.server.cfg.timeouts.unread
	unread := time.AfterFunc(timeout, func() {
		c.end(refusal.New(refusal.Unread, codes.DeadlineExceeded, "client has left a response unread for %v", timeout))
	})
	defer unread.Stop()
	return c.stream.SendMsg(m)
}

// sent counts responses that were sent, of some bytes.
func (c *conn) sent(responses, bytes int) {
	c.use.Work.Responses.Add(uint64(responses)) // a count
	c.use.Work.Bytes.Add(uint64(bytes))         // a size
}
