package fakekube

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"google.golang.org/grpc/test/bufconn"
)

// listeners are those of StartInMemory, by address.
var (
	listeners sync.Map
	ports     atomic.Int32
)

// listener accepts connections in memory.
type listener struct {
	*bufconn.Listener
	address net.TCPAddr
}

// listen returns a listener with an address of its own, for which a certificate of httptest is valid.
func listen(t testing.TB) *listener {
	l := &listener{Listener: bufconn.Listen(64 << 10), address: net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: int(ports.Add(1))}}
	listeners.Store(l.address.String(), l)
	t.Cleanup(func() { listeners.Delete(l.address.String()) })
	return l
}

// Addr implements net.Listener.
func (l *listener) Addr() net.Addr { return &l.address }

// Dial connects to a server of StartInMemory.
func Dial(ctx context.Context, network, address string) (net.Conn, error) {
	l, is := listeners.Load(address)
	if !is {
		return nil, &net.OpError{Op: "dial", Net: network, Err: syscall.ECONNREFUSED}
	}
	return l.(*listener).DialContext(ctx)
}
