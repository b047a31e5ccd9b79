package downstream

import (
	"encoding/binary"
	"errors"
	"net"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/credentials"

	"meshrelay/downstream/refusal"
)

const (
	// largeRequest is the size from which a request needs a grant before it is received.
	largeRequest = 64 << 10
	// grantWait is how long a connection waits for a grant, and grantTime how long a request
	// has, from its first byte, to be received and decoded. After that the connection ends.
	grantWait = 10 * time.Second
	grantTime = 30 * time.Second
	// maxParts bounds the streams of a connection of whose requests only a part has come.
	maxParts = 1024
)

// receiving bounds the bytes of large requests that are being received and decoded, for all
// connections together: gRPC takes in the whole of a request before anything else looks at it.
// A connection that brings a large request is not read until there is room for it.
type receiving struct {
	most    int
	wait    time.Duration
	time    time.Duration
	refused func(from net.Addr, why refusal.Reason)

	mu     sync.Mutex // guards all below
	used   int
	byKey  map[string]int
	freed  chan struct{} // closed when something is given back
	meters map[net.Addr]*meter
}

func newReceiving(maxRequest int, refused func(net.Addr, refusal.Reason)) *receiving {
	return &receiving{
		most: max(64<<20, 2*maxRequest), wait: grantWait, time: grantTime, refused: refused,
		byKey: map[string]int{}, freed: make(chan struct{}), meters: map[net.Addr]*meter{},
	}
}

var errNoGrant = errors.New("too many large requests are being received")

// take waits until n bytes of a peer may be received. One peer may have three quarters of what
// there is.
func (r *receiving) take(key string, n int) error {
	n = min(n, mostOf(r.most))
	deadline := time.NewTimer(r.wait)
	defer deadline.Stop()
	for {
		r.mu.Lock()
		if r.used+n <= r.most && r.byKey[key]+n <= mostOf(r.most) {
			r.used += n
			r.byKey[key] += n
			r.mu.Unlock()
			return nil
		}
		freed := r.freed
		r.mu.Unlock()
		select {
		case <-freed:
		case <-deadline.C:
			return errNoGrant
		}
	}
}

func (r *receiving) give(key string, n int) {
	n = min(n, mostOf(r.most))
	r.mu.Lock()
	defer r.mu.Unlock()
	r.used -= n
	if r.byKey[key] -= n; r.byKey[key] == 0 {
		delete(r.byKey, key)
	}
	close(r.freed)
	r.freed = make(chan struct{})
}

// meterOf returns the meter of the connection with a remote address.
func (r *receiving) meterOf(addr net.Addr) *meter {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.meters[addr]
}

// meteredCreds meter the connections that have passed the handshake of others.
type meteredCreds struct {
	credentials.TransportCredentials
	receiving *receiving
	most      int // bytes of a request; gRPC refuses larger ones by itself
}

func (c meteredCreds) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := c.TransportCredentials.ServerHandshake(conn)
	if err != nil {
		return conn, info, err
	}
	m := &meter{Conn: conn, all: c.receiving, most: c.most, addr: conn.RemoteAddr(), preface: len(http2Preface), parts: map[uint32]part{}}
	m.key = addressKey(m.addr)
	return m, info, nil
}

// http2Preface is what a client sends first.
const http2Preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

// meter is a connection that follows the frames of HTTP/2, and in those the requests of gRPC,
// as far as it takes to know how long each request is when it begins.
type meter struct {
	net.Conn
	all  *receiving
	most int
	addr net.Addr
	key  string

	// Of the goroutine that reads.
	preface int // bytes of it that are still to come
	head    [9]byte
	have    int // bytes of head
	left    int // bytes of the frame that are still to come
	pad     int // of those, bytes at the end that are padding
	padded  bool
	data    bool // it is a DATA frame
	stream  uint32
	now     part            // of the frame's stream
	parts   map[uint32]part // of streams of whose request a part has come

	mu     sync.Mutex // guards all below
	closed bool
	grants []*grant
}

// part is what has come of a request.
type part struct {
	head [5]byte
	have uint8 // bytes of head
	left uint32
}

// grant is a request that is being received, or that nobody has decoded yet.
type grant struct {
	stream uint32
	size   int
	timer  *time.Timer
}

// RemoteAddr is the same each time: streams are told it, and find the meter by it.
func (m *meter) RemoteAddr() net.Addr { return m.addr }

