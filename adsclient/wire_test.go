package adsclient

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/time/rate"
	"google.golang.org/grpc"
)

// network is a TCP proxy that misbehaves as networks do.
type network struct {
	addr  string
	to    string
	pace  *rate.Limiter // of what the server sends, in bytes; nil: none
	after atomic.Int64  // that many bytes of the server's go through, and then none
	reset atomic.Bool   // instead of standing still
	came  atomic.Int64  // connections

	ctx  context.Context
	mu   sync.Mutex
	open map[net.Conn]bool
	work sync.WaitGroup
}

// newWire returns a proxy in front of a server. It ends with the test.
func newWire(t *testing.T, to string) *network {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	w := &network{addr: lis.Addr().String(), to: to, ctx: ctx, open: map[net.Conn]bool{}}
	w.after.Store(1 << 60)
	w.work.Go(func() {
		for {
			client, err := lis.Accept()
			if err != nil {
				return
			}
			w.came.Add(1)
			w.work.Go(func() { w.carry(client) })
		}
	})
	t.Cleanup(func() {
		cancel()
		lis.Close()
		w.cut()
		w.work.Wait()
	})
	return w
}

// freeze makes nothing more go through. What is sent is still acknowledged by the kernel,
// as it is by that of a server whose process is stopped.
func (w *network) freeze() { w.after.Store(0) }

// cut closes all connections.
func (w *network) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for c := range w.open {
		c.Close()
	}
}

func (w *network) hold(c net.Conn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.open[c] = true
}

func (w *network) drop(c net.Conn) {
	c.Close()
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.open, c)
}

func (w *network) carry(client net.Conn) {
	w.hold(client)
	defer w.drop(client)
	server, err := net.Dial("tcp", w.to)
	if err != nil {
		return
	}
	w.hold(server)
	defer w.drop(server)
	var both sync.WaitGroup
	both.Go(func() { w.copy(server, client, false); server.Close() })
	both.Go(func() { w.copy(client, server, true); client.Close() })
	both.Wait()
}

func (w *network) copy(to, from net.Conn, fromServer bool) {
	buf := make([]byte, 512)
	for {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		if fromServer {
			if w.pace != nil && w.pace.WaitN(w.ctx, n) != nil {
				return
			}
			if w.after.Add(-int64(n)) < 0 {
				if w.reset.Load() {
					to.(*net.TCPConn).SetLinger(0) //nolint:errcheck // closing it is enough then
					return
				}
				continue
			}
		} else if w.after.Load() <= 0 {
			continue
		}
		if _, err := to.Write(buf[:n]); err != nil {
			return
		}
	}
}

var errNoDial = errors.New("not dialled in this test")

// countingDialer makes connections fail, and tells what they would be to.
func countingDialer(dialled func(address string)) grpc.DialOption {
	return grpc.WithContextDialer(func(_ context.Context, address string) (net.Conn, error) {
		dialled(address)
		return nil, errNoDial
	})
}
