package downstream

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"meshrelay/downstream/snapshot"
	"meshrelay/downstream/views"
	"meshrelay/mirror"
)

// selecting is Resources that call a function with each key that a view reads.
type selecting struct {
	Resources
	before func(key mirror.Key, accept func(*mirror.Resource) bool)
}

func (s selecting) Select(key mirror.Key, cluster string, accept func(*mirror.Resource) bool) *mirror.Resource {
	s.before(key, accept)
	return s.Resources.Select(key, cluster, accept)
}

// slowView is a view for nodes whose id begins with "slow". To read the resource shop/stop
// for it takes until let is called. reads counts the other resources that are read for it.
func slowView() (v views.View, slow option, stopped chan struct{}, let func(), reads *atomic.Int64) {
	probe := se("only-slow", "probe", "1")
	stopped, leave := make(chan struct{}, 100), make(chan struct{})
	reads = new(atomic.Int64)
	slow = func(_ *Config, d *Deps) {
		d.Resources = selecting{d.Resources, func(key mirror.Key, accept func(*mirror.Resource) bool) {
			switch {
			case !accept(probe):
			case key.Name == "stop":
				stopped <- struct{}{}
				<-leave
			default:
				reads.Add(1)
			}
		}}
	}
	v = namespaces("slow", "slow*", "shop", "only-slow")
	return v, slow, stopped, sync.OnceFunc(func() { close(leave) }), reads
}

// TestOriginsAreNotedByAllThatReadAView: several goroutines read a view of many resources, and note which
// clusters these are of.
func TestOriginsAreNotedByAllThatReadAView(t *testing.T) {
	const all, clusters = 4 * minPart, 100
	list := &items{}
	resources := resourcesOf{}
	for n := range all {
		r := se("shop", fmt.Sprintf("entry-%05d", n), "1").Stamped(&mirror.Stamp{Source: "east", Cluster: fmt.Sprintf("cluster-%d", n%clusters), Relay: "hub"})
		resources[r.Key()] = r
		list.all = append(list.all, item{r.FullName(), r.Key()})
	}
	d := &draft{seen: map[views.Origin]struct{}{}}
	from := &reader{resources, "", func(r *mirror.Resource) bool { d.see(r); return true }, func(r *mirror.Resource) { d.see(r) }}
	list.read(from, make([]snapshot.Update, all))
	if len(d.seen) != clusters {
		t.Errorf("%d of %d clusters are seen", len(d.seen), clusters)
	}
}

// resourcesOf are the Resources of a map.
type resourcesOf map[mirror.Key]*mirror.Resource

func (m resourcesOf) Get(key mirror.Key) *mirror.Resource { return m[key] }

func (m resourcesOf) Select(key mirror.Key, cluster string, accept func(*mirror.Resource) bool) *mirror.Resource {
	if r := m[key]; accept(r) {
		return r
	}
	return nil
}

func (m resourcesOf) Keys(mirror.Kind) []mirror.Key { return nil }

func (m resourcesOf) SourceKinds() []mirror.Kind { return nil }

// TestASlowFillOfAViewHoldsUpNobodyElse: not the first client of another view, not a push,
// not a reload. Clients that come for the view share the fill, and what changes meanwhile is
// in what they are sent.
func TestASlowFillOfAViewHoldsUpNobodyElse(t *testing.T) {
	slow, resources, stopped, let, reads := slowView()
	defer let()
	views := []views.View{slow, namespaces("other", "", "shop")}
	r := startRelay(t, true, resources, func(c *Config, _ *Deps) { c.Views = views })
	r.put(se("shop", "a", "1"), se("shop", "stop", "1"))
	one := r.deltaBy("slow-1", seV1)
	<-stopped
	two := r.deltaBy("slow-2", seV1)
	r.eventually(t, "the second client waits", func() bool {
		r.server.views.mu.Lock()
		defer r.server.views.mu.Unlock()
		for _, v := range r.server.views.derived {
			if v.filling != nil && v.clients == 2 {
				return true
			}
		}
		return false
	})
	other := r.deltaBy("other", seV1)
	if got := hosts(t, other.next()); got != "shop/a=1 shop/stop=1" {
		t.Errorf("a client of another view was sent %q", got)
	}
	r.put(se("shop", "a", "2"), se("shop", "b", "2"))
	for seen := ""; !strings.Contains(seen, "shop/a=2") || !strings.Contains(seen, "shop/b=2"); {
		seen += " " + hosts(t, other.next())
	}
	if err := r.server.Reload(t.Context(), append(views, namespaces("more", "more", "shop")), Limits{}, nil); err != nil {
		t.Error(err)
	}
	if n := reads.Load(); n != 1 {
		t.Errorf("two clients of a view had it filled %d times", n)
	}
	let()
	for _, d := range []*deltaStream{one, two} {
		if got := hosts(t, d.next()); got != "shop/a=2 shop/b=2 shop/stop=1" {
			t.Errorf("a client of the slow view was sent %q", got)
		}
	}
	if n := len(r.server.Clients()); n != 3 {
		t.Errorf("%d clients", n)
	}
}

