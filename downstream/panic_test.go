package downstream

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"meshrelay/downstream/snapshot"
	"meshrelay/downstream/subscription"
	"meshrelay/mirror"
	"meshrelay/push"
)

// faulty is a Generator that panics over one item.
type faulty struct {
	Generator
	bad atomic.Bool
}

func (g *faulty) Item(from Reader, t subscription.Type, ref Ref) snapshot.Item {
	if g.bad.Load() && ref.Key.Name == "bad" {
		panic("no good")
	}
	return g.Generator.Item(from, t, ref)
}

func TestPanicWhilePushingCostsThatKey(t *testing.T) {
	g := &faulty{Generator: newMCPGenerator()}
	r := startRelay(t, true, func(c *Config, d *Deps) {
		d.Generators = []Generator{g}
		c.Views = []View{{Name: "v", Default: true, Accepts: func(*mirror.Resource) bool { return true }}}
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
	g := &faulty{Generator: newMCPGenerator()}
	g.bad.Store(true)
	r := startRelay(t, false, func(_ *Config, d *Deps) { d.Generators = []Generator{g} })
	r.store.Put(se("shop", "a", "0"))
	r.store.Put(se("shop", "bad", "0"))
	s := r.sotw()
	s.send(subscribe(seV1))
	r.store.SetSynced()
	if got := names(t, s.next()); got != "shop/a" {
		t.Errorf("the first response has %q", got)
	}
}
