package fakekube

import (
	"context"
	"net"
	"net/http/httptest"
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
	frozen  atomic.Pointer[atomic.Bool] // of the connections that begin now
}

// listen returns a listener with an address of its own, for which a certificate of httptest is valid.
func listen(t testing.TB) *listener {
	l := &listener{Listener: bufconn.Listen(64 << 10), address: net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: int(ports.Add(1))}}
	l.frozen.Store(&atomic.Bool{})
	listeners.Store(l.address.String(), l)
	t.Cleanup(func() { listeners.Delete(l.address.String()) })
	return l
}

// Addr implements net.Listener.
func (l *listener) Addr() net.Addr { return &l.address }

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return conn{c, l.frozen.Load()}, nil
}

// conn is an end of a connection.
type conn struct {
	net.Conn
	frozen *atomic.Bool // what is written arrives nowhere
}

// Write implements net.Conn.
func (c conn) Write(p []byte) (int, error) {
	if c.frozen.Load() {
		return len(p), nil
	}
	return c.Conn.Write(p)
}

// Dial connects to a server of StartInMemory.
func Dial(ctx context.Context, network, address string) (net.Conn, error) {
	l, is := listeners.Load(address)
	if !is {
		return nil, &net.OpError{Op: "dial", Net: network, Err: syscall.ECONNREFUSED}
	}
	c, err := l.(*listener).DialContext(ctx)
	if err != nil {
		return nil, err
	}
	return conn{c, l.(*listener).frozen.Load()}, nil
}

// Freeze has the connections of a server in memory carry nothing more, and stay open: those that there are, and those
// that begin before the server thaws.
func Freeze(server *httptest.Server) { listenerOf(server).frozen.Load().Store(true) }

// Thaw has new connections of a server in memory carry all. Those of before do not.
func Thaw(server *httptest.Server) { listenerOf(server).frozen.Store(&atomic.Bool{}) }

func listenerOf(server *httptest.Server) *listener {
	l, _ := listeners.Load(server.Listener.Addr().String())
	return l.(*listener)
}
