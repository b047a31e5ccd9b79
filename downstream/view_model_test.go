package downstream

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"pgregory.net/rapid"

	"meshrelay/mirror"
)

// modelVariants are what clients of the model see.
var modelVariants = []variant{
	{},
	{cluster: "east"},
	{cluster: "west"},
	{cluster: "nowhere"},
	{revision: "blue"},
	{cluster: "east", revision: "green"},
	{rule: &rule{View: View{Accepts: func(r *mirror.Resource) bool { return r.Source() != "east" }}}},
	{rule: &rule{View: View{Accepts: func(r *mirror.Resource) bool { return r.Namespace() == "shop" }}}, cluster: "west"},
	{rule: &rule{View: View{Accepts: func(r *mirror.Resource) bool { return strings.Contains(r.FullName(), "3") }}}},
	{rule: &rule{View: View{Accepts: func(*mirror.Resource) bool { return false }}}},
}

// model is views over copies, and what clients of them hold.
type model struct {
	copies  *copies
	views   *views
	metrics *metrics
	seen    map[variant]*observer
	pending map[mirror.Key]struct{} // changed, and not pushed yet
}

// observer is what is known of a view from outside.
type observer struct {
	view        *view
	ever        map[string]bool // names that were in it
	states      []state
	delta, sotw *watch
	holds, full map[string]string // what the clients hold
}

// state is a snapshot of the past.
type state struct {
	rev     uint64
	content map[string]string
}

func TestViewsAreWhatTheyAccept(t *testing.T) {
	m := must(newMetrics(prometheus.NewRegistry()))
	rapid.Check(t, func(t *rapid.T) {
		c := newCopies("east", "west", "north")
		md := &model{copies: c, views: newViews(c), metrics: m, seen: map[variant]*observer{}, pending: map[mirror.Key]struct{}{}}
		for range rapid.IntRange(0, 60).Draw(t, "at first") {
			md.change(t)
		}
		md.join(t) // before the server opens
		md.views.open(time.Now())
		clear(md.pending)
		t.Repeat(map[string]func(*rapid.T){
			"change": func(t *rapid.T) {
				for range rapid.IntRange(1, 8).Draw(t, "changes") {
					md.change(t)
				}
			},
			"push some": func(t *rapid.T) { md.push(t, rapid.IntRange(0, len(md.pending)).Draw(t, "keys")) },
			"push all":  func(t *rapid.T) { md.push(t, len(md.pending)) },
			"push everything": func(*rapid.T) {
				md.views.update(true, nil, time.Now())
				clear(md.pending)
			},
			"join":  md.join,
			"leave": md.leave,
			"look": func(t *rapid.T) {
				for _, o := range md.seen {
					md.look(t, o)
				}
			},
			"": md.check,
		})
		md.push(t, len(md.pending))
		md.check(t)
		for _, o := range md.seen {
			md.look(t, o)
			md.compareWithFresh(t, o)
		}
		for len(md.seen) > 0 {
			md.leave(t)
		}
		if len(md.views.derived) != 0 || md.views.copies.Load() != 0 {
			t.Fatal("a view without clients is kept")
		}
	})
}

// change changes or removes one copy.
func (m *model) change(t *rapid.T) {
	source := rapid.SampledFrom(m.copies.order).Draw(t, "source")
	name := fmt.Sprint(rapid.IntRange(0, 30).Draw(t, "name"))
	if n := len(name); name[n-1] == '5' {
		name += "union"
	} else if name[n-1] == '7' {
		name += "reject"
	}
	namespace := rapid.SampledFrom([]string{"shop", "till"}).Draw(t, "namespace")
	key := mirror.Key{Kind: kindSE, Namespace: namespace, Name: name}
	m.pending[key] = struct{}{}
	if rapid.IntRange(0, 2).Draw(t, "remove") == 0 {
		m.copies.remove(key, source)
		return
	}
	// Some bodies are large, so that pages split and merge.
	host := strings.Repeat("x", rapid.SampledFrom([]int{1, 1, 1, 9000, 20000}).Draw(t, "size")) + fmt.Sprint(rapid.IntRange(0, 1).Draw(t, "content"))
	var labels []string
	if rev := rapid.SampledFrom([]string{"", "", "blue", "green"}).Draw(t, "revision"); rev != "" {
		labels = []string{"istio.io/rev", rev}
	}
	cluster := rapid.SampledFrom([]string{"", source, source, "east"}).Draw(t, "cluster")
	m.copies.put(copyOf(se(namespace, name, host, labels...), source, cluster))
}

