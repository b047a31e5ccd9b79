package adsclient

import (
	"bufio"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/experimental"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/mem"
)

const (
	// pingAfter and pingTimeout keep a connection alive, and notice when it is dead:
	// within 40 s of the last that came. istiod ends connections that ping more often than
	// every 15 s (PROTOCOL C17).
	pingAfter   = 30 * time.Second
	pingTimeout = 10 * time.Second
	// dialTimeout is for a TCP connection, shared by the addresses of a name;
	// connectTimeout is for that and all handshakes.
	dialTimeout    = 10 * time.Second
	connectTimeout = 20 * time.Second
	// maxHeaderBytes bounds a server's headers and trailers.
	maxHeaderBytes = 64 << 10
	// maxProxyAnswer bounds what a proxy says before it is one.
	maxProxyAnswer = 16 << 10
)

// connect returns a connection to an address, which is not opened before it is used, and
// what counts its bytes. Responses are received into pool.
func (c *Client) connect(address string, pool mem.BufferPool) (*grpc.ClientConn, *meter, error) {
	m := &meter{}
	dial := func(ctx context.Context, address string) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(ctx, dialTimeout)
		defer cancel()
		conn, err := c.cfg.dialer.dial(ctx, address)
		if err != nil {
			return nil, err
		}
		return &meteredConn{Conn: conn, meter: m}, nil
	}
	opts := c.cfg.DialOptions
	if c.cfg.Gzip {
		// Of this connection: what is registered counts for the whole process.
		opts = append(slices.Clone(opts), grpc.WithDecompressor(zipped{c.cfg.MaxResponseBytes / 4})) //nolint:staticcheck // there is no other way
	}
	// passthrough: the dialer looks the name up, anew for each connection.
	conn, err := grpc.NewClient("passthrough:///"+address, append([]grpc.DialOption{
		grpc.WithContextDialer(dial),
		grpc.WithKeepaliveParams(c.cfg.keepalive),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.DefaultConfig, MinConnectTimeout: c.cfg.connectTimeout}),
		grpc.WithMaxHeaderListSize(maxHeaderBytes),
		grpc.WithDefaultCallOptions(
			grpc.MaxCallRecvMsgSize(c.cfg.MaxResponseBytes),
			grpc.ForceCodecV2(codec{encoding.GetCodecV2("proto")}),
		),
		grpc.WithDisableServiceConfig(),
		experimental.WithBufferPool(pool),
	}, opts...)...)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", address, err)
	}
	return conn, m, nil
}

func keepaliveParams() keepalive.ClientParameters {
	return keepalive.ClientParameters{Time: pingAfter, Timeout: pingTimeout, PermitWithoutStream: false}
}

// meter counts the bytes of a connection, those of TLS included, in both directions.
type meter struct{ bytes atomic.Int64 }

type meteredConn struct {
	net.Conn
	meter *meter
}

func (c *meteredConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.meter.bytes.Add(int64(n))
	return n, err
}

func (c *meteredConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.meter.bytes.Add(int64(n))
	return n, err
}

// dialer opens TCP connections, through an HTTP proxy where the environment says so. All
// addresses that a name has are tried.
type dialer struct {
	net   net.Dialer
	proxy func(*http.Request) (*url.URL, error)
}

// newDialer returns a dialer whose connections break when what was sent is not
// acknowledged for as long as lost. gRPC does that to connections that nobody has wrapped.
func newDialer(lost time.Duration) *dialer {
	return &dialer{net: net.Dialer{Control: setUserTimeout(lost)}, proxy: http.ProxyFromEnvironment}
}

func (d *dialer) dial(ctx context.Context, address string) (net.Conn, error) {
	proxy, err := d.proxy(&http.Request{URL: &url.URL{Scheme: "https", Host: address}})
	if err != nil {
		return nil, fmt.Errorf("HTTPS_PROXY: %w", err)
	}
	if proxy == nil {
		return d.net.DialContext(ctx, "tcp", address)
	}
	if proxy.Scheme != "http" {
		return nil, fmt.Errorf("HTTPS_PROXY: %s: want http://host:port", proxy.Redacted())
	}
	at := proxy.Host
	if proxy.Port() == "" {
		at = net.JoinHostPort(proxy.Hostname(), "80")
	}
	conn, err := d.net.DialContext(ctx, "tcp", at)
	if err != nil {
		return nil, fmt.Errorf("proxy %s: %w", at, err)
	}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	tunnel, err := openTunnel(conn, proxy, address)
	if !stop() {
		err = errors.Join(err, ctx.Err())
	}
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("proxy %s: %w", at, err)
	}
	return tunnel, nil
}

// openTunnel asks a proxy for a connection to an address.
func openTunnel(conn net.Conn, proxy *url.URL, address string) (net.Conn, error) {
	req := &http.Request{Method: http.MethodConnect, URL: &url.URL{Host: address}, Host: address, Header: http.Header{}}
	if u := proxy.User; u != nil {
		password, _ := u.Password()
		req.Header.Set("Proxy-Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte(u.Username()+":"+password)))
	}
	if err := req.Write(conn); err != nil {
		return nil, err
	}
	limited := &io.LimitedReader{R: conn, N: maxProxyAnswer}
	r := bufio.NewReader(limited)
	resp, err := http.ReadResponse(r, req)
	if err != nil {
		return nil, fmt.Errorf("CONNECT: %w", err)
	}
	resp.Body.Close() // there is none: what follows is the server's
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("CONNECT %s: %s", address, strings.TrimSpace(resp.Status))
	}
	early, err := r.Peek(r.Buffered())
	if err != nil {
		return nil, err
	}
	if len(early) == 0 {
		return conn, nil
	}
	return &earlyConn{Conn: conn, early: early}, nil
}

// earlyConn is a connection of which some was read too early.
type earlyConn struct {
	net.Conn
	early []byte
}

func (c *earlyConn) Read(b []byte) (int, error) {
	if len(c.early) == 0 {
		return c.Conn.Read(b)
	}
	n := copy(b, c.early)
	c.early = c.early[n:]
	return n, nil
}
