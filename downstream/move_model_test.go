package downstream

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"pgregory.net/rapid"

	"meshrelay/mirror"
)

// fleet is a model with clients, which are moved from view to view.
type fleet struct {
	*model
	clients []*member
	// exact says that the views remember enough to tell each client what differs, and nothing
	// else.
	exact bool
}

// member is a client of the fleet, that is to say two: one for each protocol.
type member struct {
	id          int
	view        *view
	sees        variant
	delta, sotw *watch
	holds, full map[string]string
}

// TestMovedClientsHoldWhatTheirViewShows: whatever changes, however far behind they are, and
// however often they are moved; and of what both views show nothing ever vanishes.
func TestMovedClientsHoldWhatTheirViewShows(t *testing.T) {
	m := must(newMetrics(prometheus.NewRegistry()))
	rapid.Check(t, func(t *rapid.T) {
		c := newCopies("east", "west", "north")
		f := &fleet{
			model: &model{copies: c, views: newViews(c), metrics: m, pending: map[mirror.Key]struct{}{}},
			exact: rapid.Bool().Draw(t, "exact"),
		}
		for range rapid.IntRange(0, 60).Draw(t, "at first") {
			f.change(t)
		}
		for range rapid.IntRange(0, 3).Draw(t, "early") {
			f.join(t)
		}
		f.move(t) // before the server opens
		f.views.open(time.Now())
		clear(f.pending)
		t.Repeat(map[string]func(*rapid.T){
			"change": func(t *rapid.T) {
				for range rapid.IntRange(1, 8).Draw(t, "changes") {
					f.change(t)
				}
			},
			"push some": func(t *rapid.T) { f.push(t, rapid.IntRange(0, len(f.pending)).Draw(t, "keys")) },
			"push all":  func(t *rapid.T) { f.push(t, len(f.pending)) },
			"join":      f.join,
			"leave":     f.leave,
			"move":      f.move,
			"look": func(t *rapid.T) {
				if len(f.clients) > 0 {
					f.look(t, rapid.SampledFrom(f.clients).Draw(t, "client"))
				}
			},
			"": f.check,
		})
		f.push(t, len(f.pending))
		f.check(t)
		for _, c := range f.clients {
			f.look(t, c)
			want := map[string]string{}
			for _, key := range f.copies.Keys(kindSE) {
				if r := f.copies.merge(key, c.sees.accepts); r != nil {
					want[key.FullName()] = r.Version()
				}
			}
			if !maps.Equal(c.holds, want) || !maps.Equal(c.full, want) {
				t.Fatalf("client %d of %v holds %v and %v, want %v", c.id, c.sees, c.holds, c.full, want)
			}
		}
		for len(f.clients) > 0 {
			f.leave(t)
		}
		vs := f.views
		if len(vs.derived)+len(vs.others) != 0 || vs.copies.Load() != 0 || vs.base.clients != 0 || vs.base.sotw != 0 {
			t.Fatalf("without clients there are %d and %d views, counted %d; the base has %d clients",
				len(vs.derived), len(vs.others), vs.copies.Load(), vs.base.clients)
		}
	})
}

func (f *fleet) join(t *rapid.T) {
	if len(f.clients) == 12 {
		t.Skip("there are enough")
	}
	x := rapid.SampledFrom(modelVariants).Draw(t, "variant")
	watcher := func() *watch {
		return &watch{typeURL: seV1, wildcard: true, owed: true, all: true, names: map[string]struct{}{}, has: map[string][16]byte{}}
	}
	id := 0
	if n := len(f.clients); n > 0 {
		id = f.clients[n-1].id + 1
	}
	f.clients = append(f.clients, &member{
		id: id, view: must(acquire(f.views, x, protocolSotW)), sees: x,
		delta: watcher(), sotw: watcher(), holds: map[string]string{}, full: map[string]string{},
	})
}

