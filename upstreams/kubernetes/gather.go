package kubernetes

import (
	"context"
	"errors"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// gathered is how many bytes a connection waits for while lists come: a server sends object by object, and
	// being woken for each costs more than decoding it. It waits for gatherMost at most.
	gathered   = 512 << 10
	gatherMost = 20 * time.Millisecond
	// gatherAfter is how many bytes of lists come as they are: what is that small is there soon.
	gatherAfter = 128 << 10
	gatherSpace = 64 << 10 // bytes that are read at once
)

// gatherer dials the connections to one server.
type gatherer struct {
	dialer net.Dialer
	lists  atomic.Int32 // that come over the connections
}

// DialContext connects to a server.
func (g *gatherer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	c, err := g.dialer.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return &gathering{Conn: c, by: g}, nil
}

// gathering is a connection whose reader sleeps until much has come, while lists do. As with any
// connection under TLS, one goroutine reads at a time.
type gathering struct {
	net.Conn
	by    *gatherer
	came  int    // bytes, while lists come
	space []byte // nil unless it gathers
	rest  []byte // of space: read, and not used
	never bool   // the system can not do it

	mu       sync.Mutex // guards deadline, and the setting of any
	deadline time.Time  // that somebody else has set: nothing is gathered meanwhile
}

// SetDeadline implements net.Conn.
func (c *gathering) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

// SetReadDeadline implements net.Conn.
func (c *gathering) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.deadline = t; t.IsZero() && c.space != nil {
		t = time.Now().Add(gatherMost) // who gathers needs one
	}
	return c.Conn.SetReadDeadline(t)
}

// Read implements net.Conn.
func (c *gathering) Read(p []byte) (int, error) {
	for len(c.rest) == 0 {
		if !c.gathers() {
			n, err := c.Conn.Read(p)
			c.came += n
			return n, err
		}
		n, err := c.Conn.Read(c.space)
		if c.rest = c.space[:n]; n == 0 && !errors.Is(err, os.ErrDeadlineExceeded) {
			return 0, err // one that comes with bytes comes again
		}
	}
	n := copy(p, c.rest)
	c.rest = c.rest[n:]
	return n, nil
}

// gathers has the next read wait for much, and reports whether it does.
func (c *gathering) gathers() bool {
	lists := c.by.lists.Load() > 0
	if !lists {
		c.came = 0
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !lists || c.came < gatherAfter || c.never || !c.deadline.IsZero() {
		if c.space != nil {
			c.space = nil
			_ = awaitBytes(c.Conn, 1)              //nolint:errcheck // reading tells what is wrong with it
			_ = c.Conn.SetReadDeadline(c.deadline) //nolint:errcheck // as above
		}
		return false
	}
	if c.space == nil {
		if c.never = awaitBytes(c.Conn, gathered) != nil; c.never {
			return false
		}
		c.space = make([]byte, gatherSpace)
	}
	return c.Conn.SetReadDeadline(time.Now().Add(gatherMost)) == nil
}
