package upstreams_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"meshrelay/config"
	"meshrelay/decisions"
	"meshrelay/upstreams/intake"
)

// TestADecisionTakesEffectWhileAnAppendLasts: the store can be read, and writing to it is slow.
func TestADecisionTakesEffectWhileAnAppendLasts(t *testing.T) {
	inWorld(t, 2, func(w *world) {
		w.has(numbered(0, 40)...)
		w.after(2 * time.Minute)
		w.store.set(func() { w.store.appends = 4 * time.Second })
		w.has() // each proposes a hold
		w.after(time.Second)
		log, _, _ := w.store.read()
		log, err := log.Append(recordOf(decisions.Freeze, "", "c"))
		if err != nil {
			t.Fatal(err)
		}
		w.store.set(func() { w.store.log = log })
		w.after(time.Second)
		w.want("frozen", func(r *replicaRun) bool { return r.status().Frozen != nil })
		w.store.set(func() { w.store.appends = 0 })
		w.after(time.Minute)
		w.replicas[0].mustOrder("unfreeze", intake.Order{Force: true})
		w.quiet()
		w.wantServed("held", numbered(0, 40))
	})
}

// TestAPeerThatIsSlowDoesNotDelayOneUpstreamForAnother: peers are asked about all upstreams within the 5 s of a decision.
func TestAPeerThatIsSlowDoesNotDelayOneUpstreamForAnother(t *testing.T) {
	inWorld(t, 1, func(w *world) {
		a := w.replicas[0]
		w.quiet()
		next := *a.cfg
		next.Upstreams = slices.Clone(next.Upstreams)
		var log decisions.Log
		for i := range 10 {
			name := fmt.Sprint("west-", i)
			next.Upstreams = append(next.Upstreams, config.Upstream{Name: name, ClusterID: name, Guard: w.guard, Source: &scriptedConfig{}})
			var err error
			if log, err = log.Append(decisions.Record{ID: name, Kind: decisions.Hold, Upstream: name, Replica: "b", Content: "x", Number: 1}); err != nil {
				t.Fatal(err)
			}
		}
		if err := a.m.Apply(&next); err != nil {
			t.Fatal(err)
		}
		w.asks = 2 * time.Second
		w.store.set(func() { w.store.log = log })
		w.after(5 * time.Second)
		a.mu.Lock()
		defer a.mu.Unlock()
		if len(a.asked) < 10 {
			t.Errorf("after 5 s peers were asked about %v", a.asked)
		}
	})
}
