package downstream

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"meshrelay/downstream/admit"
	"meshrelay/downstream/subscription"
	"meshrelay/downstream/views"
	"meshrelay/internal/testing/await"
	"meshrelay/mirror"
	"meshrelay/push"
)

// faulty are Resources that panic over one key.
type faulty struct {
	Resources
	bad atomic.Bool
}

func (f *faulty) judge(key mirror.Key) {
	if f.bad.Load() && key.Name == "bad" {
		panic("no good")
	}
}

func (f *faulty) Get(key mirror.Key) *mirror.Resource {
	f.judge(key)
	return f.Resources.Get(key)
}

func (f *faulty) Select(key mirror.Key, cluster string, accept func(*mirror.Resource) bool) *mirror.Resource {
	f.judge(key)
	return f.Resources.Select(key, cluster, accept)
}

func TestPanicWhilePushingCostsThatKey(t *testing.T) {
	g := &faulty{}
	r := startRelay(t, true, func(c *Config, d *Deps) {
		g.Resources, d.Resources = d.Resources, g
		c.Views = []views.View{{Name: "v", Default: true, Accepts: func(*mirror.Resource) bool { return true }}}
	})
	r.put(se("shop", "a", "0"), se("shop", "bad", "0"))
	d := r.delta()
	d.send(subscribeDelta(seV1))
	if got := deltaNames(d.next()); got != "shop/a shop/bad" {
		t.Fatalf("at first %q", got)
	}
	g.bad.Store(true)
	// In one push, and in one of everything.
	r.store.Put(se("shop", "bad", "1"))
	r.store.Put(se("shop", "a", "1"))
	if got := deltaNames(d.next()); got != "shop/a" {
		t.Errorf("a push: %q", got)
	}
	if n := testutil.ToFloat64(r.server.metrics.panics); n == 0 {
		t.Error("no panic is counted")
	}
	r.store.Put(se("shop", "a", "2"))
	if got := deltaNames(d.next()); got != "shop/a" {
		t.Errorf("a later push: %q", got)
	}
	r.server.Push(&push.Request{Full: true, Start: time.Now()})
	g.bad.Store(false)
	r.server.Push(&push.Request{Full: true, Start: time.Now()})
	if got := deltaNames(d.next()); got != "shop/bad" {
		t.Errorf("afterwards: %q", got)
	}
}

func TestPanicWhileTheServerOpensCostsThatKey(t *testing.T) {
	g := &faulty{}
	g.bad.Store(true)
	r := startRelay(t, false, func(_ *Config, d *Deps) { g.Resources, d.Resources = d.Resources, g })
	r.store.Put(se("shop", "a", "0"))
	r.store.Put(se("shop", "bad", "0"))
	s := r.sotw()
	s.send(subscribe(seV1))
	r.store.SetSynced()
	if got := names(t, s.next()); got != "shop/a" {
		t.Errorf("the first response has %q", got)
	}
}

// Many items are read by several goroutines: the panic of one is not the end of the process.
func TestPanicOverOneOfManyWhileTheServerOpensCostsThatKey(t *testing.T) {
	g := &faulty{}
	g.bad.Store(true)
	r := startRelay(t, false, func(_ *Config, d *Deps) { g.Resources, d.Resources = d.Resources, g })
	const others = 4 * minPart
	for i := range others {
		r.store.Put(se("shop", fmt.Sprint("n", i), "0"))
	}
	r.store.Put(se("shop", "bad", "0"))
	s := r.sotw()
	s.send(subscribe(seV1))
	r.store.SetSynced()
	got := strings.Fields(names(t, s.next()))
	if len(got) != others || slices.Contains(got, "shop/bad") {
		t.Errorf("the first response has %d resources, want the %d others", len(got), others)
	}
}

// nobody is a stream whose client takes everything and asks for nothing.
type nobody struct{ grpc.ServerStream }

func (nobody) Context() context.Context { return context.Background() }

func (nobody) SendMsg(any) error { return nil }

// toNobody returns a stream with a subscription to ServiceEntries, which is among no connections.
func (r *relay) toNobody() *conn {
	r.t.Helper()
	subs := subscription.New(true, nil, lookup)
	if _, err := subs.Request(&subscription.Request{TypeURL: seV1}, subscription.Limits{Types: 1}, time.Now()); err != nil {
		r.t.Fatal(err)
	}
	return &conn{server: r.server, stream: nobody{}, protocol: protocolDelta, view: r.view(), subs: subs, asked: true, use: &admit.Stream{Peer: &admit.Peer{}}}
}

// TestAPanicInARoundHoldsNoLock: the stream has to end, and others look at it until then.
func TestAPanicInARoundHoldsNoLock(t *testing.T) {
	r := startRelay(t, true)
	c := r.toNobody()
	c.use, c.kept = nil, subscription.Usage{Names: 1} // so that it counts what it keeps, for a peer that it does not have
	ended := make(chan error, 1)
	go func() { ended <- c.guard(func() error { _, err := c.round(); return err }) }()
	wantCode(t, await.Value(t, "the end, which needs its own lock", ended), codes.Internal)
}
