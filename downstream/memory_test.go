package downstream

import (
	"context"
	"fmt"
	"net"
	"sync"

	"google.golang.org/grpc/test/bufconn"
)

// memoryBuffer is how many bytes of a connection in memory are written that nobody reads.
const memoryBuffer = 64 << 10

// memory is a network in memory. Unlike TCP, it is for bubbles of testing/synctest: time passes there while
// goroutines wait for it.
type memory struct {
	mu        sync.Mutex
	listeners map[string]*memoryListener // by address
	ports     int                        // the last one in use
}

type memoryListener struct {
	*bufconn.Listener
	addr net.Addr

	connecting sync.Mutex // held until a connection is accepted
	sources    chan net.Addr
}

func (l *memoryListener) Addr() net.Addr { return l.addr }

func (l *memoryListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return memoryConn{c, l.addr, <-l.sources}, nil
}

// memoryConn is a connection with addresses.
type memoryConn struct {
	net.Conn
	local, remote net.Addr
}

func (c memoryConn) LocalAddr() net.Addr  { return c.local }
func (c memoryConn) RemoteAddr() net.Addr { return c.remote }

func (m *memory) address(ip net.IP) net.Addr {
	m.ports++
	return &net.TCPAddr{IP: ip, Port: m.ports}
}

// listen is as net.Listen. It gives each listener a port of its own, whatever it asks for.
func (m *memory) listen(_, _ string) (net.Listener, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	l := &memoryListener{Listener: bufconn.Listen(memoryBuffer), addr: m.address(net.IPv4(127, 0, 0, 1)), sources: make(chan net.Addr, 1)}
	if m.listeners == nil {
		m.listeners = map[string]*memoryListener{}
	}
	m.listeners[l.addr.String()] = l
	return l, nil
}

// connect opens a connection from an IP address to a listener.
func (m *memory) connect(ctx context.Context, ip, to string) (net.Conn, error) {
	m.mu.Lock()
	l, source := m.listeners[to], m.address(net.ParseIP(ip))
	m.mu.Unlock()
	if l == nil {
		return nil, fmt.Errorf("nobody listens on %s", to)
	}
	l.connecting.Lock()
	defer l.connecting.Unlock()
	l.sources <- source
	c, err := l.DialContext(ctx)
	if err != nil {
		<-l.sources
		return nil, err
	}
	return memoryConn{c, source, l.addr}, nil
}
