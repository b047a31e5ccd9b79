package adsclient

import (
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/experimental"
	"google.golang.org/grpc/keepalive"
)

const (
	// pingAfter and pingTimeout keep a connection alive, and detect within 40 s that it is dead. An
	// istiod ends connections that ping more often than every 15 s (PROTOCOL C17).
	pingAfter   = 30 * time.Second
	pingTimeout = 10 * time.Second
	// connectTimeout bounds a connection attempt, with its handshakes.
	connectTimeout = 20 * time.Second
	// maxHeaderBytes bounds the headers and trailers of a server.
	maxHeaderBytes = 64 << 10
)

// connect returns a connection to an address, which opens with its first stream. Responses are
// received into pool.
func (c *Client) connect(address string, pool *receiver) (*grpc.ClientConn, error) {
	opts := []grpc.DialOption{
		grpc.WithTransportCredentials(meteredCreds{c.cfg.Credentials, pool}),
		grpc.WithKeepaliveParams(c.cfg.keepalive),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.DefaultConfig, MinConnectTimeout: c.cfg.connectTimeout}),
		grpc.WithMaxHeaderListSize(maxHeaderBytes),
		grpc.WithDefaultCallOptions(
			grpc.MaxCallRecvMsgSize(c.cfg.MaxResponseBytes),
			grpc.ForceCodecV2(codec{encoding.GetCodecV2("proto")}),
		),
		grpc.WithDisableServiceConfig(),
		experimental.WithBufferPool(pool),
	}
	if c.cfg.Gzip {
		// For this connection only: a registered compressor applies to the whole process.
		opts = append(opts, grpc.WithDecompressor(zipped{c.cfg.MaxResponseBytes / 4})) //nolint:staticcheck // there is no other way
	}
	// passthrough: the dialer resolves the name for each connection, and tries all its addresses.
	conn, err := grpc.NewClient("passthrough:///"+address, slices.Concat(opts, c.cfg.DialOptions)...)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", address, err)
	}
	return conn, nil
}

func keepaliveParams() keepalive.ClientParameters {
	return keepalive.ClientParameters{Time: pingAfter, Timeout: pingTimeout, PermitWithoutStream: false}
}
