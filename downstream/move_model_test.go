package downstream

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"pgregory.net/rapid"

	"meshrelay/downstream/snapshot"
	"meshrelay/downstream/views"
	"meshrelay/mirror"
)

// fleet is a model with clients, which are moved from view to view.
type fleet struct {
	*model
	clients []*member
	// exact is set while the views remember enough to tell each client exactly what differs.
	exact bool
}

// member is a client of the fleet, that is to say two: one for each protocol.
type member struct {
	id          int
	view        *view
	sees        views.Selection
	delta, sotw *follower
}

// TestMovedClientsHoldWhatTheirViewShows: whatever changes, however far behind they are, and
// however often they are moved; and of what both views show nothing ever vanishes.
func TestMovedClientsHoldWhatTheirViewShows(t *testing.T) {
	t.Parallel()
	m := newMetrics(prometheus.NewRegistry())
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
				if r := f.copies.merge(key, c.sees.Accepts); r != nil {
					want[key.FullName()] = r.Version()
				}
			}
			if !maps.Equal(c.delta.holds, want) || !maps.Equal(c.sotw.holds, want) {
				t.Fatalf("client %d of %v holds %v and %v, want %v", c.id, c.sees, c.delta.holds, c.sotw.holds, want)
			}
		}
		for len(f.clients) > 0 {
			f.leave(t)
		}
		vs := f.views
		if len(vs.derived)+len(vs.forks) != 0 || vs.copies.Load() != 0 || vs.base.clients != 0 || vs.base.sotw != [snapshot.Forms]int{} {
			t.Fatalf("without clients there are %d and %d views, counted %d; the base has %d clients",
				len(vs.derived), len(vs.forks), vs.copies.Load(), vs.base.clients)
		}
	})
}

func (f *fleet) join(t *rapid.T) {
	if len(f.clients) == 12 {
		t.Skip("there are enough")
	}
	x := rapid.SampledFrom(modelVariants).Draw(t, "variant")
	id := 0
	if n := len(f.clients); n > 0 {
		id = f.clients[n-1].id + 1
	}
	f.clients = append(f.clients, &member{
		id: id, view: must(acquire(f.views, x, protocolSotW)), sees: x,
		delta: newFollower(true), sotw: newFollower(false),
	})
}

func (f *fleet) leave(t *rapid.T) {
	if len(f.clients) == 0 {
		t.Skip("nobody is there")
	}
	i := rapid.IntRange(0, len(f.clients)-1).Draw(t, "client")
	f.views.release(f.clients[i].view, viewer{})
	f.clients = slices.Delete(f.clients, i, i+1)
}

// move gives every client a views.Selection: the same, or that of a new rule, which may equal the old one
// as after a reload.
func (f *fleet) move(t *rapid.T) {
	renewed := map[*views.Rule]*views.Rule{}
	again := rapid.Bool().Draw(t, "new rules")
	byVariant := map[views.Selection]views.Selection{} // clients of one variant mostly stay together
	var transfers []move
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
		if to.Rule != nil && again {
			if renewed[to.Rule] == nil {
				renewed[to.Rule] = &views.Rule{View: to.Rule.View}
			}
			to.Rule = renewed[to.Rule]
		}
		changes = changes || to != c.sees
		gone := rapid.IntRange(0, 15).Draw(t, "gone") == 0
		if gone {
			going = append(going, c)
		}
		transfers = append(transfers, move{from: c.view, to: to, who: viewer{}, done: func(v *view) bool {
			if !gone {
				c.view, c.sees = v, to
			}
			return !gone
		}})
	}
	lockedMove(f.views, transfers, time.Now())
	if f.views.started.Load() && changes {
		clear(f.pending) // all is read anew
	}
	for _, c := range going {
		f.views.release(c.view, viewer{})
		f.clients = slices.DeleteFunc(f.clients, func(o *member) bool { return o == c })
	}
	for _, c := range f.clients {
		if c.view.selection != c.sees {
			t.Fatalf("client %d is to see %v, and its view shows %v", c.id, c.sees, c.view.selection)
		}
	}
}

// look brings a client up to date.
func (f *fleet) look(t *rapid.T, c *member) {
	if !f.views.started.Load() {
		return
	}
	s := c.view.snapshot(typeSE)
	want := content(s)
	held := maps.Clone(c.delta.holds)
	sent, changed, removed, err := c.delta.look(s)
	switch {
	case err != nil: // too far behind: it comes again, with what it holds
		if f.exact {
			t.Fatal(err)
		}
		c.delta.connect()
		if sent, _, _, err = c.delta.look(s); err != nil || !sent {
			t.Fatalf("%v, %v", sent, err)
		}
	case sent && f.exact:
		f.checkExact(t, c, held, changed, removed, want)
	}
	before := c.sotw.holds
	if sent, _, _, err := c.sotw.look(s); err != nil || sent && maps.Equal(before, c.sotw.holds) && len(before) > 0 {
		t.Fatalf("client %d is sent the list that it has, or %v", c.id, err)
	}
	if !maps.Equal(c.delta.holds, want) || !maps.Equal(c.sotw.holds, want) {
		t.Fatalf("client %d of %v: delta holds %v, SotW %v, want %v", c.id, c.sees, c.delta.holds, c.sotw.holds, want)
	}
}

