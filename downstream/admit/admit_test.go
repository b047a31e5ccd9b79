package admit

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"

	"meshrelay/downstream/refusal"
	"meshrelay/internal/testing/await"
)

// reasons counts the connections that were closed, by reason.
type reasons struct {
	mu sync.Mutex
	n  map[refusal.Reason]int
}

func (r *reasons) of(why refusal.Reason) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.n[why]
}

// counting returns an Admission, and how many connections it has closed.
func counting(l Limits, listeners ...Listener) (*Admission, *reasons) {
	l.Complete()
	refused := &reasons{n: map[refusal.Reason]int{}}
	return New(&l, listeners, func(_ net.Addr, why refusal.Reason) {
		refused.mu.Lock()
		defer refused.mu.Unlock()
		refused.n[why]++
	}, func(int, time.Duration) {}), refused
}

// sums returns what counts at present.
func (a *Admission) sums() (conns, bytes int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.all.conns, a.all.bytes
}

// pipeConn is a connection from an address.
type pipeConn struct {
	net.Conn
	from net.Addr
}

func (c pipeConn) RemoteAddr() net.Addr { return c.from }

// from has a client connect from 127.0.0.last. It returns nil if the connection is refused.
func (a *Admission) from(t *testing.T, last, listener int) (c *conn, client net.Conn) {
	near, far := net.Pipe()
	t.Cleanup(func() { near.Close(); far.Close() })
	return a.enter(pipeConn{near, &net.TCPAddr{IP: net.IPv4(127, 0, 0, byte(last))}}, listener), far
}

// TestASlowHandshakeGivesItsPlaceToANewConnection: where there is no other place. One with a stream keeps its place.
func TestASlowHandshakeGivesItsPlaceToANewConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, refused := counting(Limits{MaxConnections: 4}, Listener{})
		first, _ := a.from(t, 1, 0)
		first.prove("")
		first.streams.Add(1)
		for i := range 3 {
			a.from(t, 2+i, 0)
		}
		if c, _ := a.from(t, 9, 0); c != nil || refused.of(refusal.Connections) != 1 {
			t.Error("a connection is let in, and all places are taken")
		}
		await.Pass(slowHandshake + time.Second)
		for range 3 {
			if c, _ := a.from(t, 9, 0); c == nil {
				t.Error("a slow handshake keeps its place")
			}
		}
		if c, _ := a.from(t, 9, 0); c != nil || a.byKey["127.0.0.1"].conns != 1 || a.byKey["127.0.0.9"].conns != 3 || a.all.conns != 4 {
			t.Errorf("%d connections", a.all.conns)
		}
		first.Close()
		if a.all.conns != 3 || len(a.conns) != 3 {
			t.Errorf("%d connections after one has left", a.all.conns)
		}
		first.streams.Add(-1)
		if a.Shut(false); a.all.conns != 0 || len(a.conns) != 0 {
			t.Errorf("%d connections after the end", a.all.conns)
		}
		if c, _ := a.from(t, 9, 0); c != nil {
			t.Error("a connection is let in after the end")
		}
	})
}

// TestIdleConnectionsLeavePlacesForThoseWithAnIdentity, in their handshake or after it, from however many addresses.
func TestIdleConnectionsLeavePlacesForThoseWithAnIdentity(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, refused := counting(Limits{MaxConnections: 160}, Listener{Identifies: true})
		for i := range 200 {
			if c, _ := a.from(t, i, 0); c != nil && i < 100 {
				if why := c.prove(""); why != "" {
					c.Close()
				}
				c.streams.Add(1)
			}
		}
		if a.unproven.conns != 80 || a.unknown.conns != 120 || refused.of(refusal.Connections) != 60 {
			t.Errorf("%d idle ones, %d handshakes, refused %v", a.unproven.conns, a.unknown.conns-a.unproven.conns, refused.of(refusal.Connections))
		}
		await.Pass(slowHandshake + time.Second)
		for i := range 80 {
			c, _ := a.from(t, 201, 0)
			if c == nil || c.prove(fmt.Sprint("spiffe://a/", i)) != "" {
				t.Fatalf("connection %d with an identity is refused", i)
			}
		}
		if a.all.conns != 160 || a.unproven.conns != 80 {
			t.Errorf("%d connections, %d without an identity", a.all.conns, a.unproven.conns)
		}
	})
}

// TestHandshakesOfOneAddressGiveTheirPlacesToThoseOfOthers: however young they are.
func TestHandshakesOfOneAddressGiveTheirPlacesToThoseOfOthers(t *testing.T) {
	a, _ := counting(Limits{MaxConnections: 160}, Listener{Identifies: true})
	for i := range 80 {
		c, _ := a.from(t, 1+i%2, 0)
		c.prove("")
		c.streams.Add(1)
	}
	for i := range 50 {
		honest, _ := a.from(t, 9, 0)
		for j := range 80 {
			a.from(t, 1+j%2, 0)
		}
		if honest == nil || honest.closed || honest.prove(fmt.Sprint("spiffe://a/", i)) != "" {
			t.Fatalf("connection %d with an identity is refused", i)
		}
	}
}

