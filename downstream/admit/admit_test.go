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
		if c, _ := a.from(t, 9, 0); c != nil || a.byKey["127.0.0.1"].conns != 1 || a.byKey["127.0.0.9"].conns != 3 || a.all.conns != 4 || a.handshaking != 3 {
			t.Errorf("%d connections", a.all.conns)
		}
		first.Close()
		if a.all.conns != 3 || len(a.conns) != 3 {
			t.Errorf("%d connections after one has left", a.all.conns)
		}
		first.streams.Add(-1)
		if a.Shut(false); a.all.conns != 0 || a.handshaking != 0 {
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
		if a.unproven.conns != 80 || a.handshaking != 40 || refused.of(refusal.Connections) != 60 {
			t.Errorf("%d idle ones, %d handshakes, refused %v", a.unproven.conns, a.handshaking, refused.of(refusal.Connections))
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
// frames. A connection waits for room, and is closed if there is none in time, or if its request does not end.
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
		await.Pass(requestTime + time.Second)
		synctest.Wait()
		if open, held := a.sums(); held > 16<<10 || open > 3 {
			t.Errorf("%d connections with %d bytes are left", open, held)
		}
		a.Shut(true)
		synctest.Wait()
	})
}

// TestRequestsOfOtherStreamsDoNotHideWhatAConnectionHolds: of one stream nothing is left after a request, of several only
// that request has ended.
func TestRequestsOfOtherStreamsDoNotHideWhatAConnectionHolds(t *testing.T) {
	a, _ := counting(Limits{}, Listener{})
	c, _ := a.from(t, 1, 0)
	c.prove("")
	c.streams.Add(2)
	c.take(100 << 10)
	for range 100 {
		c.take(100)
		c.complete(60)
	}
	if got := c.held.Load(); got < 80<<10 || a.all.bytes < 80<<10-freeBytes {
		t.Errorf("%d bytes are held, %d count", got, a.all.bytes)
	}
	c.streams.Add(-1)
	c.complete(60)
	if c.held.Load() != 0 || a.all.bytes != 0 || c.late != nil {
		t.Errorf("%d bytes are held, %d count", c.held.Load(), a.all.bytes)
	}
	if n := testing.AllocsPerRun(100, func() { c.take(200); c.complete(150) }); n != 0 {
		t.Errorf("%v allocations for an acknowledgement", n)
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
