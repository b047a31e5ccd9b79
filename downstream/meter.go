package downstream

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/stats"

	"meshrelay/downstream/refusal"
	"meshrelay/internal/http2frames"
	"meshrelay/internal/peerkey"
	"meshrelay/push"
)

const (
	// freeBytes is how many bytes of requests gRPC may hold for a connection without a turn. Above freeBytes,
	// the connection needs a medium turn. Above mediumBytes, it also needs large turns: one for each part of
	// the size of the largest request.
	freeBytes   = 16 << 10
	mediumBytes = 256 << 10
	mediumTurns = 64
	largeTurns  = 4
	// turnWait is how long a connection waits for a turn. turnTime is how long it may have a turn before a
	// request is complete. After either time, the relay closes the connection.
	turnWait = 10 * time.Second
	turnTime = 30 * time.Second
	// frameCost is the memory that gRPC needs for a DATA frame in addition to the buffer of its payload, in
	// bytes.
	frameCost = 96
)

// The sizes of turns. Each connection takes a medium turn before large ones, so that a connection with a
// large turn never waits for a medium one.
const (
	medium = iota
	large
	turnSizes
)

// receiving limits the bytes of requests that gRPC holds for all connections: gRPC receives a whole request
// before a handler gets it. The relay does not read from a connection that needs a turn and has none.
type receiving struct {
	turns   [turnSizes]*turns
	request int // bytes of the largest request
	wait    time.Duration
	time    time.Duration
	refused func(from net.Addr, why refusal.Reason)
	work    *push.Work
}

func newReceiving(maxRequest int, refused func(net.Addr, refusal.Reason), work *push.Work) *receiving {
	return &receiving{
		turns: [turnSizes]*turns{newTurns(mediumTurns), newTurns(largeTurns)}, request: maxRequest,
		wait: turnWait, time: turnTime, refused: refused, work: work,
	}
}

// needed returns how many turns of each size a connection needs while gRPC holds this many bytes for it.
func (r *receiving) needed(held int) (n [turnSizes]int) {
	if held > freeBytes {
		n[medium] = 1
	}
	if over := held - mediumBytes; over > 0 {
		n[large] = (over + r.request - 1) / r.request
	}
	return n
}

// turns are all turns of one size. One peer may have half of them. Any goroutine may call its
// methods.
type turns struct {
	most int

	mu    sync.Mutex // guards all below
	used  int
	byKey map[string]int
	freed chan struct{} // closed when turns are given back
}

func newTurns(most int) *turns {
	return &turns{most: most, byKey: map[string]int{}, freed: make(chan struct{})}
}

var errNoTurn = errors.New("too many large requests are being received")

// ofPeer returns how many turns one peer may have.
func (t *turns) ofPeer() int { return max(1, t.most/2) }

// take waits for a turn for a peer. It fails when wait has passed.
func (t *turns) take(key string, wait time.Duration) error {
	deadline := time.NewTimer(wait)
	defer deadline.Stop()
	for {
		t.mu.Lock()
		if t.used < t.most && t.byKey[key] < t.ofPeer() {
			t.used++
			t.byKey[key]++
			t.mu.Unlock()
			return nil
		}
		freed := t.freed
		t.mu.Unlock()
		select {
		case <-freed:
		case <-deadline.C:
			return errNoTurn
		}
	}
}

// give gives back n turns of a peer.
func (t *turns) give(key string, n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.used -= n
	if t.byKey[key] -= n; t.byKey[key] == 0 {
		delete(t.byKey, key)
	}
	close(t.freed)
	t.freed = make(chan struct{})
}

// meteredInfo is the result of a handshake, with the meter of the connection.
type meteredInfo struct {
	credentials.AuthInfo
	meter *meter
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

// meteredCreds gives each connection a meter after the handshake.
type meteredCreds struct {
	credentials.TransportCredentials
	receiving *receiving
}

// ServerHandshake implements credentials.TransportCredentials.
func (c meteredCreds) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := c.TransportCredentials.ServerHandshake(conn)
	if err != nil {
		return conn, info, err
	}
	m := newMeter(conn, c.receiving)
	return m, meteredInfo{info, m}, nil
}

// meter is a connection that counts the bytes of requests that gRPC holds for it: those of the DATA frames
// received, minus those of requests that handlers have received. When no stream is open, gRPC holds nothing.
type meter struct {
	net.Conn
	all *receiving
	key string
	in  http2frames.Follower // only the goroutine that reads uses it

	mu      sync.Mutex // guards all below
	closed  bool
	streams int
	payload int // bytes of requests
	buffers int // memory of the buffers of frames in addition to the payload, since payload was last zero
	turns   [turnSizes]int
	timer   *time.Timer // closes the connection after turnTime; it runs while the connection has a turn
}

