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

	"meshrelay/downstream/snapshot"
	"meshrelay/downstream/views"
	"meshrelay/mirror"
)

// modelVariants are what clients of the model see.
var modelVariants = []views.Selection{
	{},
	{Cluster: "east"},
	{Cluster: "west"},
	{Cluster: "nowhere"},
	{Revision: "blue"},
	{Cluster: "east", Revision: "green"},
	{Rule: &views.Rule{View: views.View{Accepts: func(r *mirror.Resource) bool { return r.Source() != "east" }}}},
	{Rule: &views.Rule{View: views.View{Accepts: func(r *mirror.Resource) bool { return r.Namespace() == "shop" }}}, Cluster: "west"},
	{Rule: &views.Rule{View: views.View{Accepts: func(r *mirror.Resource) bool { return strings.Contains(r.FullName(), "3") }}}},
	{Rule: &views.Rule{View: views.View{Accepts: func(*mirror.Resource) bool { return false }}}},
}

// model is views over copies, and what clients of them hold.
type model struct {
	copies  *copies
	views   *viewSet
	metrics *metrics
	seen    map[views.Selection]*observer
	pending map[mirror.Key]struct{} // changed, and not pushed yet
}

// observer is what is known of a view from outside.
type observer struct {
	view        *view
	ever        map[string]bool // names that were in it
	states      []state
	delta, sotw *follower
}

// state is a snapshot of the past.
type state struct {
	rev     uint64
	content map[string]string
}

