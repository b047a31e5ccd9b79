package downstream

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"meshrelay/downstream/snapshot"
	"meshrelay/downstream/subscription"
	"meshrelay/downstream/views"
	"meshrelay/mirror"
)

// ownPages returns what a derived view does not share with the base view.
func (vs *viewSet) ownPages(v *view, t subscription.Type) (pages, entries int) {
	base := vs.base.snapshot(t).Pages
	for _, p := range v.snapshot(t).Pages {
		if !slices.Contains(base, p) {
			pages, entries = pages+1, entries+len(p.Entries)
		}
	}
	return pages, entries
}

// TestViewCostsWhatItLeavesOut: of 10,000 resources, and not what it has in common with
// the base view.
func TestViewCostsWhatItLeavesOut(t *testing.T) {
	const n = 10000
	c := newCopies("east", "west")
	for _, res := range many(n, "s-%05d", func(i int) string { return fmt.Sprintf("s%d.example", i) }) {
		c.put(res)
	}
	vs := newViews(c)
	vs.open(time.Now())
	base := vs.base.snapshot(typeSE)
	perPage := n / len(base.Pages)
	for _, left := range []int{0, 1, 10, n / 2, n} {
		out := map[string]bool{}
		for i := range left {
			out[fmt.Sprintf("shop/s-%05d", i*n/max(1, left))] = true
		}
		x := views.Selection{Rule: &views.Rule{View: views.View{Accepts: func(r *mirror.Resource) bool { return !out[r.FullName()] }}}}
		v := must(acquire(vs, x, protocolSotW))
		s := v.snapshot(typeSE)
		if s.Count != n-left {
			t.Fatalf("%d resources, want %d", s.Count, n-left)
		}
		shared := 0
		for _, p := range s.Pages {
			for _, q := range base.Pages {
				if p == q {
					shared++
				}
			}
		}
		pages, entries := vs.ownPages(v, typeSE)
		if shared+min(left, len(base.Pages)) < len(base.Pages) || pages > left || entries > left*(perPage+2) || entries > n {
			t.Errorf("a view that leaves out %d of %d shares %d of %d pages, and has %d with %d entries of its own",
				left, n, shared, len(base.Pages), pages, entries)
		}
		if left == 0 && &s.Pages[0] != &base.Pages[0] {
			t.Error("a view that leaves out nothing has a list of pages of its own")
		}
		m := newMetrics(prometheus.NewRegistry())
		base.Frames(snapshot.Full, m.pageEncoded)
		s.Frames(snapshot.Full, m.pageEncoded)
		if got := int(testutil.ToFloat64(m.pages)); got > len(base.Pages)+pages {
			t.Errorf("%d pages are encoded for both views, want at most %d", got, len(base.Pages)+pages)
		}
		vs.release(v, viewer{})
	}
}

// TestChangesKeepViewsShared: what is not near a change is neither made nor encoded anew.
func TestChangesKeepViewsShared(t *testing.T) {
	const n = 10000
	c := newCopies("east", "west")
	for _, res := range many(n, "s-%05d", func(int) string { return "x" }) {
		c.put(res)
	}
	c.put(east(se("shop", "s-03000", "own")))
	vs := newViews(c)
	vs.open(time.Now())
	v := must(acquire(vs, views.Selection{Cluster: "east"}, protocolSotW))
	push := func(res *mirror.Resource) (changed bool) {
		key := c.put(res)
		return vs.update(false, map[mirror.Key]struct{}{key: {}}, time.Now())
	}
	fresh := func(change func()) (made int) {
		before := map[*snapshot.Page]bool{}
		for _, p := range append(vs.base.snapshot(typeSE).Pages, v.snapshot(typeSE).Pages...) {
			before[p] = true
		}
		change()
		after := map[*snapshot.Page]bool{}
		for _, p := range append(vs.base.snapshot(typeSE).Pages, v.snapshot(typeSE).Pages...) {
			after[p] = true
		}
		for p := range after {
			if !before[p] {
				made++
			}
		}
		return made
	}
	for _, tc := range []struct {
		name    string
		res     *mirror.Resource
		made    int // pages, for both views
		changes uint64
	}{
		{"far away", se("shop", "s-07000", "new"), 1, 1},
		{"beside what is left out", se("shop", "s-03001", "new"), 2, 1},
		{"of what is left out", east(se("shop", "s-03000", "new")), 1, 0},
		{"of a copy that only the view has", west(se("shop", "s-03000", "west")), 1, 1},
		{"none", se("shop", "s-07000", "new"), 0, 0},
	} {
		before := v.changes.Load()
		if made := fresh(func() { push(tc.res) }); made != tc.made {
			t.Errorf("a change %s makes %d pages, want %d", tc.name, made, tc.made)
		}
		if told := v.changes.Load() - before; told != tc.changes {
			t.Errorf("a change %s: the clients are told of %d", tc.name, told)
		}
		if pages, _ := vs.ownPages(v, typeSE); pages != 1 {
			t.Errorf("after a change %s the view has %d pages of its own", tc.name, pages)
		}
	}
	// When both have the same again, they share again.
	c.remove(se("shop", "s-03000", "").Key(), "east")
	vs.update(false, map[mirror.Key]struct{}{se("shop", "s-03000", "").Key(): {}}, time.Now())
	if pages, _ := vs.ownPages(v, typeSE); pages != 0 {
		t.Errorf("the view equals the base view, and has %d pages of its own", pages)
	}
}

