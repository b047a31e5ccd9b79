package downstream

import (
	"fmt"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"meshrelay/downstream/refusal"
	"meshrelay/internal/loopback"
)

// The types by which istioctl asks a control plane about itself (PROTOCOL D1-D3): each request is
// answered once.
const (
	debugType       = "istio.io/debug"
	syncStatusType  = debugType + "/syncz"
	configDumpType  = debugType + "/config_dump"
	debugNotAllowed = `{"error":"debug types are not answered to this client: downstream.listeners[].debug lets clients of the relay's host or with a verified certificate ask, if no view limits them"}`
)

func isDebugType(typeURL string) bool {
	return typeURL == debugType || strings.HasPrefix(typeURL, debugType+"/")
}

const (
	// largeReply is the size, in bytes, above which the transport may hold an answer until the client reads it.
	largeReply = 64 << 10
	// replyTimeout is how long a client may keep its stream after a large answer without asking for another.
	replyTimeout = time.Minute
)

// slot is the slot of a stream for debug documents (Debugger.Begin), until the answer is sent. After a large
// answer the stream keeps the slot, as the transport may hold the answer until the client reads it. conn.mu
// guards the fields.
type slot struct {
	end    func()        // nil: the stream has no slot
	unread *time.Timer   // ends the stream after a large answer
	reply  proto.Message // waits until the last answer is sent
}

// free gives the slot back.
func (s *slot) free() {
	if s.end != nil {
		s.end()
	}
	if s.unread != nil {
		s.unread.Stop()
	}
	s.end, s.unread = nil, nil
}

// sent notes that an answer was sent. It calls late when timeout has passed since the last large one.
func (s *slot) sent(size int, timeout time.Duration, late func()) {
	switch {
	case size > largeReply && s.end != nil && s.unread == nil:
		s.unread = time.AfterFunc(timeout, late)
	case size > largeReply && s.end != nil:
		s.unread.Reset(timeout)
	case s.unread == nil && s.reply == nil:
		s.free()
	}
}

// leftUnread ends a stream whose client may have a large answer unread.
func (c *conn) leftUnread() {
	c.end(refusal.New(refusal.Unread, codes.DeadlineExceeded, "client has left a debug answer unread for %v", c.server.cfg.replyTimeout))
}

// reply queues the answer to a debug request.
func (c *conn) reply(typeURL string, names []string) error {
	c.mu.Lock()
	waiting := c.slot.reply != nil // only this goroutine sets it
	c.mu.Unlock()
	if waiting {
		return refusal.New(refusal.Debug, codes.ResourceExhausted, "debug answers wait to be read: ask for one at a time")
	}
	m := c.debugMessage(typeURL, c.answer(typeURL, names))
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.slot.reply = m
	}
	return nil
}

// begin takes a slot, if the stream has none.
func (s *slot) begin(d Debugger, closed bool) error {
	if s.end != nil || closed {
		return nil
	}
	end, err := d.Begin()
	s.end = end
	return err
}

func (c *conn) debugMessage(typeURL string, docs []*anypb.Any) proto.Message {
	controlPlane := &corev3.ControlPlane{Identifier: c.server.identifier}
	if c.protocol == protocolSotW {
		return &discoveryv3.DiscoveryResponse{TypeUrl: typeURL, Resources: docs, ControlPlane: controlPlane}
	}
	resp := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: typeURL, ControlPlane: controlPlane}
	for i, a := range docs {
		resp.Resources = append(resp.Resources, &discoveryv3.Resource{Name: fmt.Sprint(i), Resource: a})
	}
	return resp
}

// answer returns the documents of a debug request. It takes a slot for those that cost something.
func (c *conn) answer(typeURL string, names []string) []*anypb.Any {
	d := c.server.debug
	switch {
	case d == nil || typeURL == configDumpType:
		// A config_dump is an Envoy's, and there is none behind this relay.
		return nil
	case !mayDebug(c.listener, c.peer, c.isLimited()):
		return []*anypb.Any{{TypeUrl: debugType, Value: []byte(debugNotAllowed)}}
	case typeURL != syncStatusType && typeURL != debugType:
		return nil
	case typeURL == debugType && len(names) != 1:
		return []*anypb.Any{{TypeUrl: debugType, Value: []byte(`{"error":"name exactly one debug handler, for example syncz; list names them"}`)}}
	}
	c.mu.Lock()
	err := c.slot.begin(d, c.closed)
	c.mu.Unlock()
	if err != nil {
		return debugError(err)
	}
	if typeURL == debugType {
		body, err := d.Handle(names[0])
		if err != nil {
			return debugError(err)
		}
		return []*anypb.Any{{TypeUrl: debugType, Value: body}}
	}
	var out []*anypb.Any
	for _, cfg := range d.SyncStatus() {
		a, err := anypb.New(cfg)
		if err != nil {
			c.log().Error("encode client status", "err", err)
			continue
		}
		out = append(out, a)
	}
	return out
}

func debugError(err error) []*anypb.Any {
	return []*anypb.Any{{TypeUrl: debugType, Value: fmt.Appendf(nil, `{"error":%q}`, err.Error())}}
}

// The clients to which a listener answers debug types (Listener.Debug).
const (
	// DebugOff is nobody.
	DebugOff = "off"
	// DebugLoopback is clients of this host that no view limits, on a listener that names none.
	DebugLoopback = "loopback"
	// DebugVerified is clients with a verified certificate that no view limits.
	DebugVerified = "verified"
)

// mayDebug reports whether a client may see everything (PROTOCOL D4). limited: by its view.
func mayDebug(l *Listener, p *peer.Peer, limited bool) bool {
	if limited {
		return false
	}
	switch l.Debug {
	case DebugLoopback:
		return l.View == "" && loopback.Is(p.Addr) && loopback.Is(p.LocalAddr)
	case DebugVerified:
		_, leaf := verified(p)
		return leaf != nil
	}
	return false
}

// isLimited reports whether the client's View hides anything from it, by configuration.
func (c *conn) isLimited() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.view == nil || c.rule.Accepts != nil
}
