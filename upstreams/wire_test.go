package upstreams_test

import (
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc/test/bufconn"

	"meshrelay/internal/testing/fakexds"
)

// The servers of these tests are in memory, so that a test may run in a bubble with them. wires has the listeners by
// address, and numbers counts them.
var (
	wires   sync.Map // of *bufconn.Listener
	numbers atomic.Int64
)

// wire is a listener in memory with an address.
type wire struct {
	*bufconn.Listener
	address address
}

type address string

func (a address) Network() string { return "wire" }
func (a address) String() string  { return string(a) }
func (w wire) Addr() net.Addr     { return w.address }
func (w wire) Close() error {
	wires.CompareAndDelete(w.address.String(), w.Listener)
	return w.Listener.Close()
}

// start starts a server at an address of its own, or at that of a server that has stopped.
func start(t *testing.T, s *fakexds.Server, at ...string) *fakexds.Server {
	t.Helper()
	w := wire{bufconn.Listen(1 << 20), address(fmt.Sprintf("server-%d:15010", numbers.Add(1)))}
	if len(at) > 0 {
		w.address = address(at[0])
	}
	wires.Store(w.address.String(), w.Listener)
	s.Listener = w
	return fakexds.Start(t, s)
}

// dial connects to such a server.
func dial(ctx context.Context, address string) (net.Conn, error) {
	lis, ok := wires.Load(address)
	if !ok {
		return nil, fmt.Errorf("no server at %s", address)
	}
	return lis.(*bufconn.Listener).DialContext(ctx)
}
