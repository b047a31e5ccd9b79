package replay

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
)

// request is what a client asks, of either protocol.
type request struct {
	url, nonce string
	all        bool              // a subscription to everything, on a delta stream
	held       map[string]string // name to version, on a delta stream
	rejected   string            // the words of a NACK
}

// stream is one stream to a client. Its loop owns all but updates and done.
type stream struct {
	delta  bool
	client string
	send   func(encoded) error
	// known reports whether the recording has a type: the client waits for its first answer.
	known  func(url string) bool
	notice func(text string)

	types map[string]*typeState
	asked map[string]*subscription
	nonce int

	updates chan *typeState
	done    chan struct{} // closed when the loop has ended
}

// subscription is a type that a client has asked for.
type subscription struct {
	has  map[string]string // name to version, on a delta stream
	sent bool              // the first answer was sent
}

// run answers requests and sends updates until ctx or the requests end.
func (s *stream) run(ctx context.Context, requests <-chan request) error {
	for {
		var err error
		select {
		case <-ctx.Done():
			return ctx.Err()
		case req, more := <-requests:
			if !more {
				return nil
			}
			err = s.answer(req)
		case t := <-s.updates:
			s.types[t.url] = t
			if sub := s.asked[t.url]; sub != nil {
				err = s.push(sub, t)
			}
		}
		if err != nil {
			return err
		}
	}
}

// answer answers as an istiod does: the first request of a type, and one for everything again.
func (s *stream) answer(req request) error {
	sub := s.asked[req.url]
	switch {
	case req.rejected != "":
		s.notice(fmt.Sprintf("client %s rejects %s: %s", s.client, req.url, req.rejected))
		return nil
	case sub == nil:
		sub = &subscription{has: maps.Clone(req.held)}
		if sub.has == nil {
			sub.has = map[string]string{}
		}
		s.asked[req.url] = sub
	case s.delta && req.all:
		sub.has, sub.sent = map[string]string{}, false
	case !s.delta && req.nonce == "":
	default:
		return nil // an acknowledgement
	}
	t := s.types[req.url]
	if t == nil && s.known(req.url) {
		return nil // its answer comes when it came to the recorder
	}
	if t == nil {
		t = &typeState{url: req.url, version: "0"}
	}
	return s.push(sub, t)
}

// push sends all of a type, or on a delta stream what differs from what the client has.
func (s *stream) push(sub *subscription, t *typeState) error {
	if !s.delta {
		return s.send(sotwResponse(t, s.next()))
	}
	now := make(map[string]string, len(t.resources))
	var changed []resource
	for _, r := range t.resources {
		if has, ok := sub.has[r.name]; !ok || has != r.version {
			changed = append(changed, r)
		}
		now[r.name] = r.version
	}
	var removed []string
	for name := range sub.has {
		if _, ok := now[name]; !ok {
			removed = append(removed, name)
		}
	}
	slices.Sort(removed)
	if sub.sent && len(changed)+len(removed) == 0 {
		return nil
	}
	sub.has, sub.sent = now, true
	return s.send(deltaResponse(t, changed, removed, s.next()))
}

// next returns the nonce of the next response.
func (s *stream) next() string {
	s.nonce++
	return strconv.Itoa(s.nonce)
}
