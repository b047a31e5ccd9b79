package downstream

import (
	"strconv"
	"time"

	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// maxRemoved is how many removed names one response has at most.
const maxRemoved = 16_384

// send sends what the client lacks until the stream ends.
func (c *conn) send() error {
	ctx := c.stream.Context()
	released := c.server.released
	open := false
	for {
		if err := c.sendReplies(); err != nil {
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

func (c *conn) sendReplies() error {
	c.mu.Lock()
	replies := c.slot.replies
	c.slot.replies = nil
	c.mu.Unlock()
	for _, r := range replies {
		if err := c.sendMsg(r); err != nil {
			return err
		}
		size := proto.Size(r)
		c.mu.Lock()
		c.slot.sent(size)
		c.mu.Unlock()
	}
	return nil
}

// round brings every type to the snapshot that is newest as the round begins, in
// two passes: what is added and changed, from the kinds that are referred to towards
// those that refer; then what is removed, in the opposite order. So nothing is taken
// away while something else still points to it (PROTOCOL S20). A SotW response that
// takes something away belongs to the second pass as a whole.
//
// It reports whether anything was sent: if so, there may be more by now.
func (c *conn) round() (sent bool, err error) {
	steps, err := c.plan()
	if err != nil {
		return false, err
	}
	for i := range steps {
		if st := &steps[i]; !st.last() {
			if err := c.sendStep(st, false); err != nil {
				return true, err
			}
			// What was sent is not kept while the rest of the round waits for the client.
			if st.diff != nil && len(st.diff.removed) > 0 {
				st.diff = &difference{removed: st.diff.removed}
			} else {
				*st = step{}
			}
		}
	}
	for i := len(steps) - 1; i >= 0; i-- {
		if st := &steps[i]; st.last() || st.diff != nil && len(st.diff.removed) > 0 {
			if err := c.sendStep(st, true); err != nil {
				return true, err
			}
		}
	}
	clear(steps) // what was sent is not kept alive
	return len(steps) > 0, c.settle()
}

// settle accounts for versions that clients resumed with, and that are not needed any more:
// what follows from them is sent.
func (c *conn) settle() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.kept.versions == 0 {
		return nil
	}
	for _, w := range c.watches.sorted {
		if w.held == nil {
			w.kept = 0
		}
	}
	return c.account()
}

// last reports whether the whole step belongs to the pass of the removals.
func (st *step) last() bool {
	if st.diff == nil {
		return st.removes
	}
	return len(st.diff.changed) == 0 && len(st.diff.removed) > 0
}

func (c *conn) plan() ([]step, error) {
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
	steps := c.steps[:0]
	for _, w := range c.watches.sorted {
		s := c.view.snapshot(w.kind)
		var st step
		var ok bool
		var err error
		if c.protocol == protocolSotW {
			st, ok = w.planSotW(s, c.server.metrics)
		} else if st, ok, err = w.planDelta(s, c.server.controlPlane); err != nil {
			return nil, err
		}
		if ok {
			steps = append(steps, st)
		}
	}
	c.steps = steps
	return steps, nil
}

// sendStep sends one response: of a delta step, the removals or all the rest.
func (c *conn) sendStep(st *step, removals bool) error {
	w := st.w
	now := time.Now()
	c.mu.Lock()
	// The first response of a type has a nonce that does not depend on the stream, so
	// that clients which come together can be sent the same bytes.
	first := w.nonce == ""
	var nonce string
	var controlPlane []byte
	if first {
		nonce, controlPlane = firstNonce(w.typeURL), c.server.controlPlane
	} else {
		c.nonce++
		nonce = strconv.FormatUint(c.nonce, 10)
	}
	var m *message
	more := false
	switch {
	case st.diff == nil:
		m = sotwMessage(w.typeURL, st.version, nonce, controlPlane, st.buffers, st.bytes)
	case removals:
		// In parts, as nobody shares them: the next is made when the client has read most of
		// the last.
		names := st.diff.removed[:min(len(st.diff.removed), maxRemoved)]
		if more = len(names) < len(st.diff.removed); more {
			st.diff = &difference{removed: st.diff.removed[len(names):]}
		}
		m = deltaMessage(w.typeURL, nonce, controlPlane, nil, 0, names)
	case st.opening != nil:
		m = st.opening
	default:
		m = deltaMessage(w.typeURL, nonce, controlPlane, st.diff.changed, st.diff.bytes, nil)
	}
	w.sending(nonce, st.state, m.size, now)
	log := c.log
	c.mu.Unlock()
	if first && m.size > defaultReceiveLimit {
		log.Info("response is larger than gRPC clients accept unless told to", "type", w.typeURL, "bytes", m.size, "usualLimit", defaultReceiveLimit)
	}
	if err := c.sendMsg(m); err != nil {
		return err
	}
	changedAt := st.changedAt
	if first || st.owed {
		changedAt = time.Time{}
	}
	c.server.metrics.pushed(w.kind, m.size, changedAt, time.Now())
	log.Debug("pushed", "type", w.typeURL, "nonce", nonce, "bytes", m.size)
	if more {
		return c.sendStep(st, true)
	}
	return nil
}

func (c *conn) sendMsg(m any) error {
	c.answerable.Add(1)
	c.sendingSince.Store(time.Now().UnixNano())
	defer c.sendingSince.Store(0)
	return c.stream.SendMsg(m)
}