// TestOnlyAConnectionWhosePlaceIsOfUseLosesIt.
func TestOnlyAConnectionWhosePlaceIsOfUseLosesIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in := func(a *Admission, last, listener, streams int, identity string) *conn {
			c, _ := a.from(t, last, listener)
			c.prove(identity)
			c.streams.Add(int32(streams))
			return c
		}
		kept := func(what string, a *Admission, idle *conn, last int, want refusal.Reason, refused *reasons) {
			if c, _ := a.from(t, last, 0); c != nil || idle.closed || refused.of(want) != 1 {
				t.Errorf("%s: a connection is let in, or closed: %v", what, refused.n)
			}
		}
		one, refusedOne := counting(Limits{MaxConnections: 16}, Listener{})
		two, refusedTwo := counting(Limits{MaxConnections: 16}, Listener{}, Listener{})
		known, refusedKnown := counting(Limits{MaxConnections: 4}, Listener{Identifies: true})
		idle, other, proven := in(one, 2, 0, 0, ""), in(two, 3, 1, 0, ""), in(known, 1, 0, 0, "a")
		for i := range 12 {
			in(one, 1, 0, 1, "")
			in(two, 1+i/6, 0, 1, "")
			if i < 3 {
				in(one, 3, 0, 1, "")
				in(known, 2, 0, 1, "b")
			}
		}
		await.Pass(slowHandshake + time.Second)
		kept("its peer has its own part", one, idle, 1, refusal.Peer, refusedOne)
		kept("it is of another listener", two, other, 9, refusal.Connections, refusedTwo)
		kept("it has proven an identity", known, proven, 9, refusal.Connections, refusedKnown)
		ctx := peer.NewContext(t.Context(), &peer.Peer{AuthInfo: Info{conn: idle}})
		Handler{}.HandleRPC(ctx, &stats.Begin{})
		Handler{}.HandleRPC(ctx, &stats.End{})
		kept("its last stream has just ended", one, idle, 9, refusal.Connections, refusedOne)
		await.Pass(slowHandshake + time.Second)
		if c, _ := one.from(t, 2, 0); c == nil || !idle.closed || one.byKey["127.0.0.2"] != c.peer {
			t.Error("a connection is refused, or counts for a peer that was forgotten")
		}
	})
}

func TestOneIdentityHasAPartOfTheConnections(t *testing.T) {
	a, _ := counting(Limits{MaxConnections: 16}, Listener{Identifies: true})
	for i := range 13 {
		c, _ := a.from(t, i, 0)
		if why := c.prove("dns:one"); (why != "") != (i == 12) {
			t.Errorf("connection %d: %q", i, why)
		}
	}
}

// TestBytesOfRequestsAreBounded: those that a connection has brought since its last complete request, however small the
// frames. A connection waits for room, and is closed if there is none in time, or if its request does not end and others
// wait.
func TestBytesOfRequestsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, refused := counting(Limits{MaxRequestBytes: 1 << 20}, Listener{}, Listener{})
		send := func(last, listener, bytes int) *conn {
			c, client := a.from(t, last, listener)
			c.prove("")
			c.streams.Add(1)
			go func() {
				for chunk := make([]byte, 16<<10); bytes > 0; bytes -= len(chunk) {
					if _, err := client.Write(chunk); err != nil {
						return
					}
				}
			}()
			go func() {
				for b := make([]byte, 32<<10); ; {
					if _, err := c.Read(b); err != nil {
						return
					}
				}
			}()
			synctest.Wait()
			return c
		}
		var conns []*conn
		for i := range 30 {
			conns = append(conns, send(i/10, 0, 1<<20))
		}
		_, before := a.sums()
		if most := a.byListener[0].of(heldLeast); before > most || before < most-30*(16<<10) {
			t.Errorf("%d bytes are held of %d", before, heldLeast)
		}
		small, other := send(9, 0, freeBytes), send(9, 1, 1<<20)
		if small.held.Load() != 16<<10 && small.held.Load() != freeBytes || other.held.Load() != 1<<20 {
			t.Errorf("other clients have sent %d and %d bytes", small.held.Load(), other.held.Load())
		}
		_, before = a.sums()
		conns[0].complete(1 << 20)
		synctest.Wait()
		if _, held := a.sums(); conns[0].held.Load() != 0 || held > before {
			t.Errorf("after a request is complete, %d bytes are held", held)
		}
		await.Pass(bytesWait + time.Second)
		synctest.Wait()
		waited := refused.of(refusal.Receiving)
		if waited == 0 || waited == 30 {
			t.Errorf("%d connections were closed that waited", waited)
		}
		await.Settle(requestTime)
		waited = refused.of(refusal.Receiving)
		await.Settle(requestTime)
		if n := refused.of(refusal.Receiving); n != waited {
			t.Errorf("%d connections were closed, and nobody waits for room", n-waited)
		}
		send(20, 0, 1<<20)
		await.Settle(2 * time.Second)
		if c := send(21, 0, 1<<20); c.held.Load() != 1<<20 || refused.of(refusal.Receiving) == waited {
			t.Errorf("others wait, %d bytes of one have room, and %d connections were closed", c.held.Load(), refused.of(refusal.Receiving)-waited)
		}
		a.Shut(true)
		synctest.Wait()
	})
}

