package upstreams_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"meshrelay/upstreams/intake"
)

// TestReplicasThatCanReachTheStoreDecideAndServeTheSame after any accidents of the source, orders, restarts and outages of
// the store.
func TestReplicasThatCanReachTheStoreDecideAndServeTheSame(t *testing.T) {
	for seed := range 40 {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			inWorld(t, 3, func(w *world) { play(w, rand.New(rand.NewPCG(uint64(seed), 7))) })
		})
	}
}

func play(w *world, r *rand.Rand) {
	down := false
	w.has(numbered(0, 40)...)
	w.after(2 * time.Minute)
	for range 25 {
		one := w.replicas[r.IntN(len(w.replicas))]
		var did string
		switch n := r.IntN(24); {
		case one.gone && one.stop != nil:
			did = "is added again"
			one.reload(true)
		case n < 5 && one.stop != nil:
			from := []int{0, 1, 2, 40, 30, 0}[r.IntN(6)]
			did = fmt.Sprint("has from ", from)
			one.has(numbered(from, 40+r.IntN(3))...)
		case n < 7 && one.stop != nil:
			did = "freeze"
			_, _ = one.order("freeze", intake.Order{Local: down && r.IntN(2) == 0}) // it may be refused
		case n < 9 && one.stop != nil:
			did = "unfreeze"
			_, _ = one.order("unfreeze", intake.Order{Force: true, Local: down && r.IntN(2) == 0})
		case n < 11 && one.stop != nil:
			did = "release"
			_, _ = one.order("release", intake.Order{All: true, Local: down && r.IntN(2) == 0})
		case n == 11 && one.stop != nil:
			did = "end"
			one.end()
		case n == 12 && one.stop == nil:
			did = "start"
			one.start()
		case n == 13:
			down = !down
			did = fmt.Sprint("down ", down)
			w.store.setDown(down)
		case n == 14:
			did = "conflicts"
			w.store.set(func() { w.store.conflicts, w.store.lose = r.IntN(4), r.IntN(2) })
		case n == 15 && one.stop == nil:
			did = "start with a new disk"
			one.dir = w.t.TempDir()
			one.start()
		case n == 16 && one.stop != nil:
			did = "is removed"
			one.reload(false)
		case n < 19 && one.stop != nil:
			did = "rollback"
			if revisions, err := one.m.History("scripted-east"); err == nil && len(revisions) > 0 {
				_, _ = one.order("rollback", intake.Order{To: revisions[r.IntN(len(revisions))].ID, Local: down && r.IntN(2) == 0})
			}
		case n == 19 && one.stop != nil:
			did = "freeze for a while"
			_, _ = one.order("freeze", intake.Order{For: 3 * time.Second, Local: down && r.IntN(2) == 0})
		case n == 20:
			did = "slow"
			w.store.set(func() { w.store.delay = time.Duration(r.IntN(3)) * time.Second })
		case n == 21 && one.stop != nil:
			did = "has others"
			one.has(append(numbered(r.IntN(3), 38), fmt.Sprint("n39@", r.IntN(3)))...)
		}
		if did != "" {
			w.t.Log(one.name, did)
		}
		w.after(time.Duration(r.IntN(3000)) * time.Millisecond)
	}
	w.store.set(func() { w.store.down, w.store.conflicts, w.store.lose, w.store.delay = false, 0, 0, 0 })
	for _, r := range w.replicas {
		if r.stop == nil {
			r.start()
		}
		if r.gone {
			r.reload(true)
		}
	}
	w.after(time.Minute)
	log, _, _ := w.store.read()
	decided := log.State().Upstreams["scripted-east"]
	w.want("has the newest decision, and no local one", func(r *replicaRun) bool {
		st := r.m.Replicas()
		return st.Sequence == log.State().Sequence && len(st.Local) == 0
	})
	w.want("is frozen as is decided, or tells that it can not", func(r *replicaRun) bool {
		f := r.status().Frozen
		if r.m.Replicas().Missing["scripted-east"] != "" {
			return true
		}
		return decided.Frozen == nil && f == nil || f != nil && decided.Frozen != nil && f.Decision == decided.Frozen.ID
	})
	w.wantOneContent(decided.Frozen)
	if decided.Frozen != nil {
		w.replicas[0].mustOrder("unfreeze", intake.Order{Force: true})
	}
	for _, now := range [][]string{numbered(0, 40), nil, numbered(0, 39)} {
		w.has(now...)
		w.after(40 * time.Second) // as long as the pause between two questions to peers
		first := w.replicas[0].serves()
		w.wantServed("all serve the same", first)
		for _, name := range now {
			if !slices.Contains(first, name) {
				w.t.Errorf("%s is lost", name)
			}
		}
	}
	w.after(15 * time.Minute)
	w.wantServed("in the end", numbered(0, 39))
	w.want("nothing is held", func(r *replicaRun) bool { return r.holds() == 0 && r.status().Joined == nil })
}
