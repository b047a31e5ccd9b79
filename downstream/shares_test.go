package downstream

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"golang.org/x/time/rate"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"meshrelay/downstream/refusal"
	"meshrelay/internal/testing/await"
)

// twoListeners starts a relay with a plaintext listener and one that identifies its clients. It returns two views of
// it: one for each listener; client are the options of a client of the second.
func twoListeners(t *testing.T, start func(t *testing.T, hasSynced bool, opts ...option) *relay, opts ...option) (plain, secure *relay, client grpc.DialOption) {
	t.Helper()
	_, set, dial := mutualTLS(t)
	opts = append(opts, func(c *Config, d *Deps) {
		set(c, d)
		c.Listeners = append([]Listener{{Address: "127.0.0.1:0"}}, c.Listeners...)
	})
	plain = start(t, true, opts...)
	other := *plain
	other.addr = plain.server.addrs[1].String()
	return plain, &other, dial("one", time.Hour)
}

// TestClientsWithoutAnIdentityLeaveStreamsForOthers: three quarters of them are theirs, from however many addresses.
func TestClientsWithoutAnIdentityLeaveStreamsForOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		plain, secure, client := twoListeners(t, startInMemory, func(c *Config, _ *Deps) { c.MaxStreams = 16 })
		served := func(d *deltaStream) *deltaStream {
			t.Helper()
			d.send(subscribeDelta(seV1))
			d.next()
			return d
		}
		// One address has three quarters of that share.
		var held []*deltaStream
		for range 9 {
			held = append(held, served(plain.delta()))
		}
		wantCode(t, plain.delta().end(), codes.ResourceExhausted)
		for range 3 {
			served(plain.delta(plain.from("127.0.0.2")))
		}
		end := plain.delta(plain.from("127.0.0.3")).end()
		wantCode(t, end, codes.ResourceExhausted)
		if !strings.Contains(end.Error(), "12 streams of clients without an identity") {
			t.Errorf("the client is told %q", end)
		}
		for range 4 {
			served(secure.delta(client))
		}
		wantCode(t, secure.delta(client).end(), codes.ResourceExhausted) // there are no more
		held[0].cancel()
		plain.eventually(t, "one has left", func() bool { return plain.server.open.Load() == 15 })
		served(plain.delta(plain.from("127.0.0.3")))
	})
}

// TestOneListenerLeavesStreamsForOthers: it has three quarters of them, and one peer three quarters of those.
func TestOneListenerLeavesStreamsForOthers(t *testing.T) {
	r := startRelay(t, true, func(c *Config, _ *Deps) {
		c.MaxStreams, c.MaxStreamsPerPeer = 16, 16
		c.Listeners = append(c.Listeners, Listener{Address: "127.0.0.1:0"})
	})
	served := func(d *deltaStream) {
		t.Helper()
		d.send(subscribeDelta(seV1))
		d.next()
	}
	for range 9 {
		served(r.delta())
	}
	wantCode(t, r.delta().end(), codes.ResourceExhausted)
	for range 3 {
		served(r.delta(r.from("127.0.0.2")))
	}
	end := r.delta(r.from("127.0.0.3")).end()
	wantCode(t, end, codes.ResourceExhausted)
	if !strings.Contains(end.Error(), "12 streams of listener 127.0.0.1:0") {
		t.Errorf("the client is told %q", end)
	}
	r.addr = r.server.addrs[1].String()
	served(r.delta(r.from("127.0.0.3")))
}

// TestClientsWithoutAnIdentityDoNotDelayNewStreamsOfOthers: they wait for their own share.
func TestClientsWithoutAnIdentityDoNotDelayNewStreamsOfOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		plain, secure, client := twoListeners(t, startInMemory, func(c *Config, _ *Deps) { c.NewStreamsPerSecond = 8 })
		for i := range 60 {
			plain.delta(plain.from("127.0.0." + string(rune('1'+i%5)))).send(subscribeDelta(seV1))
		}
		plain.eventually(t, "some are refused", func() bool { return refusals(plain, refusal.Rate) > 0 })
		d := secure.delta(client)
		d.send(subscribeDelta(seV1))
		d.next()
	})
}

// TestSharesAreFullWhenTheServerStarts: clients of one listener come back together, as they do without shares.
func TestSharesAreFullWhenTheServerStarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		plain, _, _ := twoListeners(t, startInMemory, func(c *Config, _ *Deps) { c.NewStreamsPerSecond = 8 })
		for _, sh := range plain.server.shares.of(&conn{listener: &plain.server.cfg.Listeners[0]}) {
			if got := sh.limiter.Tokens(); got < 6 {
				t.Errorf("%s may open %v streams at once, want 6", sh.name, got)
			}
		}
	})
}