func (m *meter) Read(b []byte) (int, error) {
	if m.preface == len(http2Preface) { // from now on gRPC closes it
		m.all.mu.Lock()
		m.all.meters[m.addr] = m
		m.all.mu.Unlock()
	}
	n, err := m.Conn.Read(b)
	if ferr := m.follow(b[:n]); ferr != nil {
		m.all.refused(m.addr, refusal.Receiving)
		m.Close()
		return 0, ferr
	}
	return n, err
}

func (m *meter) Close() error {
	m.all.mu.Lock()
	if m.all.meters[m.addr] == m {
		delete(m.all.meters, m.addr)
	}
	m.all.mu.Unlock()
	m.mu.Lock()
	m.closed = true
	m.mu.Unlock()
	m.drop(func(*grant) bool { return true }, false)
	return m.Conn.Close()
}

// Numbers of HTTP/2.
const (
	frameData, frameReset = 0, 3
	flagPadded            = 8
)

// follow takes account of what was read.
func (m *meter) follow(b []byte) error {
	n := min(len(b), m.preface)
	m.preface -= n
	b = b[n:]
	for len(b) > 0 {
		if m.have < len(m.head) {
			n := copy(m.head[m.have:], b)
			m.have += n
			b = b[n:]
			if m.have == len(m.head) {
				m.frame()
			}
			if m.have < len(m.head) || m.left > 0 {
				continue
			}
		}
		n := min(len(b), m.left)
		if err := m.payload(b[:n]); err != nil {
			return err
		}
		b = b[n:]
		if m.left -= n; m.left == 0 {
			if err := m.end(); err != nil {
				return err
			}
		}
	}
	return nil
}

// frame begins a frame, whose head has come.
func (m *meter) frame() {
	m.left = int(m.head[0])<<16 | int(m.head[1])<<8 | int(m.head[2])
	m.stream = binary.BigEndian.Uint32(m.head[5:]) & (1<<31 - 1)
	m.data, m.pad = m.head[3] == frameData, 0
	m.padded = m.data && m.head[4]&flagPadded != 0
	if m.data {
		m.now = m.parts[m.stream]
	}
}

// payload takes the next bytes of a frame.
func (m *meter) payload(b []byte) error {
	if !m.data {
		return nil
	}
	left := m.left
	if m.padded && len(b) > 0 {
		m.padded, m.pad = false, int(b[0])
		b, left = b[1:], left-1
	}
	if own := left - m.pad; own < len(b) {
		b = b[:max(own, 0)]
	}
	for len(b) > 0 {
		p := &m.now
		if int(p.have) < len(p.head) {
			n := copy(p.head[p.have:], b)
			p.have += uint8(n)
			b = b[n:]
			if int(p.have) < len(p.head) {
				return nil
			}
			p.left = binary.BigEndian.Uint32(p.head[1:])
			if size := int(p.left); size > largeRequest && size <= m.most {
				if err := m.begin(size); err != nil {
					return err
				}
			}
		}
		n := min(len(b), int(p.left))
		b = b[n:]
		if p.left -= uint32(n); p.left == 0 {
			*p = part{}
		}
	}
	return nil
}

// end ends a frame.
func (m *meter) end() error {
	m.have = 0
	switch {
	case m.data && m.now.have > 0:
		m.parts[m.stream] = m.now
		if len(m.parts) > maxParts {
			return errNoGrant
		}
	case m.data && len(m.parts) > 0:
		delete(m.parts, m.stream)
	case m.head[3] == frameReset:
		delete(m.parts, m.stream)
		m.drop(func(g *grant) bool { return g.stream == m.stream }, false)
	}
	return nil
}

// begin waits until a request of that size may be received.
func (m *meter) begin(size int) error {
	if err := m.all.take(m.key, size); err != nil {
		return err
	}
	g := &grant{stream: m.stream, size: size}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		m.all.give(m.key, size)
		return net.ErrClosed
	}
	g.timer = time.AfterFunc(m.all.time, func() {
		m.all.refused(m.addr, refusal.Receiving)
		m.Close()
	})
	m.grants = append(m.grants, g)
	return nil
}

// taken gives back the grant of a request of that size, which is decoded. One that was
// compressed had another size when it came.
func (m *meter) taken(size int) {
	if m == nil || size <= largeRequest {
		return
	}
	if !m.drop(func(g *grant) bool { return g.size == size }, true) {
		m.drop(func(*grant) bool { return true }, true)
	}
}

// drop gives back grants that match, the first or all, and reports whether there was one.
func (m *meter) drop(match func(*grant) bool, one bool) (found bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.grants = slices.DeleteFunc(m.grants, func(g *grant) bool {
		if found && one || !match(g) {
			return false
		}
		found = true
		g.timer.Stop()
		m.all.give(m.key, g.size)
		return true
	})
	return found
}
