package downstream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
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

// TestClientsWithoutAnIdentityLeaveStreamsForOthers: half of them are theirs, from however many addresses.
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
		for range 6 {
			held = append(held, served(plain.delta()))
		}
		wantCode(t, plain.delta().end(), codes.ResourceExhausted)
		for range 2 {
			served(plain.delta(plain.from("127.0.0.2")))
		}
		end := plain.delta(plain.from("127.0.0.3")).end()
		wantCode(t, end, codes.ResourceExhausted)
		if !strings.Contains(end.Error(), "8 streams of clients without an identity") {
			t.Errorf("the client is told %q", end)
		}
		for range 8 {
			served(secure.delta(client))
		}
		wantCode(t, secure.delta(client).end(), codes.ResourceExhausted) // there are no more
		held[0].cancel()
		plain.eventually(t, "one has left", func() bool { return plain.streams() == 15 })
		served(plain.delta(plain.from("127.0.0.3")))
	})
}

// TestOneListenerLeavesStreamsForOthers: it has three quarters of them, and one peer three quarters of those.
func TestOneListenerLeavesStreamsForOthers(t *testing.T) {
	r := startRelay(t, true, func(c *Config, _ *Deps) {
		c.MaxStreams = 16
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

// TestClientsWithoutAnIdentityLeaveConnectionsForOthers: half of them are theirs, and a handshake that does not go on
// takes no place of the other half for long.
func TestClientsWithoutAnIdentityLeaveConnectionsForOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		plain, secure, client := twoListeners(t, startInMemory, func(c *Config, _ *Deps) { c.MaxConnections = 16 })
		for i := range 8 {
			plain.raw("127.0.0." + string(rune('1'+i%3)))
		}
		plain.eventually(t, "they are in", func() bool { return plain.connections() == 8 })
		if _, err := io.ReadAll(plain.raw("127.0.0.4")); err != nil && !errors.Is(err, io.EOF) && !strings.Contains(err.Error(), "closed") {
			t.Errorf("a connection over the share: %v", err)
		}
		for i := range 4 {
			secure.raw("127.0.0." + string(rune('5'+i)))
		}
		plain.eventually(t, "they are in, too", func() bool { return plain.connections() == 12 })
		await.Pass(4 * time.Second)
		d := secure.delta(client)
		d.send(subscribeDelta(seV1))
		d.next()
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
	plain.eventually(t, "all of them are served", func() bool { return plain.streams() == streams+1 && answered.Load() > int64(streams) })
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

// TestClientsWithoutAnIdentityAreShedFirst: while memory is short, those with one come in as long as there is room.
// When there is none, streams of those without one end, and then some of who has most.
func TestClientsWithoutAnIdentityAreShedFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var short, full atomic.Bool
		plain, secure, client := twoListeners(t, startInMemory, func(_ *Config, d *Deps) {
			d.Overloaded = func(proven bool) error {
				if short.Load() && !proven || full.Load() {
					return errors.New("memory is short")
				}
				return nil
			}
		})
		unknown := plain.delta()
		unknown.send(subscribeDelta(seV1))
		unknown.next()
		short.Store(true)
		wantCode(t, plain.delta(plain.from("127.0.0.2")).end(), codes.ResourceExhausted)
		for range 5 {
			d := secure.delta(client)
			d.send(subscribeDelta(seV1))
			d.next()
		}
		full.Store(true)
		wantCode(t, secure.delta(client).end(), codes.ResourceExhausted)
		plain.server.Shed()
		wantCode(t, unknown.end(), codes.ResourceExhausted)
		plain.eventually(t, "it has left", func() bool { return plain.streams() == 5 })
		plain.server.Shed()
		plain.eventually(t, "a quarter of them has left", func() bool { return plain.streams() == 3 })
		wantRefused(t, plain, refusal.Overload, 5)
		wantCode(t, secure.delta(client).end(), codes.ResourceExhausted) // what was shed does not come back
	})
}