// TestAClosedConnectionDoesNotWaitForRoom.
func TestAClosedConnectionDoesNotWaitForRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, _ := counting(Limits{MaxRequestBytes: 1}, Listener{})
		var conns []*conn
		for range 2 {
			c, _ := a.from(t, 1, 0)
			c.prove("")
			conns = append(conns, c)
		}
		conns[0].take(heldLeast * 3 / 4)
		began := time.Now()
		time.AfterFunc(time.Second/2, func() { conns[1].Close() })
		conns[1].take(heldLeast)
		if took := time.Since(began); took != time.Second/2 {
			t.Errorf("it has waited for %v", took)
		}
	})
}

// TestRequestsOfOtherStreamsDoNotHideWhatAConnectionHolds: of one stream nothing is left after a request, of several only
// that request has ended.
func TestRequestsOfOtherStreamsDoNotHideWhatAConnectionHolds(t *testing.T) {
	a, _ := counting(Limits{}, Listener{})
	c, _ := a.from(t, 1, 0)
	c.prove("")
	c.streams.Add(2)
	c.take(1 << 20)
	for _, c.record = range []int{0, recordAround} { // many in one record
		for range 20_000 {
			c.take(69)
			c.complete(60)
		}
	}
	if got := c.held.Load(); got < 1<<20-300<<10 || a.all.bytes < 1<<20-300<<10-freeBytes {
		t.Errorf("%d bytes are held, %d count", got, a.all.bytes)
	}
	c.streams.Add(-1)
	c.complete(60)
	if c.held.Load() != 0 || a.all.bytes != 0 {
		t.Errorf("%d bytes are held, %d count", c.held.Load(), a.all.bytes)
	}
	if n := testing.AllocsPerRun(100, func() { c.take(200); c.complete(150) }); n != 0 {
		t.Errorf("%v allocations for an acknowledgement", n)
	}
}

// sink is a connection that takes whatever is written.
type sink struct{ net.Conn }

func (sink) Write(b []byte) (int, error) { return len(b), nil }

// TestWhatIsBesideRequestsDoesNotCount: however long honest clients go on.
func TestWhatIsBesideRequestsDoesNotCount(t *testing.T) {
	const mb = 1 << 20
	for _, around := range []int{0, recordAround} {
		a, _ := counting(Limits{}, Listener{})
		c, _ := a.from(t, 1, 0)
		c.prove("")
		c.Conn, c.record = sink{c.Conn}, around
		ctx := peer.NewContext(t.Context(), &peer.Peer{AuthInfo: Info{conn: c}})
		note := func(event stats.RPCStats) { Handler{}.HandleRPC(ctx, event) }
		frame := func(content int) { c.take(content + frameHead + around) }
		send := func(bytes int) {
			for left := bytes; left > 0; left -= 16 << 10 {
				frame(min(left, 16<<10))
			}
			note(&stats.InPayload{WireLength: bytes})
		}
		read := func(bytes int) {
			for buffer := make([]byte, 16<<10); bytes > 0; bytes -= len(buffer) {
				_, _ = c.Write(buffer)
				frame(4) // a window of the connection, and of the stream
				frame(4)
			}
		}
		rests := func(what string) {
			if held := c.held.Load(); held > freeBytes/2 || a.all.bytes > 0 {
				t.Errorf("%s: %d bytes are held, %d count", what, held, a.all.bytes)
			}
		}
		note(&stats.Begin{})
		read(80 * mb)
		rests("one large response")
		note(&stats.Begin{})
		for range 1000 {
			frame(90)
			note(&stats.InHeader{WireLength: 90})
			note(&stats.Begin{})
			send(200)
			frame(4)
			note(&stats.End{})
		}
		rests("streams that come and go beside two that stay")
		for range 400 {
			for range 2 {
				read(mb)
				send(100)
			}
		}
		rests("changes of 1 MB, acknowledged by two streams")
		for range 50 {
			send(3 * mb)
		}
		rests("large requests beside an idle stream")
	}
}