// viewsOfMany returns views of ten thousand ServiceEntries, and the copies that they show.
func viewsOfMany() (*copies, *viewSet) {
	c := newCopies("east", "west")
	for _, res := range many(10000, "s-%05d", func(int) string { return "x" }) {
		c.put(res)
	}
	vs := newViews(c)
	vs.open(time.Now())
	return c, vs
}

func BenchmarkApplyOneChangeToViews(b *testing.B) {
	for _, count := range []int{1, 100} {
		b.Run(fmt.Sprint(count), func(b *testing.B) {
			c, vs := viewsOfMany()
			for i := range count {
				cluster := fmt.Sprint("c-", i)
				c.put(copyOf(se("shop", fmt.Sprintf("s-%05d", i*97), "own"), "east", cluster))
				must(acquire(vs, views.Selection{Cluster: cluster}, protocolDelta))
			}
			vs.update(true, nil, time.Now())
			two := []*mirror.Resource{se("shop", "s-05000", "y"), se("shop", "s-05000", "z")}
			keys := map[mirror.Key]struct{}{two[0].Key(): {}}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				c.put(two[i%2])
				vs.update(false, keys, time.Now())
			}
		})
	}
}

// BenchmarkMoveAllClients is a reload after which every view is another, and shows the same.
func BenchmarkMoveAllClients(b *testing.B) {
	for _, count := range []int{1, 100} {
		b.Run(fmt.Sprint(count), func(b *testing.B) {
			_, vs := viewsOfMany()
			var clients []move
			accepts := func(r *mirror.Resource) bool { return r.FullName() != "shop/s-05000" }
			for i := range count {
				x := views.Selection{Rule: &views.Rule{View: views.View{Accepts: accepts}}, Revision: fmt.Sprint(i)}
				clients = append(clients, move{from: must(acquire(vs, x, protocolDelta)), to: x, who: viewer{delta: true}, done: func(*view) bool { return true }})
			}
			for b.Loop() {
				r := &views.Rule{View: views.View{Accepts: accepts}}
				for i := range clients {
					clients[i].to.Rule = r
				}
				lockedMove(vs, clients, time.Now())
			}
		})
	}
}

// TestViewsOpenInBatchesWithAll: also those of clients that have waited.
func TestViewsOpenInBatchesWithAll(t *testing.T) {
	const n = 2*openBatch + 100
	c := newCopies("east", "west")
	for _, res := range many(n, "s-%05d", func(i int) string { return fmt.Sprintf("s%d.example", i) }) {
		c.put(res)
	}
	x := views.Selection{Rule: &views.Rule{View: views.View{Accepts: func(r *mirror.Resource) bool {
		return !slices.Contains([]string{"shop/s-00007", "shop/s-09000"}, r.FullName())
	}}}}
	opened := newViews(c)
	waiting := must(acquire(opened, x, protocolSotW))
	opened.open(time.Now())
	later := must(acquire(opened, x, protocolSotW))
	if later != waiting {
		t.Error("a client that has waited has a view of its own")
	}
	for name, v := range map[string]struct {
		*view
		want int
	}{"base": {opened.base, n}, "of a client that has waited": {waiting, n - 2}} {
		s, before := v.snapshot(typeSE), ""
		entries := 0
		for _, p := range s.Pages {
			for _, e := range p.Entries {
				if full := e.Item.FullName(); full <= before {
					t.Fatalf("%s: %s after %s", name, full, before)
				} else {
					before = full
				}
				entries++
			}
		}
		if s.Count != v.want || entries != v.want {
			t.Errorf("%s: %d entries, counted are %d, want %d", name, entries, s.Count, v.want)
		}
	}
	if opened.update(true, nil, time.Now()) {
		t.Error("an update of everything finds what opening has left out")
	}
}