func TestViewsAreWhatTheyAccept(t *testing.T) {
	t.Parallel()
	m := newMetrics(prometheus.NewRegistry())
	rapid.Check(t, func(t *rapid.T) {
		c := newCopies("east", "west", "north")
		md := &model{copies: c, views: newViews(c), metrics: m, seen: map[views.Selection]*observer{}, pending: map[mirror.Key]struct{}{}}
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
	before := map[views.Selection]uint64{}
	states := map[views.Selection]*snapshot.Snapshot{}
	for x, o := range m.seen {
		before[x], states[x] = o.view.changes.Load(), o.view.snapshot(typeSE)
	}
	m.views.update(false, keys, time.Now())
	for x, o := range m.seen {
		told, was, is := o.view.changes.Load() != before[x], states[x], o.view.snapshot(typeSE)
		if told != (is.Rev != was.Rev) || !told && is.Version != was.Version || is.Rev < was.Rev {
			t.Fatalf("%v: clients are told %v, from revision %d to %d", x, told, was.Rev, is.Rev)
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
		m.views.release(v, viewer{delta: true})
		return
	}
	m.seen[x] = &observer{view: v, ever: map[string]bool{}, delta: newFollower(true), sotw: newFollower(false)}
}

func (m *model) leave(t *rapid.T) {
	if len(m.seen) == 0 {
		t.Skip("nobody is there")
	}
	var there []views.Selection
	for _, x := range modelVariants {
		if m.seen[x] != nil {
			there = append(there, x)
		}
	}
	x := rapid.SampledFrom(there).Draw(t, "variant")
	m.views.release(m.seen[x].view, viewer{delta: true})
	delete(m.seen, x)
}

// look brings the view's clients up to date.
func (m *model) look(t *rapid.T, o *observer) {
	if !m.views.started.Load() {
		return
	}
	s := o.view.snapshot(typeSE)
	_, _, removed, err := o.delta.look(s)
	if err != nil { // too far behind: it comes again, with what it holds
		o.delta.connect()
		if sent, _, _, err := o.delta.look(s); err != nil || !sent {
			t.Fatalf("%v, %v", sent, err)
		}
	}
	for _, name := range removed {
		if !o.ever[name] {
			t.Fatalf("%s is removed, and was never in the view", name)
		}
	}
	if _, _, _, err := o.sotw.look(s); err != nil {
		t.Fatal(err)
	}
	want := content(s)
	if !maps.Equal(o.delta.holds, want) || !maps.Equal(o.sotw.holds, want) {
		t.Fatalf("%v: delta holds %v, SotW %v, want %v", o.view.selection, o.delta.holds, o.sotw.holds, want)
	}
}

// check compares every view with what it should be.
func (m *model) check(t *rapid.T) {
	if !m.views.started.Load() {
		return
	}
	base := m.views.base.find(typeSE)
	if base != nil {
		base.Keep = snapshot.Memory{Changes: 1, Removals: 2} // so that clients fall behind the log and the removals
	}
	for x, o := range m.seen {
		s := o.view.snapshot(typeSE)
		checkSnapshot(t, s)
		have := content(s)
		want := map[string]string{}
		for _, key := range m.copies.Keys(kindSE) {
			if r := m.copies.merge(key, x.Accepts); r != nil {
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
		if c := o.view.find(typeSE); x != (views.Selection{}) && c != nil {
			c.Keep = snapshot.Memory{Changes: 1, Removals: 2}
			checkLayout(t, base, c)
		}
		o.replay(t, s, have)
		o.states = append(o.states, state{s.Rev, have})
	}
}

// replay brings states of the past to the present one.
func (o *observer) replay(t *rapid.T, s *snapshot.Snapshot, want map[string]string) {
	kept := o.states[:0]
	for _, was := range o.states {
		d, ok := s.Since(was.rev)
		if !ok {
			continue // too far behind
		}
		holds := maps.Clone(was.content)
		applyDifference(holds, d)
		if !maps.Equal(holds, want) {
			t.Fatalf("%v: from revision %d to %d leads to %v, want %v", o.view.selection, was.rev, s.Rev, holds, want)
		}
		for _, name := range d.Removed {
			if !o.ever[name] {
				t.Fatalf("%s is removed, and was never in the view", name)
			}
		}
		kept = append(kept, was)
	}
	o.states = kept
}

// checkSnapshot checks what a snapshot tells of itself.
func checkSnapshot(t *rapid.T, s *snapshot.Snapshot) {
	var sum snapshot.Digest
	count, size, last := 0, 0, ""
	for _, p := range s.Pages {
		bytes := 0
		for _, e := range p.Entries {
			bytes += len(e.Item.Frame())
			if e.Item.FullName() <= last || e.Rev > p.MaxRev || e.Rev > s.Rev {
				t.Fatalf("%s after %s, at revision %d of at most %d in the page and %d", e.Item.FullName(), last, e.Rev, p.MaxRev, s.Rev)
			}
			last = e.Item.FullName()
			sum, count, size = sum.Plus(e.Item.Digest()), count+1, size+len(e.Item.Frame())
			if got := s.Get(last); got != e.Item {
				t.Fatalf("%s is not found", last)
			}
		}
		if len(p.Entries) == 0 || p.Bytes != bytes {
			t.Fatalf("a page of %d entries and %d bytes", len(p.Entries), p.Bytes)
		}
	}
	if sum != s.Digest || s.Version != sum.String() || count != s.Count || size != s.Bytes {
		t.Fatalf("digest %v, %d resources, %d bytes; want %v, %d, %d", s.Digest, s.Count, s.Bytes, sum, count, size)
	}
	for i, c := range s.Log {
		if c.Rev <= s.LogFrom || c.Rev > s.Rev || i > 0 && c.Rev <= s.Log[i-1].Rev {
			t.Fatalf("log from %d to %d: %v", s.LogFrom, s.Rev, s.Log)
		}
	}
}

// checkLayout checks that a derived collection shares what it can: it has whole pages in the
// range of each base page, and that page wherever it can stand for them.
func checkLayout(t *rapid.T, base, c *snapshot.Collection) {
	s := c.Current()
	if s.Count == 0 && len(s.Pages) != 0 {
		t.Fatal("nothing costs something")
	}
	first := func(p *snapshot.Page) string { return p.Entries[0].Item.FullName() }
	pages := s.Pages
	for i, p := range base.Current().Pages {
		n := len(pages)
		if next := base.Current().Pages[i+1:]; len(next) > 0 {
			n, _ = slices.BinarySearchFunc(pages, first(next[0]), func(p *snapshot.Page, name string) int { return cmp.Compare(first(p), name) })
			if n > 0 && pages[n-1].Entries[len(pages[n-1].Entries)-1].Item.FullName() >= first(next[0]) {
				t.Fatalf("a page is in the range of base page %d and in the next", i)
			}
		}
		if snapshot.Covers(p, pages[:n]) && !slices.Equal(pages[:n], []*snapshot.Page{p}) {
			t.Fatalf("the pages in the range of base page %d could be shared", i)
		}
		pages = pages[n:]
	}
}

// compareWithFresh compares a view with that of a relay that has just started.
func (m *model) compareWithFresh(t *rapid.T, o *observer) {
	fresh := newViews(m.copies)
	fresh.open(time.Now())
	v := must(acquire(fresh, o.view.selection, protocolDelta))
	is, want := o.view.snapshot(typeSE), v.snapshot(typeSE)
	checkSnapshot(t, want)
	if is.Version != want.Version || is.Count != want.Count || is.Bytes != want.Bytes || !maps.Equal(content(is), content(want)) {
		t.Fatalf("%v: version %s of %d, a new relay has %s of %d", o.view.selection, is.Version, is.Count, want.Version, want.Count)
	}
}
