package downstream

import (
	"errors"
	"fmt"
	"math"
	"net"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/keepalive"

	"meshrelay/downstream/refusal"
)

const (
	// receiveWindow and streamWindow are how many bytes of requests may wait, of a connection and of
	// a stream. A larger request is let through as a whole.
	receiveWindow = 1 << 20
	streamWindow  = 64 << 10
	// readBuffer is the most bytes that one system call reads: requests are small, clients many.
	readBuffer = 1 << 10
	// connectionTimeout bounds the handshakes of a connection.
	connectionTimeout = 20 * time.Second
	// keepaliveTimeout is how long a client may be silent when it is asked for a sign.
	keepaliveTimeout = 10 * time.Second
)

// Listener is one address to serve on.
type Listener struct {
	// Address is host:port. Port 0 means any.
	Address string
	// TLS is nil for plaintext.
	TLS *TLS
	// View names the view of all clients of the listener. Of its Match only the identities count.
	View string
	// Debug is DebugOff (default), DebugLoopback or DebugVerified: who may ask the debug types.
	Debug string
}

// listener is a Listener at work.
type listener struct {
	address     string
	lis         net.Listener
	connLimiter *connLimiter
	server      *grpc.Server
	close       func()
}

// listen opens every listener, or none.
func (s *Server) listen() (opened []*listener, err error) {
	defer func() {
		if err != nil {
			for _, l := range opened {
				l.lis.Close()
				l.close()
			}
		}
	}()
	for i := range s.cfg.Listeners {
		cfg := &s.cfg.Listeners[i]
		trust, err := newTrust(cfg.TLS)
		if err != nil {
			return opened, fmt.Errorf("downstream.listeners[%d].tls: listener %s: %w", i, cfg.Address, err)
		}
		creds, closeCreds, err := cfg.TLS.credentials(trust)
		if err != nil {
			return opened, fmt.Errorf("downstream.listeners[%d].tls: listener %s: %w", i, cfg.Address, err)
		}
		if trust != nil {
			s.trust[cfg] = trust
		}
		lis, err := net.Listen("tcp", cfg.Address)
		if err != nil {
			closeCreds()
			return opened, fmt.Errorf("downstream.listeners[%d].address: %w", i, err)
		}
		if cfg.TLS != nil {
			creds = watchedCreds{creds, func(from net.Addr, err error) {
				s.refuse(s.log.With("listener", cfg.Address), "client refused", from, refusal.Handshake, err)
			}}
		}
		l := &listener{address: lis.Addr().String(), lis: s.connLimiter.behind(lis), connLimiter: s.connLimiter, close: closeCreds, server: grpc.NewServer(s.serverOptions(creds)...)}
		discoveryv3.RegisterAggregatedDiscoveryServiceServer(l.server, service{s, cfg})
		opened = append(opened, l)
		s.log.Info("listening for xDS clients", "address", l.address, "tls", cfg.TLS != nil)
	}
	return opened, nil
}

func (s *Server) serverOptions(creds credentials.TransportCredentials) []grpc.ServerOption {
	options := []grpc.ServerOption{
		grpc.Creds(meteredCreds{creds, s.receiving}), grpc.StatsHandler(metering{}),
		grpc.ForceServerCodecV2(codec{encoding.GetCodecV2("proto")}),
		grpc.MaxConcurrentStreams(uint32(s.cfg.MaxStreamsPerConnection)),
		grpc.MaxRecvMsgSize(s.cfg.MaxRequestBytes),
		// Headers up to this are refused by name (Server.admit), larger ones by the transport.
		grpc.MaxHeaderListSize(uint32(min(2*uint64(s.cfg.MaxHeaderBytes), math.MaxUint32))),
		// Clients send headers once in a stream, so that a table of them would only be kept.
		grpc.HeaderTableSize(0),
		// Fixed windows: to find out how large they should be costs a ping for each ACK.
		grpc.StaticStreamWindowSize(streamWindow), grpc.StaticConnWindowSize(receiveWindow),
		grpc.ReadBufferSize(readBuffer),
		grpc.ConnectionTimeout(connectionTimeout),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{
			// istiod pings every 30 s, other clients more often (PROTOCOL S22).
			MinTime: 10 * time.Second, PermitWithoutStream: true,
		}),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			MaxConnectionIdle: s.cfg.MaxConnectionIdle,
			MaxConnectionAge:  s.cfg.MaxConnectionAge, MaxConnectionAgeGrace: s.cfg.MaxConnectionAgeGrace,
			Time: 30 * time.Second, Timeout: keepaliveTimeout,
		}),
	}
	if s.cfg.Gzip {
		// Of this server: to register it would be for the whole process.
		options = append(options, grpc.RPCDecompressor(grpc.NewGZIPDecompressor())) //nolint:staticcheck // there is no other way
	}
	return options
}

func (l *listener) serve() error {
	defer l.close()
	if err := l.server.Serve(l.lis); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return err
	}
	return nil
}

// stop ends the streams with a GOAWAY, and what remains after timeout by closing the connections. It
// closes those without a finished handshake at once, as gRPC would wait for them, and the last ones
// below TLS, which would send each a farewell.
func (l *listener) stop(timeout time.Duration) {
	l.connLimiter.close(false)
	cut := time.AfterFunc(timeout, func() {
		l.connLimiter.close(true)
		l.server.Stop()
	})
	defer cut.Stop()
	l.server.GracefulStop()
}

// service is the Server as gRPC's generated code wants it.
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
