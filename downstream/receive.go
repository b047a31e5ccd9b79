package downstream

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"net"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/peer"

	"meshrelay/downstream/refusal"
	"meshrelay/internal/http2frames"
	"meshrelay/push"
)

const (
	// largeRequest is the size, in bytes, from which a request needs a grant.
	largeRequest = 4 << 10
	// grantWait is how long a connection waits for a grant, grantTime how long receiving and
	// decoding may take. After that the connection ends.
	grantWait = 10 * time.Second
	grantTime = 30 * time.Second
	// maxOpen is how many refused streams of a connection the relay follows, until the client
	// knows of the refusal.
	maxOpen = 1024
	// maxTiny is how many DATA frames of a connection may carry next to nothing.
	maxTiny = 1024
	// littleRead is how many bytes a connection reads that has waited.
	littleRead = 128
)

// receiving bounds the bytes of large requests that are received and decoded at the same time, because
// gRPC takes in all of a request first. A connection that brings one is not read until there is room.
type receiving struct {
	most    int
	wait    time.Duration
	time    time.Duration
	refused func(from net.Addr, why refusal.Reason)
	work    *push.Work
	created time.Time

	mu    sync.Mutex // guards all below
	used  int
	byKey map[string]int
	freed chan struct{} // closed when something is given back
}

func newReceiving(maxRequest int, refused func(net.Addr, refusal.Reason), work *push.Work) *receiving {
	return &receiving{
		most: max(64<<20, 2*maxRequest), wait: grantWait, time: grantTime, refused: refused, work: work, created: time.Now(),
		byKey: map[string]int{}, freed: make(chan struct{}),
	}
}

// clock returns a time to measure with, at half the cost of time.Now: a large response is written in
// many pieces.
func (r *receiving) clock() time.Duration { return time.Since(r.created) }

var errNoGrant = errors.New("too many large requests are being received")

// take waits until n bytes of a peer may be received. One peer may have three quarters.
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

// meteredInfo is what the handshake of a connection has shown, and its meter.
type meteredInfo struct {
	credentials.AuthInfo
	meter *meter
}

// meterOf returns the meter of a peer's connection, nil when it has none.
func meterOf(p *peer.Peer) *meter {
	info, _ := p.AuthInfo.(meteredInfo)
	return info.meter
}

// verified returns the TLS state of a peer, and its certificate if that was verified.
func verified(p *peer.Peer) (state tls.ConnectionState, leaf *x509.Certificate) {
	auth := p.AuthInfo
	if m, ok := auth.(meteredInfo); ok {
		auth = m.AuthInfo
	}
	info, _ := auth.(credentials.TLSInfo)
	if chains := info.State.VerifiedChains; len(chains) > 0 && len(chains[0]) > 0 {
		leaf = chains[0][0]
	}
	return info.State, leaf
}

// meteredCreds meter the connections that have passed the handshake of others.
type meteredCreds struct {
	credentials.TransportCredentials
	receiving *receiving
	most      int // bytes of a request; gRPC refuses larger ones by itself
	streams   int // of a connection
}

func (c meteredCreds) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := c.TransportCredentials.ServerHandshake(conn)
	if err != nil {
		return conn, info, err
	}
	m := newMeter(conn, c.receiving, c.most, c.streams)
	return m, meteredInfo{info, m}, nil
}

// meter is a connection that follows HTTP/2 frames and gRPC requests, to know how long each request is
// when it begins.
type meter struct {
	net.Conn
	all     *receiving
	most    int
	streams int
	key     string

	// The goroutine that reads uses these.
	in    http2frames.Follower
	tiny  http2frames.Tiny
	frame http2frames.Frame
	pad   int     // bytes at the end of the payload that are padding
	first bool    // the payload begins with the length of its padding
	now   *inflow // of the frame's stream, nil if that is not open
	last  uint32
	// little takes what comes first, usually all of an acknowledgement.
	little [littleRead]byte
	more   bool

	out http2frames.Follower // the goroutine that writes uses it

	mu     sync.Mutex // guards all below
	closed bool
	grants []*grant
	open   map[uint32]*inflow // by stream
	opens  int                // streams so far
	claims int                // of streams, so far
}

func newMeter(conn net.Conn, all *receiving, most, streams int) *meter {
	m := &meter{Conn: conn, all: all, most: most, streams: streams, tiny: http2frames.Tiny{Most: maxTiny}, open: map[uint32]*inflow{}}
	if conn != nil {
		m.key = addressKey(conn.RemoteAddr())
	}
	m.in = http2frames.Follower{Skip: len(http2frames.Preface), Begin: m.begin, Payload: m.payload}
	m.out.Begin = m.sent
	return m
}

// grant is a request that is being received, or that nobody has decoded yet.
type grant struct {
	stream uint32
	size   int
	timer  *time.Timer
	whole  bool // all of it has come; guarded by meter.mu
}

func (m *meter) Read(b []byte) (int, error) {
	n, err := m.Conn.Read(b)
	if ferr := m.in.Follow(b[:n]); ferr != nil {
		why := refusal.Receiving
		if errors.Is(ferr, http2frames.ErrTiny) {
			why = refusal.Frames
		}
		m.all.refused(m.RemoteAddr(), why)
		m.Close()
		return 0, ferr
	}
	return n, err
}

