package downstream

import (
	"strings"
	"time"

	adminv3 "github.com/envoyproxy/go-control-plane/envoy/admin/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statusv3 "github.com/envoyproxy/go-control-plane/envoy/service/status/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"meshrelay/downstream/refusal"
	"meshrelay/internal/loopback"
)

const (
	// statusType is the type that istioctl proxy-status requests (PROTOCOL D1). A request gets one answer, and is
	// no subscription. Other types of istiod's debug interface are types without resources (D2).
	statusType = "istio.io/debug/syncz"
	// maxStatusStreams bounds the streams that have asked for statusType. An answer has all clients, and gRPC holds it
	// until the client has read it.
	maxStatusStreams = 4
	// statusTimeout is how long such a stream may stay.
	statusTimeout = time.Minute
)

// askStatus notes that the client asks for the state of all clients. The sending goroutine answers.
func (c *conn) askStatus() error {
	if !mayDebug(c.listener, c.peer, c.isLimited()) {
		return refusal.New(refusal.Debug, codes.PermissionDenied,
			"debug types are not answered to this client: downstream.listeners[].debug lets clients of the relay's host, or with a verified certificate, ask, if no view limits them")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil
	}
	if c.asksStatus = true; c.statusEnd != nil {
		return nil
	}
	if !c.server.statusStreams.TryAcquire(1) {
		return refusal.New(refusal.Debug, codes.ResourceExhausted, "%d clients ask for debug types already; try again", maxStatusStreams)
	}
	timeout := c.server.cfg.timeouts.status
	c.statusEnd = time.AfterFunc(timeout, func() {
		c.end(refusal.New(refusal.Debug, codes.DeadlineExceeded, "the client asked for debug types %v ago; reconnect", timeout))
	})
	return nil
}

// leaveStatus gives up the place among the streams that have asked for statusType. The caller holds mu.
func (c *conn) leaveStatus() {
	if c.statusEnd != nil {
		c.statusEnd.Stop()
		c.statusEnd = nil
		c.server.statusStreams.Release(1)
	}
}

// sendStatus sends the state of all clients, if the client asks for it.
func (c *conn) sendStatus() error {
	c.mu.Lock()
	asks := c.asksStatus
	c.asksStatus = false
	c.mu.Unlock()
	if !asks {
		return nil
	}
	m, err := c.statusMessage()
	switch {
	case err != nil:
		return err
	case c.isLimited(): // a reload has come since the request
		return errOutdated
	}
	return c.sendMsg(m)
}

func (c *conn) statusMessage() (proto.Message, error) {
	controlPlane := &corev3.ControlPlane{Identifier: c.server.identifier}
	sotw := &discoveryv3.DiscoveryResponse{TypeUrl: statusType, ControlPlane: controlPlane}
	delta := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: statusType, ControlPlane: controlPlane}
	for _, client := range c.server.Clients() {
		a, err := anypb.New(syncStatus(client))
		if err != nil {
			return nil, err
		}
		sotw.Resources = append(sotw.Resources, a)
		delta.Resources = append(delta.Resources, &discoveryv3.Resource{Name: client.Connection, Resource: a})
	}
	if c.protocol == protocolDelta {
		return delta, nil
	}
	return sotw, nil
}

// syncStatus returns the state of a client as istiod has it. It has what the client subscribes to, which is not what
// Envoys do.
func syncStatus(c ClientStatus) *statusv3.ClientConfig {
	md := map[string]*structpb.Value{}
	for name, v := range map[string]string{"CLUSTER_ID": c.ClusterID, "NAMESPACE": c.Namespace, "ISTIO_VERSION": c.IstioVersion, "ISTIO_REVISION": c.Revision} {
		if v != "" {
			md[name] = structpb.NewStringValue(v)
		}
	}
	cfg := &statusv3.ClientConfig{Node: &corev3.Node{Id: c.NodeID, Metadata: &structpb.Struct{Fields: md}}}
	for _, t := range c.Types {
		g := &statusv3.ClientConfig_GenericXdsConfig{TypeUrl: t.TypeURL, VersionInfo: t.SentVersion, ConfigStatus: configStatus(t)}
		if !t.SentAt.IsZero() {
			g.LastUpdated = timestamppb.New(t.SentAt)
		}
		if t.LastNACK != "" {
			g.ErrorState = &adminv3.UpdateFailureState{Details: strings.ToValidUTF8(t.LastNACK, "\uFFFD")}
		}
		cfg.GenericXdsConfigs = append(cfg.GenericXdsConfigs, g)
	}
	return cfg
}

// configStatus translates the state of a type. TypeStatus.Synced is true for MeshConfig once it was sent, because
// istiod never acknowledges it (PROTOCOL S6).
func configStatus(t TypeStatus) statusv3.ConfigStatus {
	switch {
	case t.LastNACK != "":
		return statusv3.ConfigStatus_ERROR
	case t.SentNonce == "":
		return statusv3.ConfigStatus_NOT_SENT
	case t.Synced:
		return statusv3.ConfigStatus_SYNCED
	}
	return statusv3.ConfigStatus_STALE
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

// mayDebug reports whether a client may read the state of others (PROTOCOL D3). limited means that its view has limits.
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

// isLimited reports whether the view limits what the client may read.
func (c *conn) isLimited() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.view == nil || c.rule.Limits()
}