func (f *fleet) leave(t *rapid.T) {
	if len(f.clients) == 0 {
		t.Skip("nobody is there")
	}
	i := rapid.IntRange(0, len(f.clients)-1).Draw(t, "client")
	f.views.release(f.clients[i].view, viewer{protocol: protocolSotW})
	f.clients = slices.Delete(f.clients, i, i+1)
}

// move gives every client a variant: by a rule that is new and may say the same, as after a
// reload, or the one that it has.
func (f *fleet) move(t *rapid.T) {
	renewed := map[*rule]*rule{}
	again := rapid.Bool().Draw(t, "new rules")
	byVariant := map[variant]variant{} // clients of one variant mostly stay together
	var transfers []transfer
	var going []*member
	changes := false
	for _, c := range f.clients {
		to, known := byVariant[c.sees]
		if !known || rapid.IntRange(0, 3).Draw(t, "apart") == 0 {
			to = c.sees
			if rapid.Bool().Draw(t, "moved") {
				to = rapid.SampledFrom(modelVariants).Draw(t, "to")
			}
			byVariant[c.sees] = to
		}
		if to.rule != nil && again {
			if renewed[to.rule] == nil {
				renewed[to.rule] = &rule{View: to.rule.View}
			}
			to.rule = renewed[to.rule]
		}
		changes = changes || to != c.sees
		gone := rapid.IntRange(0, 15).Draw(t, "gone") == 0
		if gone {
			going = append(going, c)
		}
		transfers = append(transfers, transfer{from: c.view, to: to, who: viewer{protocol: protocolSotW}, settle: func(v *view) bool {
			if !gone {
				c.view, c.sees = v, to
			}
			return !gone
		}})
	}
	f.views.move(transfers, time.Now())
	if f.views.released && changes {
		clear(f.pending) // all is read anew
	}
	for _, c := range going {
		f.views.release(c.view, viewer{protocol: protocolSotW})
		f.clients = slices.DeleteFunc(f.clients, func(o *member) bool { return o == c })
	}
	for _, c := range f.clients {
		if c.view.variant != c.sees {
			t.Fatalf("client %d is to see %v, and its view shows %v", c.id, c.sees, c.view.variant)
		}
	}
}

// look brings a client up to date.
func (f *fleet) look(t *rapid.T, c *member) {
	if !f.views.released {
		return
	}
	s := c.view.snapshot(kindSE)
	want := content(s)
	st, ok, err := c.delta.planDelta(s, nil)
	switch {
	case err != nil: // too far behind: it comes again, with what it holds
		if f.exact {
			t.Fatal(err)
		}
		c.delta.cursor, c.delta.owed, c.delta.all, c.delta.held = 0, true, true, maps.Clone(c.holds)
		if st, ok, err = c.delta.planDelta(s, nil); err != nil || !ok {
			t.Fatalf("%v, %v", ok, err)
		}
	case ok && f.exact:
		f.checkExact(t, c, st.diff, want)
	}
	if ok {
		applyDifference(c.holds, st.diff)
	}
	before := c.full
	if st, ok := c.sotw.planSotW(s, f.metrics); ok {
		c.full = decodeVersions(st)
		if maps.Equal(before, c.full) && len(before) > 0 {
			t.Fatalf("client %d is sent the list that it has", c.id)
		}
	}
	if !maps.Equal(c.holds, want) || !maps.Equal(c.full, want) {
		t.Fatalf("client %d of %v: delta holds %v, SotW %v, want %v", c.id, c.sees, c.holds, c.full, want)
	}
}

// checkExact checks that a difference is what the client lacks and what it has too much.
func (f *fleet) checkExact(t *rapid.T, c *member, d *difference, want map[string]string) {
	changed, removed := map[string]string{}, []string(nil)
	for name, version := range want {
		if c.holds[name] != version {
			changed[name] = version
		}
	}
	for name := range c.holds {
		if _, there := want[name]; !there {
			removed = append(removed, name)
		}
	}
	got := map[string]string{}
	applyDifference(got, &difference{changed: d.changed})
	slices.Sort(removed)
	if !maps.Equal(got, changed) || !slices.Equal(slices.Sorted(slices.Values(d.removed)), removed) {
		t.Fatalf("client %d of %v is sent %v and loses %v, want %v and %v", c.id, c.sees, got, d.removed, changed, removed)
	}
}