// TestAClientThatLeavesDoesNotTakeTheFillWithIt: another that waits for the view gets it.
func TestAClientThatLeavesDoesNotTakeTheFillWithIt(t *testing.T) {
	slow, resources, stopped, let, _ := slowView()
	defer let()
	r := startRelay(t, true, resources, func(c *Config, _ *Deps) { c.Views = []views.View{slow} })
	r.put(se("shop", "a", "1"), se("shop", "stop", "1"))
	one := r.deltaBy("slow-1", seV1)
	<-stopped
	two := r.deltaBy("slow-2", seV1)
	r.eventually(t, "both are there", func() bool { return len(r.server.connections()) == 2 })
	one.cancel()
	let()
	if got := deltaNames(two.next()); got != "shop/a shop/stop" {
		t.Errorf("got %q", got)
	}
	r.eventually(t, "one client is counted", func() bool {
		r.server.views.mu.Lock()
		defer r.server.views.mu.Unlock()
		views := r.server.views.copied()
		return len(views) == 1 && views[0].clients == 1 && r.server.views.copies.Load() == 1
	})
}

// TestPanicWhileAViewIsFilledEndsItsStreams: and nothing else. The next client fills it again.
func TestPanicWhileAViewIsFilledEndsItsStreams(t *testing.T) {
	var bad atomic.Bool
	bad.Store(true)
	r := startRelay(t, true, func(c *Config, d *Deps) {
		c.Views = []views.View{namespaces("v", "", "shop")}
		d.Resources = selecting{d.Resources, func(mirror.Key, func(*mirror.Resource) bool) {
			if bad.Load() {
				panic("no good")
			}
		}}
	})
	r.put(se("shop", "a", "1"))
	wantCode(t, r.deltaBy("a", seV1).end(), codes.Internal)
	bad.Store(false)
	if got := deltaNames(r.deltaBy("b", seV1).next()); got != "shop/a" {
		t.Errorf("got %q", got)
	}
	if n := r.server.views.copies.Load(); n != 1 {
		t.Errorf("%d views are counted", n)
	}
}

// TestAChangeDuringAFillIsNotLost: whatever changes, and whenever, the view is what it would
// be without a fill.
func TestAChangeDuringAFillIsNotLost(t *testing.T) {
	for seed := range uint64(50) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		c := newCopies("east", "west")
		all := many(60, "s-%03d", func(int) string { return "first" })
		for _, r := range all {
			c.put(copyOf(r, "east", "east"))
		}
		var vs *viewSet
		turn := func() {
			key := all[rnd.IntN(len(all))].Key()
			switch rnd.IntN(4) {
			case 0:
				c.remove(key, "east")
			case 1:
				c.put(copyOf(se("shop", key.Name, "west"), "west", "west"))
			default:
				c.put(copyOf(se("shop", key.Name, "more"), "east", "east"))
			}
			if rnd.IntN(20) == 0 {
				vs.update(true, nil, time.Now())
			} else {
				vs.update(false, map[mirror.Key]struct{}{key: {}}, time.Now())
			}
		}
		turns := 400 // more than a fill catches up with in its rounds
		vs = newViews(selecting{c, func(mirror.Key, func(*mirror.Resource) bool) {
			if turns == 0 || rnd.IntN(3) > 0 || !vs.mu.TryLock() {
				return
			}
			vs.mu.Unlock()
			turns--
			turn()
		}})
		vs.open(time.Now())
		x := views.Selection{Cluster: "west"}
		v := must(acquire(vs, x, protocolDelta))
		compare := func() {
			t.Helper()
			fresh := newViews(c)
			fresh.open(time.Now())
			want := must(acquire(fresh, x, protocolDelta)).snapshot(typeSE)
			is := v.snapshot(typeSE)
			if is.Version != want.Version || is.Count != want.Count || is.Bytes != want.Bytes || !maps.Equal(content(is), content(want)) {
				t.Fatalf("seed %d: %d resources, want %d", seed, is.Count, want.Count)
			}
		}
		compare()
		turns = 0
		for range 20 {
			turn()
		}
		compare()
	}
}
