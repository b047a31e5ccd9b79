package adsclient

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/time/rate"
)

// netProxy forwards connections to a server. Its methods may be called from any goroutine.
type netProxy struct {
	Addr  string        // of the proxy, host:port for one on loopback
	Pace  *rate.Limiter // of bytes from the server; nil: no limit. Set it before the first connection.
	After atomic.Int64  // number of bytes from the server to forward before connections stall
	Reset atomic.Bool   // connections end instead of stalling

	dial func() (net.Conn, error)
	ctx  context.Context
	mu   sync.Mutex
	open map[net.Conn]bool
	work sync.WaitGroup
}

// startProxy returns a proxy on loopback in front of a server. It ends with the test.
func startProxy(t testing.TB, to string) *netProxy {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return proxyBetween(t, lis, func() (net.Conn, error) { return net.Dial("tcp", to) })
}

// proxyBetween returns a proxy between a listener, which it closes, and a server that dial connects to. Both may
// be in memory. It ends with the test.
func proxyBetween(t testing.TB, lis net.Listener, dial func() (net.Conn, error)) *netProxy {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	p := &netProxy{Addr: lis.Addr().String(), dial: dial, ctx: ctx, open: map[net.Conn]bool{}}
	p.After.Store(1 << 60)
	p.work.Go(func() {
		for {
			client, err := lis.Accept()
			if err != nil {
				return
			}
			p.work.Go(func() { p.Carry(client) })
		}
	})
	t.Cleanup(func() {
		cancel()
		lis.Close()
		p.Cut()
		p.work.Wait()
	})
	return p
}

// Freeze stops forwarding. The kernel still acknowledges data, as for a server whose process is
// stopped.
func (p *netProxy) Freeze() { p.After.Store(0) }

// Cut closes all connections.
func (p *netProxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.open {
		c.Close()
	}
}

func (p *netProxy) hold(c net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.open[c] = true
}

func (p *netProxy) drop(c net.Conn) {
	c.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.open, c)
}

// Carry forwards a connection that the caller has accepted, until it ends.
func (p *netProxy) Carry(client net.Conn) {
	p.hold(client)
	defer p.drop(client)
	server, err := p.dial()
	if err != nil {
		return
	}
	p.hold(server)
	defer p.drop(server)
	var both sync.WaitGroup
	both.Go(func() { p.copy(server, client, false); server.Close() })
	both.Go(func() { p.copy(client, server, true); client.Close() })
	both.Wait()
}

func (p *netProxy) copy(to, from net.Conn, fromServer bool) {
	buf := make([]byte, 512)
	for {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		if fromServer {
			if p.Pace != nil && p.Pace.WaitN(p.ctx, n) != nil {
				return
			}
			if p.After.Add(-int64(n)) < 0 {
				if p.Reset.Load() {
					if tcp, ok := to.(*net.TCPConn); ok {
						tcp.SetLinger(0) //nolint:errcheck // closing it is enough then
					}
					return
				}
				continue
			}
		} else if p.After.Load() <= 0 {
			continue
		}
		if _, err := to.Write(buf[:n]); err != nil {
			return
		}
	}
}
