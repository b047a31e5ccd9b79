package downstream

import (
	"context"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc/peer"
)

// returnWithin is how long a client that was told to reconnect has for that.
const returnWithin = time.Minute

// returning are the hosts of clients whose connections were as old as they may become: the
// relay itself has them reconnect, and to whatever keeps it from taking on new clients they
// are none.
type returning struct {
	mu sync.Mutex
	// until is to when a client of a host may come back, for each of its streams that has
	// ended, the oldest first; count is how many these are.
	until map[string][]time.Time
	count int
	swept time.Time // when those were last forgotten that have not come
}

// expect lets one client of a host come back, unless most may already.
func (r *returning) expect(host string, most int, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.until == nil {
		r.until = map[string][]time.Time{}
	}
	if now.Sub(r.swept) > returnWithin {
		r.swept = now
		for h := range r.until {
			r.forget(h, now)
		}
	}
	if r.count < most {
		r.until[host] = append(r.until[host], now.Add(returnWithin))
		r.count++
	}
}

// take reports whether a client of a host may come back. Then it has.
func (r *returning) take(host string, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.forget(host, now)
	if len(r.until[host]) == 0 {
		return false
	}
	r.drop(host, 1)
	return true
}

// forget drops those of a host that have not come in time. The caller holds mu.
func (r *returning) forget(host string, now time.Time) {
	n := 0
	for _, until := range r.until[host] {
		if now.After(until) {
			n++
		}
	}
	r.drop(host, n)
}

func (r *returning) drop(host string, n int) {
	r.count -= n
	if left := r.until[host][n:]; len(left) > 0 {
		r.until[host] = left
	} else {
		delete(r.until, host)
	}
}

// hostOf returns the host that a stream comes from, without the port.
func hostOf(ctx context.Context) string {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return ""
	}
	host, _, err := net.SplitHostPort(p.Addr.String())
	if err != nil {
		return p.Addr.String()
	}
	return host
}

// aged reports whether a stream has ended at an age at which the relay ends connections: that
// differs by a tenth, and streams are younger than their connections. One that was opened much
// later than its connection is not counted: each place to come back has cost an old stream.
func (s *Server) aged(c *conn) bool {
	return c.name() != "" && time.Since(c.opened) >= s.cfg.MaxConnectionAge*8/10
}
