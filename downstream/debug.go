package downstream

import (
	"fmt"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/protobuf/types/known/anypb"

	"meshrelay/internal/loopback"
)

// The types by which istioctl asks a control plane about itself (PROTOCOL D1-D3).
// They are questions, not subscriptions: each request is answered once.
const (
	debugType       = "istio.io/debug"
	syncStatusType  = debugType + "/syncz"
	configDumpType  = debugType + "/config_dump"
	debugNotAllowed = `{"error":"debug types are not answered to this client: downstream.listeners[].debug lets clients of the relay's host or with a verified certificate ask, if no view limits them"}`
)

func isDebugType(typeURL string) bool {
	return typeURL == debugType || strings.HasPrefix(typeURL, debugType+"/")
}

func (c *conn) debugSotW(req *discoveryv3.DiscoveryRequest) *discoveryv3.DiscoveryResponse {
	return &discoveryv3.DiscoveryResponse{
		TypeUrl:      req.GetTypeUrl(),
		Resources:    c.answer(req.GetTypeUrl(), req.GetResourceNames()),
		ControlPlane: &corev3.ControlPlane{Identifier: c.server.identifier},
	}
}

func (c *conn) debugDelta(req *discoveryv3.DeltaDiscoveryRequest) *discoveryv3.DeltaDiscoveryResponse {
	resp := &discoveryv3.DeltaDiscoveryResponse{
		TypeUrl:      req.GetTypeUrl(),
		ControlPlane: &corev3.ControlPlane{Identifier: c.server.identifier},
	}
	for i, a := range c.answer(req.GetTypeUrl(), req.GetResourceNamesSubscribe()) {
		resp.Resources = append(resp.Resources, &discoveryv3.Resource{Name: fmt.Sprint(i), Resource: a})
	}
	return resp
}

func (c *conn) answer(typeURL string, names []string) []*anypb.Any {
	d := c.server.debug
	switch {
	case d == nil || typeURL == configDumpType:
		// A config_dump is an Envoy's, and there is none behind this relay.
		return nil
	case !mayDebug(c.listener, c.peer, c.isLimited()):
		return []*anypb.Any{{TypeUrl: debugType, Value: []byte(debugNotAllowed)}}
	case typeURL == syncStatusType:
		var out []*anypb.Any
		for _, cfg := range d.SyncStatus() {
			a, err := anypb.New(cfg)
			if err != nil {
				c.log.Error("encode client status", "err", err)
				continue
			}
			out = append(out, a)
		}
		return out
	case typeURL != debugType:
		return nil
	case len(names) != 1:
		return []*anypb.Any{{TypeUrl: debugType, Value: []byte(`{"error":"name exactly one debug handler, for example syncz; list names them"}`)}}
	}
	body, err := d.Handle(names[0])
	if err != nil {
		body = fmt.Appendf(nil, `{"error":%q}`, err.Error())
	}
	return []*anypb.Any{{TypeUrl: debugType, Value: body}}
}

// Who is answered the debug types on a listener (Listener.Debug).
const (
	// DebugOff is nobody.
	DebugOff = "off"
	// DebugLoopback is clients of this host: both ends of the connection are loopback, the
	// listener names no view, and no view limits the client.
	DebugLoopback = "loopback"
	// DebugVerified is clients with a certificate that the listener has verified and that no
	// view limits.
	DebugVerified = "verified"
)

// mayDebug reports whether a client of a listener may see everything (PROTOCOL D4). limited
// is whether its view shows less than everything.
func mayDebug(l *Listener, p *peer.Peer, limited bool) bool {
	if limited {
		return false
	}
	switch l.Debug {
	case DebugLoopback:
		return l.View == "" && loopback.Is(p.Addr) && loopback.Is(p.LocalAddr)
	case DebugVerified:
		info, ok := p.AuthInfo.(credentials.TLSInfo)
		return ok && len(info.State.VerifiedChains) > 0
	}
	return false
}

// isLimited reports whether the client's View hides anything from it, by configuration.
func (c *conn) isLimited() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.view == nil || c.limited
}
