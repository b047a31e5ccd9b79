package adsclient

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"

	"meshrelay/internal/testing/fakexds"
)

// network is a network in memory, for a bubble of synctest.
type network struct {
	mu sync.Mutex
	at map[string]*bufconn.Listener
}

// inBubble runs a test in a bubble of synctest, with a network of its own.
func inBubble(t *testing.T, test func(t *testing.T, nw *network)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(t, &network{at: map[string]*bufconn.Listener{}}) })
}

func (n *network) listen(address string) net.Listener {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.at[address] = bufconn.Listen(1 << 20)
	return n.at[address]
}

func (n *network) dial(ctx context.Context, address string) (net.Conn, error) {
	n.mu.Lock()
	lis := n.at[address]
	n.mu.Unlock()
	if lis == nil {
		return nil, errors.New("connection refused")
	}
	return lis.DialContext(ctx)
}

// serve starts a server at an address, which may be any word.
func (n *network) serve(t *testing.T, address string, s *fakexds.Server) *fakexds.Server {
	t.Helper()
	s.Listener = n.listen(address)
	fakexds.Start(t, s)
	s.Addr = address
	return s
}

// between starts a proxy at an address, in front of a server.
func (n *network) between(t *testing.T, address string, s *fakexds.Server) *netProxy {
	t.Helper()
	p := proxyBetween(t, n.listen(address), func() (net.Conn, error) { return n.dial(context.Background(), s.Addr) })
	p.Addr = address
	return p
}

// over makes clients use the network.
func (n *network) over(change func(*Config)) func(*Config) {
	return func(c *Config) {
		change(c)
		c.DialOptions = append(c.DialOptions, grpc.WithContextDialer(n.dial))
	}
}

// start starts a client that uses the network.
func (n *network) start(t *testing.T, h Handler, change func(*Config), addresses ...string) *Client {
	t.Helper()
	return start(t, h, n.over(change), addresses...)
}
