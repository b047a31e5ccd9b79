package downstream

import (
	"errors"
	"fmt"
	"net"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/keepalive"

	"meshrelay/downstream/admit"
	"meshrelay/downstream/refusal"
	"meshrelay/downstream/views"
	"meshrelay/internal/identity"
)

const (
	// receiveWindow and streamWindow are the bytes that a client may send before the relay reads them, for a
	// connection and for a stream. gRPC enlarges the window of a stream for a larger request.
	receiveWindow = 1 << 20
	streamWindow  = 64 << 10
	// readBuffer is the largest read from a connection, in bytes. It is small because requests are small and
	// clients are many.
	readBuffer = 1 << 10
	// streamsPerConnection bounds the streams of a connection, and maxHeaderBytes the headers of a stream.
	streamsPerConnection = 100
	maxHeaderBytes       = 16 << 10
	// connectionTimeout bounds the handshakes of a connection.
	connectionTimeout = 20 * time.Second
	// keepaliveTimeout bounds the wait for the answer to a keepalive ping.
	keepaliveTimeout = 10 * time.Second
)

// Listener is one address to serve on.
type Listener struct {
	// Address is host:port. Port 0 means any.
	Address string
	// TLS is nil for plaintext.
	TLS *TLS
	// View names the view of all clients of the listener. Only the identities of the view's Match count then.
	View string
	// Debug is DebugOff (default), DebugLoopback or DebugVerified: the clients that may request debug types.
	Debug string

	number int // its place in Config.Listeners
}

// requestBytes returns the largest size of a request. It is larger where clients must have a certificate.
func (l *Listener) requestBytes(limits *Limits) int {
	if l.TLS.verifies() && !l.TLS.AllowAnonymous {
		return limits.MaxRequestBytes
	}
	return min(limits.MaxRequestBytes, admit.OpenRequestBytes)
}

// forViews returns what package views needs of the listener.
func (l *Listener) forViews() views.Listener {
	return views.Listener{Address: l.Address, View: l.View, Verifies: l.TLS.verifies()}
}

func listenersOf(all []Listener) (out []views.Listener) {
	for i := range all {
		out = append(out, all[i].forViews())
	}
	return out
}

// listener is an open Listener with its gRPC server.
type listener struct {
	address   string
	lis       net.Listener
	admission *admit.Admission
	server    *grpc.Server
}

// listen opens all listeners. After an error, it closes those that it opened.
func (s *Server) listen() (opened []*listener, err error) {
	defer func() {
		if err != nil {
			for _, l := range opened {
				l.lis.Close()
			}
		}
	}()
	for i := range s.cfg.Listeners {
		cfg := &s.cfg.Listeners[i]
		cfg.number = i
		auth, err := newAuthenticator(cfg.TLS)
		if err != nil {
			return opened, fmt.Errorf("downstream.listeners[%d].tls: listener %s: %w", i, cfg.Address, err)
		}
		if auth != nil {
			s.auth[cfg] = auth
		}
		lis, err := s.cfg.listen("tcp", cfg.Address)
		if err != nil {
			return opened, fmt.Errorf("downstream.listeners[%d].address: %w", i, err)
		}
		creds := auth.credentials()
		if cfg.TLS != nil {
			creds = watchedCreds{creds, auth.trust != nil, func(from net.Addr, err error) {
				s.refuse(s.log.With("listener", cfg.Address), "client refused", identity.Identity{}, from, refusal.Handshake, err)
			}}
		}
		l := &listener{
			address: lis.Addr().String(), lis: s.admission.Listen(lis, i), admission: s.admission,
			server: grpc.NewServer(s.serverOptions(cfg, creds)...),
		}
		discoveryv3.RegisterAggregatedDiscoveryServiceServer(l.server, service{s, cfg})
		opened = append(opened, l)
		s.log.Info("listening for xDS clients", "address", l.address, "tls", cfg.TLS != nil)
	}
	return opened, nil
}

func (s *Server) serverOptions(l *Listener, creds credentials.TransportCredentials) []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.Creds(admit.Credentials{TransportCredentials: creds, Identify: l.TLS.proves}), grpc.StatsHandler(admit.Handler{}),
		grpc.ForceServerCodecV2(codec{encoding.GetCodecV2("proto")}),
		grpc.MaxConcurrentStreams(streamsPerConnection),
		grpc.MaxRecvMsgSize(l.requestBytes(s.limits.Load())),
		grpc.MaxHeaderListSize(maxHeaderBytes),
		// A client sends headers once for each stream, so a compression table would only take memory.
		grpc.HeaderTableSize(0),
		// Fixed windows: gRPC would send a ping with each ACK to adapt them.
		grpc.StaticStreamWindowSize(streamWindow), grpc.StaticConnWindowSize(receiveWindow),
		grpc.ReadBufferSize(readBuffer),
		grpc.ConnectionTimeout(connectionTimeout),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{
			// istiod pings every 30 s, other clients more often (PROTOCOL S22).
			MinTime: 10 * time.Second, PermitWithoutStream: true,
		}),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			MaxConnectionIdle: s.cfg.timeouts.idle, MaxConnectionAge: s.cfg.timeouts.age, MaxConnectionAgeGrace: connectionAgeGrace,
			Time: 30 * time.Second, Timeout: keepaliveTimeout,
		}),
	}
}

func (l *listener) serve() error {
	if err := l.server.Serve(l.lis); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return err
	}
	return nil
}

// stop sends a GOAWAY, and after timeout closes the connections that are still open. It first closes
// connections in their handshake, because GracefulStop would wait for them. After timeout it closes TCP
// connections directly, because a close of TLS sends an alert first.
func (l *listener) stop(timeout time.Duration) {
	l.admission.Shut(false)
	cut := time.AfterFunc(timeout, func() {
		l.admission.Shut(true)
		l.server.Stop()
	})
	defer cut.Stop()
	l.server.GracefulStop()
}

// service implements the gRPC service with a Server and one of its listeners.
type service struct {
	s        *Server
	listener *Listener
}

func (a service) StreamAggregatedResources(stream discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
	return a.s.serve(stream, protocolSotW, a.listener)
}

func (a service) DeltaAggregatedResources(stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	return a.s.serve(stream, protocolDelta, a.listener)
}