// TestAPeerThatComesBackStillOwesItsRequests: it does not get a new burst for each stream that it closes.
func TestAPeerThatComesBackStillOwesItsRequests(t *testing.T) {
	limits := must(Limits{}.complete())
	ps := newPeers()
	now := time.Now()
	use, _, _ := ps.enter("a", limits, false)
	use.requests.ReserveN(now, peerBurst)
	use.limiter.SetLimit(rate.Inf) // its new streams are long ago
	ps.leave(use, false)
	again, _, _ := ps.enter("a", limits, false)
	if again.paces(limits, now) == 0 {
		t.Error("the peer may send a burst again")
	}
}

// TestClientsWithoutAnIdentityLeaveConnectionsForOthers: three quarters of them are theirs.
func TestClientsWithoutAnIdentityLeaveConnectionsForOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		plain, secure, client := twoListeners(t, startInMemory, func(c *Config, _ *Deps) { c.MaxConnections = 16 })
		for i := range 12 {
			plain.raw("127.0.0." + string(rune('1'+i%3)))
		}
		plain.eventually(t, "they are in", func() bool { return plain.server.connLimiter.count() == 12 })
		if n, err := plain.raw("127.0.0.4").Read(make([]byte, 1)); n != 0 || err == nil {
			t.Errorf("read %d from a connection over the share", n)
		}
		d := secure.delta(client)
		d.send(subscribeDelta(seV1))
		d.next()
	})
}

// pipeConn is a connection from an address.
type pipeConn struct {
	net.Conn
	from net.Addr
}

func (c pipeConn) RemoteAddr() net.Addr { return c.from }

// TestASlowHandshakeGivesItsPlaceToANewConnection: where there is no other place. One that has ended keeps its place.
func TestASlowHandshakeGivesItsPlaceToANewConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var refused atomic.Int64
		l := newConnLimiter(func() (all, ofOne int) { return 4, 4 }, func(net.Addr, refusal.Reason) { refused.Add(1) }, newShares([]Listener{{}}, 4))
		lis := l.behind(nil, false).(*limitedListener)
		enter := func(last byte) *limitedConn {
			near, far := net.Pipe()
			t.Cleanup(func() { near.Close(); far.Close() })
			return l.enter(pipeConn{near, &net.TCPAddr{IP: net.IPv4(127, 0, 0, last)}}, lis)
		}
		first := enter(1)
		_ = first.SetDeadline(time.Time{}) // its handshake has ended
		for i := range byte(3) {
			enter(2 + i)
		}
		if enter(9) != nil || refused.Load() != 1 {
			t.Error("a connection is let in, and all places are taken")
		}
		await.Pass(slowHandshake + time.Second)
		for range 3 {
			if enter(9) == nil {
				t.Error("a slow handshake keeps its place")
			}
		}
		if enter(9) != nil || l.byKey["127.0.0.1"] != 1 || l.byKey["127.0.0.9"] != 3 || len(l.in) != 4 || lis.open != 4 || lis.waiting.Len() != 3 {
			t.Errorf("%d connections, %v", len(l.in), l.byKey)
		}
		first.Close()
		if len(l.in) != 3 || lis.open != 3 {
			t.Errorf("%d connections after one has left", len(l.in))
		}
	})
}

// TestClientsWithoutAnIdentityAreShedFirst: while memory is short, those with one come in as long as there is room.
func TestClientsWithoutAnIdentityAreShedFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var short, full atomic.Bool
		plain, secure, client := twoListeners(t, startInMemory, func(_ *Config, d *Deps) {
			d.Overloaded = func() error {
				if short.Load() {
					return errors.New("memory is short")
				}
				return nil
			}
			d.Full = func() error {
				if full.Load() {
					return errors.New("memory is full")
				}
				return nil
			}
		})
		short.Store(true)
		wantCode(t, plain.delta().end(), codes.ResourceExhausted)
		known := secure.delta(client)
		known.send(subscribeDelta(seV1))
		known.next()
		full.Store(true)
		wantCode(t, secure.delta(client).end(), codes.ResourceExhausted)
		plain.put(se("shop", "a", "a"))
		known.next() // who is in stays, and misses nothing
	})
}

// TestRequestsOfAllStreamsOfAPeerAreDelayedTogether: and none of them ends.
func TestRequestsOfAllStreamsOfAPeerAreDelayedTogether(t *testing.T) {
	limits := must(Limits{RequestsPerSecond: 10}.complete())
	p, _, _ := newPeers().enter("a", limits, false)
	now := time.Now()
	for i := range peerBurst {
		if wait := p.paces(limits, now); wait > 0 {
			t.Fatalf("request %d waits for %v", i, wait)
		}
	}
	if wait := p.paces(limits, now); wait <= 0 || wait > time.Second/100 {
		t.Errorf("one more waits for %v, want some 6 ms", wait)
	}
}

