package adsclient

import (
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/keepalive"
)

const (
	// pingAfter and pingTimeout keep a connection alive, and detect within 40 s that it is dead. An
	// istiod ends connections that ping more often than every 15 s (PROTOCOL C17).
	pingAfter   = 30 * time.Second
	pingTimeout = 10 * time.Second
	// calmPingAfter is for servers that end a connection for pings. By default, gRPC servers do so for pings
	// more often than every 5 min. A dead connection is then found within 5 min 20 s.
	calmPingAfter = 5*time.Minute + 10*time.Second
	// connectTimeout bounds a connection attempt, with its handshakes.
	connectTimeout = 20 * time.Second
	// maxHeaderBytes bounds the headers and trailers of a server.
	maxHeaderBytes = 64 << 10
)

// connect returns a connection to an address, which opens with its first stream. What it brings counts
// in r.
func (c *Client) connect(address string, r *receiver, witness *Witness) (*grpc.ClientConn, error) {
	opts := []grpc.DialOption{
		grpc.WithKeepaliveParams(c.pings(address)),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.DefaultConfig, MinConnectTimeout: c.cfg.connectTimeout}),
		grpc.WithMaxHeaderListSize(maxHeaderBytes),
		grpc.WithDefaultCallOptions(
			grpc.MaxCallRecvMsgSize(c.cfg.MaxResponseBytes),
			grpc.ForceCodecV2(codec{encoding.GetCodecV2("proto")}),
		),
		grpc.WithDisableServiceConfig(),
		grpc.WithStaticStreamWindowSize(streamWindow), grpc.WithStaticConnWindowSize(connWindow),
	}
	// passthrough: the dialer resolves the name for each connection, and tries all its addresses.
	conn, err := grpc.NewClient("passthrough:///"+address, slices.Concat(opts, witness.Options(countedCreds{c.cfg.Credentials, r}), c.cfg.DialOptions)...)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", address, err)
	}
	return conn, nil
}

// pings returns how an address is pinged. gRPC would calm down, too, but only on the connection that has ended.
func (c *Client) pings(address string) keepalive.ClientParameters {
	p := c.cfg.keepalive
	if c.pinged[address] {
		p.Time = max(p.Time, calmPingAfter)
	}
	return p
}

func keepaliveParams() keepalive.ClientParameters {
	return keepalive.ClientParameters{Time: pingAfter, Timeout: pingTimeout, PermitWithoutStream: false}
}
