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
	"meshrelay/internal/identity"
	"meshrelay/internal/loopback"
)

// The types with which istioctl asks a control plane for its state (PROTOCOL D1-D3). Each request gets one
// answer.
const (
	debugType       = "istio.io/debug"
	syncStatusType  = debugType + "/syncz"
	configDumpType  = debugType + "/config_dump"
	debugNotAllowed = `{"error":"debug types are not answered to this client: downstream.listeners[].debug lets clients of the relay's host, or with a verified certificate, ask, if no view limits them"}`
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

// slot is the stream's slot for debug documents (Debugger.Begin). The stream keeps it until the answer is
// sent. After a large answer it keeps the slot longer, because gRPC may hold the answer until the client
// reads it. conn.mu guards the fields.
type slot struct {
	end    func()        // nil: the stream has no slot
	unread *time.Timer   // ends the stream after a large answer
	reply  proto.Message // the answer to send next
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

// sent notes that an answer was sent. It calls late when timeout has passed since the
// last large answer.
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

// leftUnread ends the stream of a client that may not have read a large answer.
func (c *conn) leftUnread() {
	c.end(refusal.New(refusal.Unread, codes.DeadlineExceeded, "client has left a debug answer unread for %v", c.server.cfg.replyTimeout))
}

// reply queues the answer to a debug request.
func (c *conn) reply(typeURL string, names []string) error {
	c.mu.Lock()
	waiting, r := c.slot.reply != nil, c.rule // only this goroutine sets the reply
	c.mu.Unlock()
	if waiting {
		return refusal.New(refusal.Debug, codes.ResourceExhausted, "debug answers wait to be read: ask for one at a time")
	}
	m := c.debugMessage(typeURL, c.answer(typeURL, names))
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed:
	case !r.Limits() && c.rule.Limits(): // a reload came while the answer was made
		return errOutdated
	default:
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

// answer returns the documents of a debug request. It takes a slot before it makes a document.
func (c *conn) answer(typeURL string, names []string) []*anypb.Any {
	d := c.server.debug
	switch {
	case d == nil || typeURL == configDumpType:
		// A config_dump is about an Envoy. The relay has none.
		return nil
	case !mayDebug(c.listener, c.peer, c.who, c.isLimited()):
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

// The values of Listener.Debug: the clients that get answers to requests for debug types.
const (
	// DebugOff: no clients.
	DebugOff = "off"
	// DebugLoopback: clients on this host whose view has no limits. The listener must not name a view.
	DebugLoopback = "loopback"
	// DebugVerified: clients with a verified certificate whose view has no limits.
	DebugVerified = "verified"
)

// mayDebug reports whether a client may read debug documents (PROTOCOL D4). limited means that its view has
// limits.
func mayDebug(l *Listener, p *peer.Peer, who identity.Identity, limited bool) bool {
	if limited {
		return false
	}
	switch l.Debug {
	case DebugLoopback:
		return l.View == "" && loopback.Is(p.Addr) && loopback.Is(p.LocalAddr)
	case DebugVerified:
		_, leaf := verified(p)
		return leaf != nil || !who.IsZero()
	}
	return false
}

// isLimited reports whether the view limits what the client may read.
func (c *conn) isLimited() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.view == nil || c.rule.Limits()
}