// TestOnePeersAnswersLeaveTurnsForOthers: it has three quarters of them, and one that is not read for long does not
// count.
func TestOnePeersAnswersLeaveTurnsForOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAnswering()
		limits := must(Limits{}.complete())
		ps := newPeers()
		greedy, _, _ := ps.enter("greedy", limits, false)
		good, _, _ := ps.enter("good", limits, false)
		var has atomic.Int64
		ctx, cancel := context.WithCancel(t.Context())
		for range 2 * mostOf(mostAnswers()) {
			go func() {
				end, err := a.begin(ctx, greedy)
				if err != nil {
					return
				}
				has.Add(1)
				<-ctx.Done()
				end()
			}()
		}
		synctest.Wait()
		if n := has.Load(); n != int64(mostOf(mostAnswers())) {
			t.Errorf("one peer has %d of %d turns", n, mostAnswers())
		}
		if end, err := a.begin(ctx, good); err != nil {
			t.Error(err)
		} else {
			end()
		}
		await.Settle(answerTime)
		if n := has.Load(); n != int64(2*mostOf(mostAnswers())) {
			t.Errorf("%d answers have had a turn", n)
		}
		cancel()
		synctest.Wait()
	})
}

// TestTheWorkForAPeerIsCounted: by identity, or else by address.
func TestTheWorkForAPeerIsCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		plain, secure, client := twoListeners(t, startInMemory)
		plain.put(se("shop", "a", "a"))
		for _, d := range []*deltaStream{plain.delta(), secure.delta(client)} {
			d.send(subscribeDelta(seV1))
			resp := d.next()
			d.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: seV1, ResponseNonce: resp.Nonce, ErrorDetail: &rpcstatus.Status{Message: "no"}})
		}
		plain.put(se("shop", "b", "b"))
		plain.eventually(t, "it is counted", func() bool {
			peers := plain.server.Peers()
			n := 0
			for _, p := range peers {
				if p.Peer == map[bool]string{true: "dns:client", false: "127.0.0.1"}[p.Identified] && p.Streams == 1 && p.Opened == 1 && p.Requests == 2 && p.Rejected == 1 && p.Responses == 2 && p.Bytes > 100 {
					n++
				}
			}
			return n == 2 && len(peers) == 2
		})
	})
}

// TestWhileOneIdentityDoesItsWorstNobodyElseMissesAnything: hundreds of streams of it ask for everything, reject it,
// and ask again. Another client is served each change, new ones are let in, and the work is counted.
func TestWhileOneIdentityDoesItsWorstNobodyElseMissesAnything(t *testing.T) {
	const streams = 300
	plain, secure, client := twoListeners(t, startRelay)
	plain.put(se("shop", "a", "a"))
	good := plain.delta()
	good.send(subscribeDelta(seV1))
	good.next()
	ctx, cancel := context.WithCancel(t.Context())
	var worst sync.WaitGroup
	var answered atomic.Int64
	for range streams / 50 {
		conn := secure.dial(client)
		for range 50 {
			worst.Go(func() {
				s, err := conn.DeltaAggregatedResources(ctx)
				for req := subscribeDelta(seV1); err == nil; {
					var resp *discoveryv3.DeltaDiscoveryResponse
					if err = s.Send(req); err != nil {
						break
					}
					if resp, err = s.Recv(); err == nil {
						answered.Add(1)
						req = &discoveryv3.DeltaDiscoveryRequest{
							TypeUrl: seV1, ResponseNonce: resp.Nonce, ErrorDetail: &rpcstatus.Status{Message: "worst"}, ResourceNamesSubscribe: []string{"*"},
						}
					}
				}
			})
		}
	}
	plain.eventually(t, "all of them are served", func() bool { return plain.server.open.Load() == int64(streams+1) && answered.Load() > int64(streams) })
	for i := range 10 {
		name := fmt.Sprint("n", i)
		plain.put(se("shop", name, "x"))
		if got := deltaNames(good.next()); got != "shop/"+name {
			t.Errorf("the other client got %q, want shop/%s", got, name)
		}
		d := plain.delta(plain.from("127.0.0.2"))
		d.send(subscribeDelta(seV1))
		d.next()
		d.cancel()
	}
	p := plain.server.Peers()[0]
	if p.Peer != "dns:client" || p.Streams != streams || p.Opened != uint64(streams) || p.Requests < uint64(streams) || p.Rejected == 0 || p.Bytes == 0 {
		t.Errorf("counted are %+v", p)
	}
	for _, why := range []refusal.Reason{refusal.Streams, refusal.Peer, refusal.Rate, refusal.Requests, refusal.Receiving} {
		if n := refusals(plain, why); n > 0 {
			t.Errorf("%d are refused for %s", n, why)
		}
	}
	cancel()
	worst.Wait()
}
