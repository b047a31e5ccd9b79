package downstream

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"meshrelay/mirror"
	"meshrelay/push"
)

func TestPanicWhilePushingCostsThatKey(t *testing.T) {
	r := startRelay(t, true, func(c *Config, _ *Deps) {
		c.Views = []View{{Name: "v", Default: true, Accepts: func(*mirror.Resource) bool { return true }}}
	})
	r.put(se("shop", "a", "0"), se("shop", "bad", "0"))
	d := r.delta()
	d.send(subscribeDelta(seV1))
	if got := deltaNames(d.next()); got != "shop/a shop/bad" {
		t.Fatalf("at first %q", got)
	}
	fault := func(f func(Ref)) {
		r.server.views.mu.Lock()
		defer r.server.views.mu.Unlock()
		r.server.views.fault = f
	}
	fault(func(ref Ref) {
		if ref.Key.Name == "bad" {
			panic("no good")
		}
	})
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
	fault(nil)
	r.server.Push(&push.Request{Full: true, Start: time.Now()})
	if got := deltaNames(d.next()); got != "shop/bad" {
		t.Errorf("afterwards: %q", got)
	}
}

func TestPanicWhileTheServerOpensCostsThatKey(t *testing.T) {
	r := startRelay(t, false)
	r.server.views.mu.Lock()
	r.server.views.fault = func(ref Ref) {
		if ref.Key.Name == "bad" {
			panic("no good")
		}
	}
	r.server.views.mu.Unlock()
	r.store.Put(se("shop", "a", "0"))
	r.store.Put(se("shop", "bad", "0"))
	s := r.sotw()
	s.send(subscribe(seV1))
	r.store.SetSynced()
	if got := names(t, s.next()); got != "shop/a" {
		t.Errorf("the first response has %q", got)
	}
}