func (m *model) push(t *rapid.T, n int) {
	keys := map[mirror.Key]struct{}{}
	all := slices.SortedFunc(maps.Keys(m.pending), func(a, b mirror.Key) int { return cmp.Compare(a.FullName(), b.FullName()) })
	for range n {
		i := rapid.IntRange(0, len(all)-1).Draw(t, "key")
		keys[all[i]] = struct{}{}
		delete(m.pending, all[i])
		all = slices.Delete(all, i, i+1)
	}
	before := map[variant]uint64{}
	states := map[variant]*snapshot{}
	for x, o := range m.seen {
		before[x], states[x] = o.view.changes.Load(), o.view.snapshot(kindSE)
	}
	m.views.update(false, keys, time.Now())
	for x, o := range m.seen {
		told, was, is := o.view.changes.Load() != before[x], states[x], o.view.snapshot(kindSE)
		if told != (is.rev != was.rev) || !told && is.version != was.version || is.rev < was.rev {
			t.Fatalf("%v: clients are told %v, from revision %d to %d", x, told, was.rev, is.rev)
		}
	}
}

func (m *model) join(t *rapid.T) {
	x := rapid.SampledFrom(modelVariants).Draw(t, "variant")
	v, err := acquire(m.views, x, protocolDelta)
	if err != nil {
		t.Fatal(err)
	}
	if o := m.seen[x]; o != nil {
		if o.view != v {
			t.Fatalf("clients of %v do not share a view", x)
		}
		m.views.release(v, viewer{protocol: protocolDelta})
		return
	}
	watcher := func() *watch {
		return &watch{typeURL: seV1, wildcard: true, owed: true, all: true, names: map[string]struct{}{}, has: map[string][16]byte{}}
	}
	m.seen[x] = &observer{view: v, ever: map[string]bool{}, delta: watcher(), sotw: watcher(), holds: map[string]string{}, full: map[string]string{}}
}

func (m *model) leave(t *rapid.T) {
	if len(m.seen) == 0 {
		t.Skip("nobody is there")
	}
	var there []variant
	for _, x := range modelVariants {
		if m.seen[x] != nil {
			there = append(there, x)
		}
	}
	x := rapid.SampledFrom(there).Draw(t, "variant")
	m.views.release(m.seen[x].view, viewer{protocol: protocolDelta})
	delete(m.seen, x)
}

// look brings the view's clients up to date.
func (m *model) look(t *rapid.T, o *observer) {
	if !m.views.released {
		return
	}
	s := o.view.snapshot(kindSE)
	st, ok, err := o.delta.planDelta(s, nil)
	switch {
	case err != nil: // too far behind: it comes again, with what it holds
		o.delta.cursor, o.delta.owed, o.delta.all, o.delta.held = 0, true, true, maps.Clone(o.holds)
		if st, ok, err = o.delta.planDelta(s, nil); err != nil || !ok {
			t.Fatalf("%v, %v", ok, err)
		}
		applyDifference(o.holds, st.diff)
	case ok:
		for _, name := range st.diff.removed {
			if !o.ever[name] {
				t.Fatalf("%s is said to be gone, and was never in the view", name)
			}
		}
		applyDifference(o.holds, st.diff)
	}
	if st, ok := o.sotw.planSotW(s, m.metrics); ok {
		o.full = decodeVersions(st)
	}
	want := content(s)
	if !maps.Equal(o.holds, want) || !maps.Equal(o.full, want) {
		t.Fatalf("%v: delta holds %v, SotW %v, want %v", o.view.variant, o.holds, o.full, want)
	}
}