// ReadOnReady is how gRPC reads without a buffer for each connection that waits: this takes one of size
// bytes from pool once there is something. What fills m.little has more behind it, usually.
func (m *meter) ReadOnReady(size int, pool mem.BufferPool) (*[]byte, int, error) {
	if m.more {
		m.more = false
		buf := pool.Get(size)
		n, err := m.Read(*buf)
		return buf, n, err
	}
	n, err := m.Read(m.little[:min(size, len(m.little))])
	if n == 0 {
		return nil, 0, err
	}
	m.more = n == len(m.little)
	buf := pool.Get(size)
	copy(*buf, m.little[:n])
	return buf, n, err
}

func (m *meter) Write(b []byte) (int, error) {
	if err := m.out.Follow(b); err != nil {
		return 0, err
	}
	began := m.all.clock()
	n, err := m.Conn.Write(b)
	m.all.work.BusyWith(n, m.all.clock()-began)
	return n, err
}

func (m *meter) Close() error {
	m.mu.Lock()
	m.closed = true
	m.mu.Unlock()
	m.drop(func(*grant) bool { return true }, false)
	return m.Conn.Close()
}

// begin begins a frame of the client.
func (m *meter) begin(f http2frames.Frame) error {
	m.frame, m.pad, m.now = f, 0, nil
	switch f.Type {
	case http2frames.Headers:
		if err := m.opened(f.Stream); err != nil {
			return err
		}
	case http2frames.Reset:
		m.ended(f.Stream)
	case http2frames.Data:
		m.first = f.Flags&http2frames.FlagPadded != 0
		m.now = m.flow(f.Stream)
	}
	if (f.Type == http2frames.Headers || f.Type == http2frames.Data) && f.Flags&http2frames.FlagEndStream != 0 {
		if of := m.flow(f.Stream); of != nil {
			of.note()
		}
	}
	return m.tiny.Frame(f)
}

// flow returns what comes on a stream, nil when that is not open.
func (m *meter) flow(stream uint32) *inflow {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.open[stream]
}

// opened notes a stream that the client opens. Later headers of a stream are its trailers.
func (m *meter) opened(stream uint32) error {
	if stream <= m.last {
		return nil
	}
	m.last = stream
	m.mu.Lock()
	defer m.mu.Unlock()
	m.open[stream] = &inflow{}
	m.opens++
	if len(m.open) > m.streams+maxOpen {
		return errNoGrant
	}
	return nil
}

// sent looks for frames of the relay that end a stream: gRPC ignores what comes on it then.
func (m *meter) sent(f http2frames.Frame) error {
	if f.Type == http2frames.Reset || f.Type == http2frames.Headers && f.Flags&http2frames.FlagEndStream != 0 {
		m.ended(f.Stream)
	}
	return nil
}

// ended forgets a stream, and gives back what its requests were granted.
func (m *meter) ended(stream uint32) {
	m.mu.Lock()
	delete(m.open, stream)
	m.mu.Unlock()
	m.drop(func(g *grant) bool { return g.stream == stream }, false)
}

// payload takes the next bytes of a frame.
func (m *meter) payload(b []byte, left int) error {
	if m.now == nil {
		return nil
	}
	if m.first {
		m.first, m.pad = false, int(b[0])
		b, left = b[1:], left-1
	}
	if own := left - m.pad; own < len(b) {
		b = b[:max(own, 0)]
	}
	for len(b) > 0 {
		p := m.now
		if int(p.have) < len(p.head) {
			n := copy(p.head[p.have:], b)
			p.have += uint8(n)
			b = b[n:]
			if int(p.have) < len(p.head) {
				return nil
			}
			p.left = binary.BigEndian.Uint32(p.head[1:])
			p.note()
			if size := int(p.left); size > largeRequest && size <= m.most {
				if err := m.grant(size); err != nil {
					return err
				}
			}
		}
		n := min(len(b), int(p.left))
		b = b[n:]
		if p.left -= uint32(n); p.left == 0 {
			p.have = 0
			m.tiny.Message()
			m.completed(p)
		}
	}
	return nil
}

// grant waits until a request of that size may be received.
func (m *meter) grant(size int) error {
	if err := m.all.take(m.key, size); err != nil {
		return err
	}
	g := &grant{stream: m.frame.Stream, size: size}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		m.all.give(m.key, size)
		return net.ErrClosed
	}
	if _, ok := m.open[g.stream]; !ok {
		m.all.give(m.key, size) // nobody will decode it
		return nil
	}
	g.timer = time.AfterFunc(m.all.time, func() {
		m.all.refused(m.RemoteAddr(), refusal.Receiving)
		m.Close()
	})
	m.grants = append(m.grants, g)
	m.now.grant = g
	return nil
}

// completed notes that all of a request has come.
func (m *meter) completed(p *inflow) {
	if p.grant == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	p.grant.whole, p.grant = true, nil
}

// taken gives back the grant of a request that is decoded, so that all of it has come. A compressed one
// came with another size.
func (m *meter) taken(size int) {
	if m == nil || size <= largeRequest {
		return
	}
	if !m.drop(func(g *grant) bool { return g.whole && g.size == size }, true) {
		m.drop(func(g *grant) bool { return g.whole }, true)
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