func newMeter(conn net.Conn, all *receiving) *meter {
	m := &meter{Conn: conn, all: all, key: peerkey.Of(conn.RemoteAddr())}
	m.in = http2frames.Follower{Skip: len(http2frames.Preface), Begin: m.frame}
	return m
}

// held returns the bytes that gRPC holds. The caller holds mu.
func (m *meter) held() int { return m.payload + m.buffers }

func (m *meter) Read(b []byte) (int, error) {
	n, err := m.Conn.Read(b)
	if ferr := m.in.Follow(b[:n]); ferr != nil {
		m.refuse()
		return 0, ferr
	}
	return n, err
}

func (m *meter) Write(b []byte) (int, error) {
	began := time.Now()
	n, err := m.Conn.Write(b)
	m.all.work.BusyWith(n, time.Since(began))
	return n, err
}

func (m *meter) Close() error {
	m.mu.Lock()
	m.closed = true
	m.free(m.payload)
	m.mu.Unlock()
	return m.Conn.Close()
}

// refuse counts and closes a connection that is not closed yet.
func (m *meter) refuse() {
	m.mu.Lock()
	closed := m.closed
	m.mu.Unlock()
	if !closed {
		m.all.refused(m.RemoteAddr(), refusal.Receiving)
		m.Close()
	}
}

// bufferOf returns the size of the buffer that gRPC takes for the payload of a frame.
func bufferOf(payload int) int {
	const page, frame = 4 << 10, 16 << 10 // of gRPC's pool
	switch {
	case payload <= 1<<10:
		return payload
	case payload <= page:
		return page
	}
	return max(payload, frame)
}

// frame counts a frame of the client, and waits for the turns that the connection now needs.
func (m *meter) frame(f http2frames.Frame) error {
	if f.Type != http2frames.Data || f.Length == 0 {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.payload += f.Length
	m.buffers += bufferOf(f.Length) - f.Length + frameCost
	for size, turns := range m.all.turns {
		for m.turns[size] < m.all.needed(m.held())[size] {
			if m.turns[size] == turns.ofPeer() {
				return errNoTurn
			}
			m.mu.Unlock()
			err := turns.take(m.key, m.all.wait)
			m.mu.Lock()
			switch {
			case err != nil:
				return err
			case m.closed:
				turns.give(m.key, 1)
				return net.ErrClosed
			}
			m.turns[size]++
			m.restart()
		}
	}
	return nil
}

// restart restarts the timer. The caller holds mu.
func (m *meter) restart() {
	if m.timer == nil {
		m.timer = time.AfterFunc(m.all.time, m.late)
	} else {
		m.timer.Reset(m.all.time)
	}
}

// late closes the connection if it still has a turn.
func (m *meter) late() {
	m.mu.Lock()
	late := m.turns != [turnSizes]int{}
	m.mu.Unlock()
	if late {
		m.refuse()
	}
}

// free notes that gRPC has freed bytes of the payload. It gives back the turns that the connection no longer
// needs. The caller holds mu.
func (m *meter) free(payload int) {
	if m.payload -= payload; m.payload <= 0 {
		m.payload, m.buffers = 0, 0
	}
	if m.turns == [turnSizes]int{} {
		return
	}
	needed := m.all.needed(m.held())
	for size, turns := range m.all.turns {
		if extra := m.turns[size] - needed[size]; extra > 0 {
			turns.give(m.key, extra)
			m.turns[size] -= extra
		}
	}
	if m.turns == [turnSizes]int{} {
		m.timer.Stop()
	} else {
		m.restart()
	}
}

// streamBegins counts a stream.
func (m *meter) streamBegins() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.streams++
}

// streamEnds notes that a stream has ended. gRPC then frees the bytes that it holds for the stream. The meter
// does not know their number, so it counts them until the last stream ends.
func (m *meter) streamEnds() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.streams--; m.streams == 0 {
		m.free(m.payload)
	}
}

// received notes that a handler has received a request of n bytes in DATA frames.
func (m *meter) received(n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.free(n)
}

// metering notifies the meter of a connection of its streams and requests. It implements stats.Handler.
type metering struct{}

// HandleRPC implements stats.Handler.
func (metering) HandleRPC(ctx context.Context, event stats.RPCStats) {
	p, _ := peer.FromContext(ctx)
	info, ok := p.AuthInfo.(meteredInfo)
	if !ok {
		return
	}
	switch event := event.(type) {
	case *stats.Begin:
		info.meter.streamBegins()
	case *stats.InPayload:
		info.meter.received(event.WireLength)
	case *stats.End:
		info.meter.streamEnds()
	}
}

// TagRPC implements stats.Handler.
func (metering) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

// TagConn implements stats.Handler.
func (metering) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

// HandleConn implements stats.Handler.
func (metering) HandleConn(context.Context, stats.ConnStats) {}
