package adsclient

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"
)

var (
	errHTTP    = errors.New("an HTTP server answers there, not an xDS server")
	errHangsUp = errors.New("the server closes the connection at once")
)

// Witness keeps what the errors of a gRPC connection have only as text: why the connection failed before the
// server said anything, and whether the server has ended the newest stream.
type Witness struct {
	cause atomic.Pointer[connectionError]
	ended atomic.Bool
}

// Options make a connection with these credentials have w as its witness.
func (w *Witness) Options(creds credentials.TransportCredentials) []grpc.DialOption {
	return []grpc.DialOption{grpc.WithTransportCredentials(watchedCreds{creds, w}), grpc.WithStatsHandler(w)}
}

// Explain returns an error of the connection in plain words, with a cure if one is known.
func (w *Witness) Explain(err error) error { return explain(w.plain(err)) }

// plain returns the cause of an error of gRPC, without what its layers add. It keeps the code. It returns other errors
// unchanged.
func (w *Witness) plain(err error) error {
	s, ok := err.(interface{ GRPCStatus() *status.Status }) // what wraps one has words of its own
	if !ok {
		return err
	}
	if cause := w.cause.Load(); cause != nil && s.GRPCStatus().Code() == codes.Unavailable {
		return cause
	}
	return plain(s.GRPCStatus())
}

// connectionError is an error of a connection that the server has not used.
type connectionError struct{ error }

func (e *connectionError) Unwrap() error { return e.error }

// GRPCStatus makes status.Code work.
func (e *connectionError) GRPCStatus() *status.Status {
	return status.New(codes.Unavailable, e.Error())
}

// TagRPC implements stats.Handler.
func (w *Witness) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context {
	w.ended.Store(false)
	return ctx
}

// HandleRPC implements stats.Handler.
func (w *Witness) HandleRPC(_ context.Context, s stats.RPCStats) {
	if _, ok := s.(*stats.InTrailer); ok {
		w.ended.Store(true)
	}
}

// TagConn implements stats.Handler.
func (*Witness) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

// HandleConn implements stats.Handler.
func (*Witness) HandleConn(context.Context, stats.ConnStats) {}

type watchedCreds struct {
	credentials.TransportCredentials
	witness *Witness
}

// ClientHandshake implements credentials.TransportCredentials.
func (c watchedCreds) ClientHandshake(ctx context.Context, authority string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	c.witness.cause.Store(nil)
	secure, info, err := c.TransportCredentials.ClientHandshake(ctx, authority, conn)
	if err != nil {
		c.witness.cause.Store(&connectionError{fmt.Errorf("TLS handshake failed: %w", err)})
		return secure, info, err
	}
	return &watchedConn{Conn: secure, witness: c.witness}, info, nil
}

// Clone implements credentials.TransportCredentials.
func (c watchedCreds) Clone() credentials.TransportCredentials {
	return watchedCreds{c.TransportCredentials.Clone(), c.witness}
}

// watchedConn looks at the first bytes that a server sends, or what comes instead of them.
type watchedConn struct {
	net.Conn
	witness *Witness
	read    bool
}

func (c *watchedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.read || n == 0 && err == nil {
		return n, err
	}
	c.read = true
	switch {
	case bytes.HasPrefix(b[:n], []byte("HTTP/1")):
		c.witness.cause.Store(&connectionError{errHTTP})
	case n > 0 || errors.Is(err, net.ErrClosed):
	case errors.Is(err, io.EOF):
		c.witness.cause.Store(&connectionError{errHangsUp})
	default: // of TLS, by which a server may refuse a certificate
		c.witness.cause.Store(&connectionError{err})
	}
	return n, err
}
