package adsclient

import (
	"context"
	"net"

	"google.golang.org/grpc/credentials"

	"meshrelay/internal/http2frames"
)

const (
	// maxTiny bounds the nearly empty DATA frames of a connection that wait to be read.
	maxTiny = 16 << 10
	// smallFrame is the size below which gRPC keeps a DATA frame outside the pool. frameCost is the memory
	// for such a frame in addition to its bytes.
	smallFrame = 1 << 10
	frameCost  = 64
)

// meteredCreds make a receiver count the frames after the handshake.
type meteredCreds struct {
	credentials.TransportCredentials
	receiver *receiver
}

// ClientHandshake implements credentials.TransportCredentials.
func (c meteredCreds) ClientHandshake(ctx context.Context, authority string, conn net.Conn) (_ net.Conn, _ credentials.AuthInfo, err error) {
	defer c.receiver.contain() // it runs in a goroutine of gRPC
	err = errPanic
	secure, info, err := c.TransportCredentials.ClientHandshake(ctx, authority, conn)
	if err != nil {
		return secure, info, err
	}
	return &meter{secure, c.receiver, http2frames.Follower{Begin: c.receiver.frame}}, info, nil
}

// Clone implements credentials.TransportCredentials.
func (c meteredCreds) Clone() credentials.TransportCredentials {
	return meteredCreds{c.TransportCredentials.Clone(), c.receiver}
}

// meter is a connection that counts the server's frames.
type meter struct {
	net.Conn
	receiver *receiver
	in       http2frames.Follower
}

func (m *meter) Read(b []byte) (int, error) {
	defer m.receiver.contain() // a goroutine of gRPC reads
	n, err := m.Conn.Read(b)
	if ferr := m.in.Follow(b[:n]); ferr != nil {
		return 0, ferr
	}
	return n, err
}

// frame counts a frame that gRPC keeps outside the pool. Get counts the others.
func (r *receiver) frame(f http2frames.Frame) error {
	if f.Type != http2frames.Data || f.Length >= smallFrame {
		return r.tiny.Frame(f)
	}
	n := f.Length + frameCost
	r.budget.mu.Lock()
	r.take(n)
	r.small += n
	r.budget.mu.Unlock()
	return r.tiny.Frame(f)
}