// open opens a stream of a peer.
func (a *Admission) open(t *testing.T, key string, overload error) (*Stream, codes.Code) {
	s, err := a.Open(t.Context(), key, false, 0, overload)
	return s, status.Code(err)
}

// TestPlacesToComeBackToAreForgottenAfterAnOverload: and are no more than there were streams.
func TestPlacesToComeBackToAreForgottenAfterAnOverload(t *testing.T) {
	a, _ := counting(Limits{NewStreamsPerSecond: 1 << 20}, Listener{})
	short := errors.New("memory is short")
	var here []*Stream
	for i := range 10 {
		s, _ := a.open(t, fmt.Sprint("host-", i), nil)
		here = append(here, s)
	}
	for _, s := range here {
		s.Close(true)
	}
	if n := len(a.byKey); n != 10 {
		t.Errorf("%d peers are remembered", n)
	}
	for i, want := range []codes.Code{codes.OK, codes.ResourceExhausted} {
		if _, got := a.open(t, "host-1", short); got != want {
			t.Errorf("stream %d: %v", i, got)
		}
	}
	if _, got := a.open(t, "new", short); got != codes.ResourceExhausted {
		t.Error("a new peer fits")
	}
	if a.byKey["new"] != nil {
		t.Error("a peer that was refused is remembered")
	}
	for i := range 3000 {
		s, _ := a.open(t, fmt.Sprint("later-", i), nil)
		s.Close(false)
	}
	s, _ := a.open(t, "host-0", nil)
	s.Close(false)
	await.Until(t, "it is forgotten", func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.swept = -1024
		a.sweep()
		return a.byKey["host-0"] == nil
	})
	if len(a.byKey) > 2*1024+10 {
		t.Errorf("%d peers are remembered", len(a.byKey))
	}
}

// TestWhoAsksTooFastIsDelayedAndThenEnded: all streams of a peer together, also those that come anew.
func TestWhoAsksTooFastIsDelayedAndThenEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, _ := counting(Limits{RequestsPerSecond: 10}, Listener{})
		one, _ := a.open(t, "a", nil)
		two, _ := a.open(t, "a", nil)
		for i := range 40 {
			for _, s := range []*Stream{one, two} {
				if wait, first, err := s.Request(time.Now()); wait > 0 || first || err != nil {
					t.Fatalf("request %d waits for %v: %v", i, wait, err)
				}
			}
		}
		wait, first, err := one.Request(time.Now())
		if wait != 100*time.Millisecond || !first || err != nil {
			t.Errorf("one more waits for %v, first %v: %v", wait, first, err)
		}
		if other, _ := a.open(t, "b", nil); other != nil {
			if wait, _, _ := other.Request(time.Now()); wait > 0 {
				t.Error("another peer waits")
			}
		}
		one.Close(false)
		if again, _ := a.open(t, "a", nil); again != nil {
			if wait, _, _ := again.Request(time.Now()); wait == 0 {
				t.Error("the peer may send a burst again")
			}
		}
		for err = nil; err == nil; {
			if wait, _, err = two.Request(time.Now()); wait > time.Minute {
				t.Fatal("it never ends")
			}
		}
		if status.Code(err) != codes.ResourceExhausted {
			t.Error(err)
		}
		await.Pass(time.Minute)
		if wait, _, err := two.Request(time.Now()); wait > 0 || err != nil {
			t.Errorf("after a pause it waits for %v: %v", wait, err)
		}
	})
}

// TestOnePeersAnswersAreMadeInTurn: one that is not read for long does not count.
func TestOnePeersAnswersAreMadeInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, _ := counting(Limits{}, Listener{})
		greedy, _ := a.open(t, "greedy", nil)
		good, _ := a.open(t, "good", nil)
		most := 0
		for greedy.answers.TryAcquire(1) {
			most++
		}
		greedy.answers.Release(int64(most))
		var has atomic.Int64
		ctx, cancel := context.WithCancel(t.Context())
		for range 2 * most {
			go func() {
				end, err := greedy.Answer(ctx)
				if err != nil {
					return
				}
				has.Add(1)
				<-ctx.Done()
				end()
			}()
		}
		synctest.Wait()
		if n := has.Load(); n != int64(most) {
			t.Errorf("one peer has %d answers at once, want %d", n, most)
		}
		if end, err := good.Answer(ctx); err != nil {
			t.Error(err)
		} else {
			end()
		}
		await.Settle(answerTime)
		if n := has.Load(); n != int64(2*most) {
			t.Errorf("%d answers have had a turn", n)
		}
		cancel()
		synctest.Wait()
	})
}