// check compares every view with what it should be.
func (f *fleet) check(t *rapid.T) {
	vs := f.views
	if int(vs.copies.Load()) != len(vs.derived)+len(vs.others) {
		t.Fatalf("%d views are counted, there are %d and %d", vs.copies.Load(), len(vs.derived), len(vs.others))
	}
	clients := map[*view]int{}
	for _, c := range f.clients {
		clients[c.view]++
	}
	for x, v := range vs.derived {
		if v.variant != x || x == (variant{}) {
			t.Fatalf("a view of %v is known as that of %v", v.variant, x)
		}
	}
	for _, v := range append(vs.copied(), vs.base) {
		if v.clients != clients[v] || v.sotw != clients[v] || v != vs.base && v.clients == 0 {
			t.Fatalf("a view has %d clients, %d of them SotW; there are %d", v.clients, v.sotw, clients[v])
		}
	}
	if !vs.released {
		return
	}
	base := vs.base.find(kindSE)
	if base != nil && !f.exact {
		base.keep = memory{1, 2}
	}
	for _, v := range vs.copied() {
		s := v.snapshot(kindSE)
		checkSnapshot(t, s)
		have, want := content(s), map[string]string{}
		for _, key := range f.copies.Keys(kindSE) {
			if r := f.copies.merge(key, v.variant.accepts); r != nil {
				want[key.FullName()] = r.Version()
			}
		}
		for key := range f.pending {
			delete(have, key.FullName())
			delete(want, key.FullName())
		}
		if !maps.Equal(have, want) {
			t.Fatalf("%v has %v, want %v", v.variant, have, want)
		}
		if c := v.find(kindSE); c != nil {
			if !f.exact {
				c.keep = memory{1, 2}
			}
			checkLayout(t, base, c)
		}
	}
}

// TestForksDoNotShareWhatIsAppendedTo: the logs of views that have parted.
func TestForksDoNotShareWhatIsAppendedTo(t *testing.T) {
	c := newCopies("east", "west")
	vs := newViews(c)
	for i := range 20 {
		c.put(se("shop", fmt.Sprint(i), "first"))
	}
	vs.open(time.Now())
	one, two := must(acquire(vs, variant{}, protocolDelta)), must(acquire(vs, variant{}, protocolDelta))
	for i := range 5 { // so that the log has room
		key := c.put(se("shop", fmt.Sprint(i), "second"))
		vs.update(false, map[mirror.Key]struct{}{key: {}}, time.Now())
	}
	var moved *view
	settle := func(into **view) func(*view) bool {
		return func(v *view) bool { *into = v; return true }
	}
	without := variant{rule: &rule{View: View{Accepts: func(r *mirror.Resource) bool { return r.FullName() != "shop/7" }}}}
	from := one.snapshot(kindSE).rev
	vs.move([]transfer{
		{from: one, to: without, who: viewer{protocol: protocolDelta}, settle: settle(&moved)},
		{from: two, to: variant{}, who: viewer{protocol: protocolDelta}, settle: settle(&two)},
	}, time.Now())
	if moved == vs.base || two != vs.base {
		t.Fatal("the views are the wrong ones")
	}
	for i := range 5 {
		key := c.put(se("shop", fmt.Sprint(10+i), "third"))
		vs.update(false, map[mirror.Key]struct{}{key: {}}, time.Now())
	}
	for _, v := range []*view{moved, two} {
		d, ok := v.snapshot(kindSE).since(from)
		removed := 0
		if v == moved {
			removed = 1
		}
		if !ok || len(d.changed) != 5 || len(d.removed) != removed {
			t.Errorf("%v: %d resources and %v are told, %v", v.variant, len(d.changed), d.removed, ok)
		}
	}
}