// check compares every view with what it should be.
func (m *model) check(t *rapid.T) {
	if !m.views.released {
		return
	}
	base := m.views.base.find(kindSE)
	if base != nil {
		base.keep = memory{1, 2} // so that clients fall behind the log and the removals
	}
	for x, o := range m.seen {
		s := o.view.snapshot(kindSE)
		checkSnapshot(t, s)
		have := content(s)
		want := map[string]string{}
		for _, key := range m.copies.Keys(kindSE) {
			if r := m.copies.merge(key, x.accepts); r != nil {
				want[key.FullName()] = r.Version()
			}
		}
		for key := range m.pending {
			delete(want, key.FullName())
		}
		there := maps.Clone(have)
		for key := range m.pending {
			delete(there, key.FullName())
		}
		if !maps.Equal(there, want) {
			t.Fatalf("%v has %v, want %v", x, there, want)
		}
		for name := range have {
			o.ever[name] = true
		}
		if c := o.view.find(kindSE); x != (variant{}) && c != nil {
			c.keep = memory{1, 2}
			checkLayout(t, base, c)
		}
		o.replay(t, s, have)
		o.states = append(o.states, state{s.rev, have})
	}
}

// replay brings states of the past to the present one.
func (o *observer) replay(t *rapid.T, s *snapshot, want map[string]string) {
	kept := o.states[:0]
	for _, was := range o.states {
		d, ok := s.compare(was.rev)
		if !ok {
			continue // too far behind
		}
		holds := maps.Clone(was.content)
		applyDifference(holds, d)
		if !maps.Equal(holds, want) {
			t.Fatalf("%v: from revision %d to %d leads to %v, want %v", o.view.variant, was.rev, s.rev, holds, want)
		}
		for _, name := range d.removed {
			if !o.ever[name] {
				t.Fatalf("%s is said to be gone, and was never in the view", name)
			}
		}
		kept = append(kept, was)
	}
	o.states = kept
}

// checkSnapshot checks what a snapshot says of itself.
func checkSnapshot(t *rapid.T, s *snapshot) {
	var sum digest
	count, size, last := 0, 0, ""
	for _, p := range s.pages {
		if len(p.entries) == 0 || p.bytes != sizeOf(p.entries) {
			t.Fatalf("a page of %d entries and %d bytes", len(p.entries), p.bytes)
		}
		for _, e := range p.entries {
			if e.res.FullName() <= last || e.rev > p.maxRev || e.rev > s.rev {
				t.Fatalf("%s after %s, at revision %d of at most %d in the page and %d", e.res.FullName(), last, e.rev, p.maxRev, s.rev)
			}
			last = e.res.FullName()
			sum, count, size = sum.plus(e.res.Digest()), count+1, size+len(e.res.Frame())
			if got := s.get(last); got != e.res {
				t.Fatalf("%s is not found", last)
			}
		}
	}
	if sum != s.digest || s.version != sum.String() || count != s.count || size != s.bytes {
		t.Fatalf("digest %v, %d resources, %d bytes; want %v, %d, %d", s.digest, s.count, s.bytes, sum, count, size)
	}
	for i, c := range s.log {
		if c.rev <= s.logFrom || c.rev > s.rev || i > 0 && c.rev <= s.log[i-1].rev {
			t.Fatalf("log from %d to %d: %v", s.logFrom, s.rev, s.log)
		}
	}
}

// checkLayout checks that a derived collection shares what it can.
func checkLayout(t *rapid.T, base, c *collection) {
	s, pages := c.current.Load(), base.current.Load().pages
	if s.count == 0 {
		if len(c.own)+len(c.base)+len(s.pages) != 0 {
			t.Fatal("nothing costs something")
		}
		return
	}
	if !samePages(c.base, pages) || !slices.Equal(s.pages, layout(c.base, c.own)) {
		t.Fatal("the layout is not that of the base")
	}
	for i, r := range c.own {
		if i > 0 && r.at <= c.own[i-1].at || covers(pageAt(pages, r.at), r.pages) {
			t.Fatalf("region %d of %d could be shared or is not in order", i, len(c.own))
		}
	}
}

// compareWithFresh compares a view with that of a relay that has just started.
func (m *model) compareWithFresh(t *rapid.T, o *observer) {
	fresh := newViews(m.copies)
	fresh.open(time.Now())
	v := must(acquire(fresh, o.view.variant, protocolDelta))
	is, want := o.view.snapshot(kindSE), v.snapshot(kindSE)
	checkSnapshot(t, want)
	if is.version != want.version || is.count != want.count || is.bytes != want.bytes || !maps.Equal(content(is), content(want)) {
		t.Fatalf("%v: version %s of %d, a new relay has %s of %d", o.view.variant, is.version, is.count, want.version, want.count)
	}
}
