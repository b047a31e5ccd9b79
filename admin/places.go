package admin

import (
	"maps"
	"net"
	"slices"
	"sync"
	"time"

	"meshrelay/internal/peerkey"
)

// places is a listener with most connections at a time, three quarters of them of one peer. Where there is no place for
// a new connection, the one that has waited longest for a request is closed, and where none waits, the new one. A
// request that has not come as a whole is waited for.
type places struct {
	net.Listener
	most int

	mu    sync.Mutex // guards all below, and place.waits
	taken map[*place]struct{}
}

// place is a connection.
type place struct {
	net.Conn
	of    *places
	peer  string
	waits time.Time // since when, zero while a request is handled
}

func newPlaces(lis net.Listener, most int) *places {
	return &places{Listener: lis, most: most, taken: map[*place]struct{}{}}
}

// Accept implements net.Listener.
func (p *places) Accept() (net.Conn, error) {
	for {
		c, err := p.Listener.Accept()
		if err != nil {
			return nil, err
		}
		in := &place{Conn: c, of: p, peer: peerkey.Of(c.RemoteAddr()), waits: time.Now()}
		if p.enter(in) {
			return in, nil
		}
		c.Close()
	}
}

// enter gives a connection a place, and reports whether there was one.
func (p *places) enter(c *place) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	rivals := slices.Collect(maps.Keys(p.taken))
	own := slices.DeleteFunc(slices.Clone(rivals), func(o *place) bool { return o.peer != c.peer })
	full := len(own) >= p.most-p.most/4
	if full {
		rivals = own
	}
	if full || len(rivals) >= p.most {
		rivals = slices.DeleteFunc(rivals, func(o *place) bool { return o.waits.IsZero() })
		if len(rivals) == 0 {
			return false
		}
		oldest := slices.MinFunc(rivals, func(a, b *place) int { return a.waits.Compare(b.waits) })
		delete(p.taken, oldest)
		oldest.Conn.Close() // it does not block
	}
	p.taken[c] = struct{}{}
	return true
}

// Close implements net.Conn.
func (c *place) Close() error {
	c.of.mu.Lock()
	delete(c.of.taken, c)
	c.of.mu.Unlock()
	return c.Conn.Close()
}

// wait notes since when the connection waits for a request, zero for not at all.
func (c *place) wait(since time.Time) {
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	c.waits = since
}

type placeKey struct{}