// checkExact checks that what a client was sent is what it lacked and what it had too much.
func (f *fleet) checkExact(t *rapid.T, c *member, held, gotChanged map[string]string, gotRemoved []string, want map[string]string) {
	changed, removed := map[string]string{}, []string(nil)
	for name, version := range want {
		if held[name] != version {
			changed[name] = version
		}
	}
	for name := range held {
		if _, there := want[name]; !there {
			removed = append(removed, name)
		}
	}
	slices.Sort(removed)
	slices.Sort(gotRemoved)
	if !maps.Equal(gotChanged, changed) || !slices.Equal(gotRemoved, removed) {
		t.Fatalf("client %d of %v is sent %v and loses %v, want %v and %v", c.id, c.sees, gotChanged, gotRemoved, changed, removed)
	}
}

// check compares every view with what it should be.
func (f *fleet) check(t *rapid.T) {
	vs := f.views
	if int(vs.copies.Load()) != len(vs.derived)+len(vs.forks) {
		t.Fatalf("%d views are counted, there are %d and %d", vs.copies.Load(), len(vs.derived), len(vs.forks))
	}
	clients := map[*view]int{}
	for _, c := range f.clients {
		clients[c.view]++
	}
	for x, v := range vs.derived {
		if v.selection != x || x == (views.Selection{}) {
			t.Fatalf("a view of %v is known as that of %v", v.selection, x)
		}
	}
	for _, v := range append(vs.copied(), vs.base) {
		if v.clients != clients[v] || v.sotw[snapshot.Full] != clients[v] || v != vs.base && v.clients == 0 {
			t.Fatalf("a view has %d clients, %d of them SotW; there are %d", v.clients, v.sotw, clients[v])
		}
	}
	if !vs.started.Load() {
		return
	}
	base := vs.base.find(typeSE)
	if base != nil && !f.exact {
		base.Keep = snapshot.Memory{Changes: 1, Removals: 2}
	}
	for _, v := range vs.copied() {
		s := v.snapshot(typeSE)
		checkSnapshot(t, s)
		have, want := content(s), map[string]string{}
		for _, key := range f.copies.Keys(kindSE) {
			if r := f.copies.merge(key, v.selection.Accepts); r != nil {
				want[key.FullName()] = r.Version()
			}
		}
		for key := range f.pending {
			delete(have, key.FullName())
			delete(want, key.FullName())
		}
		if !maps.Equal(have, want) {
			t.Fatalf("%v has %v, want %v", v.selection, have, want)
		}
		if c := v.find(typeSE); c != nil {
			if !f.exact {
				c.Keep = snapshot.Memory{Changes: 1, Removals: 2}
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
	one, two := must(acquire(vs, views.Selection{}, protocolDelta)), must(acquire(vs, views.Selection{}, protocolDelta))
	for i := range 5 { // so that the log has room
		key := c.put(se("shop", fmt.Sprint(i), "second"))
		vs.update(false, map[mirror.Key]struct{}{key: {}}, time.Now())
	}
	var moved *view
	settle := func(into **view) func(*view) bool {
		return func(v *view) bool { *into = v; return true }
	}
	without := views.Selection{Rule: &views.Rule{View: views.View{Accepts: func(r *mirror.Resource) bool { return r.FullName() != "shop/7" }}}}
	from := one.snapshot(typeSE).Rev
	lockedMove(vs, []move{
		{from: one, to: without, who: viewer{delta: true}, done: settle(&moved)},
		{from: two, to: views.Selection{}, who: viewer{delta: true}, done: settle(&two)},
	}, time.Now())
	if moved == vs.base || two != vs.base {
		t.Fatal("the views are the wrong ones")
	}
	for i := range 5 {
		key := c.put(se("shop", fmt.Sprint(10+i), "third"))
		vs.update(false, map[mirror.Key]struct{}{key: {}}, time.Now())
	}
	for _, v := range []*view{moved, two} {
		d, ok := v.snapshot(typeSE).Since(from)
		removed := 0
		if v == moved {
			removed = 1
		}
		if !ok || len(d.Changed) != 5 || len(d.Removed) != removed {
			t.Errorf("%v: %d resources and %v are told, %v", v.selection, len(d.Changed), d.Removed, ok)
		}
	}
}
