package downstream

import (
	"cmp"
	"slices"
	"time"
)

// A derived collection is the resources of one kind in a view that does not see all
// copies. It shares the pages of the base collection wherever the content is the same,
// and so costs memory for what differs.
//
// Each base page stands for a range of names, from its first name up to the next page's;
// the first from the beginning. In each range a derived collection has either the base
// page or a region of its own.

// region is the pages, or none, that a derived collection has in the range of the base
// page at that index, in its place.
type region struct {
	at    int
	pages []*page
}

func newDerivedCollection() *collection {
	c := &collection{keep: memory{derivedLogLen, derivedRemovedLen}}
	c.current.Store(newSnapshot())
	return c
}

// batch is what the base collection has been brought to by some updates, for the derived
// collections to follow.
type batch struct {
	base  []*page
	at    []int  // of each update, the index of the base page in whose range it is
	first uint64 // the revision before that of the first update
}

// newBatch returns the batch of updates that the base collection with these pages has had
// applied; first is its newest revision before that.
func newBatch(base []*page, updates []update, first uint64) *batch {
	bt := &batch{base: base, at: make([]int, len(updates)), first: first}
	for i, u := range updates {
		if len(bt.base) > 0 {
			bt.at[i] = pageOf(bt.base, u.name)
		}
	}
	return bt
}

// follow brings a derived collection to updates, which name what those of the batch do,
// in the same order. It reports whether clients have anything to look at; the pages may be
// others, and the snapshot so, even when not.
func (c *collection) follow(bt *batch, updates []update, changedAt time.Time) bool {
	old := c.current.Load()
	if old.count == 0 && allNil(updates) {
		return false
	}
	d := deriver{
		builder: builder{next: old.successor(changedAt), rev: bt.first, keep: c.keep},
		batch:   bt, old: c.base, own: c.own,
	}
	d.run(updates)
	changed := d.next.rev != old.rev
	switch {
	case changed:
		d.finish()
	case samePages(bt.base, c.base):
		return false
	default:
		d.next.changedAt = old.changedAt
	}
	c.settle(&d)
	return changed
}

// begin brings a derived collection that no client has seen to updates, over one state of
// the base collection. Its revision is that of the base, and it has no past.
func (c *collection) begin(b basis, updates []update, changedAt time.Time) {
	slices.SortFunc(updates, func(a, b update) int { return cmp.Compare(a.name, b.name) })
	d := deriver{
		builder: builder{next: c.current.Load().successor(changedAt), keep: c.keep, fresh: true},
		batch:   newBatch(b.pages, updates, 0), old: c.base, own: c.own,
	}
	d.run(updates)
	d.next.rev, d.next.logFrom, d.next.removedFrom = b.last, b.last, b.last
	d.finish()
	c.settle(&d)
}

// settle publishes what d has made.
func (c *collection) settle(d *deriver) {
	c.base, c.own = d.base, d.made
	if d.next.count == 0 {
		c.base, c.own = nil, nil
	}
	d.next.pages = layout(c.base, c.own)
	c.current.Store(d.next)
}

// layout returns base with the pages of regions in their places.
func layout(base []*page, own []region) []*page {
	if len(own) == 0 {
		return base
	}
	n := len(base)
	for _, r := range own {
		n += len(r.pages)
	}
	pages := make([]*page, 0, n)
	from := 0
	for _, r := range own {
		pages = append(pages, base[from:r.at]...)
		pages = append(pages, r.pages...)
		from = min(r.at+1, len(base)) // without base pages, one region stands for all
	}
	return append(pages, base[from:]...)
}

func allNil(updates []update) bool {
	return !slices.ContainsFunc(updates, func(u update) bool { return u.res != nil })
}

func samePages(a, b []*page) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}

// deriver makes one snapshot of a derived collection: it walks the ranges of the base's
// new pages and those of its old ones side by side.
type deriver struct {
	builder
	*batch
	old  []*page  // the base's pages before
	own  []region // before; those that the walk has passed are cut off
	made []region
}

// run makes the regions and what is known of the content. updates are as in the batch.
func (d *deriver) run(updates []update) {
	done := 0
	j := 0 // the old range in which the new one begins
	for i := range max(1, len(d.base)) {
		n := done
		for n < len(updates) && d.at[n] == i {
			n++
		}
		for len(d.own) > 0 && d.own[0].at < j {
			d.own = d.own[1:]
		}
		d.part(i, j, updates[done:n])
		done = n
		if i+1 == len(d.base) {
			break
		}
		for len(d.base) > 0 && j+1 < len(d.old) {
			if d.old[j+1] == d.base[i+1] {
				j++
				break
			}
			if d.old[j+1].firstName() > d.base[i+1].firstName() {
				break
			}
			j++
		}
	}
}

// part settles what stands in the range of base page i. It begins in the old range j.
func (d *deriver) part(i, j int, updates []update) {
	same := d.sameRange(i, j)
	own := d.ownAt(j)
	switch {
	case same && len(updates) == 0 && pageAt(d.base, i) == pageAt(d.old, j):
		if own != nil {
			d.made = append(d.made, region{i, own.pages})
		}
		return
	case same && own == nil && j < len(d.old) && asBase(pageAt(d.base, i), updates):
		// It had the base's page, and has had the same done to it.
		d.noteAll(d.old[j], updates)
		return
	}
	d.pages = d.pages[:0]
	d.rebuild(d.gather(i, j), updates)
	switch p := pageAt(d.base, i); {
	case covers(p, d.pages):
		if p != nil {
			// No entry is newer than its snapshot: a client that has that has it.
			d.next.rev = max(d.next.rev, p.maxRev)
		}
	case same && own != nil && slices.Equal(d.pages, own.pages):
		d.made = append(d.made, region{i, own.pages})
	case len(d.pages) == 0:
		d.made = append(d.made, region{at: i})
	default:
		d.made = append(d.made, region{i, slices.Clone(d.pages)})
	}
}

func pageAt(pages []*page, i int) *page {
	if i < len(pages) {
		return pages[i]
	}
	return nil
}

// ownAt returns the old region of range j; nil when the base's page stood there.
func (d *deriver) ownAt(j int) *region {
	switch {
	case len(d.own) == 0 || d.own[0].at > j:
		return nil
	case d.own[0].at == j: // the walk is there
		return &d.own[0]
	}
	i, found := slices.BinarySearchFunc(d.own, j, func(r region, at int) int { return cmp.Compare(r.at, at) })
	if !found {
		return nil
	}
	return &d.own[i]
}

// sameRange reports whether the new range i is the old range j.
func (d *deriver) sameRange(i, j int) bool {
	begin := func(i, j int) bool {
		a, b := pageAt(d.base, i), pageAt(d.old, j)
		return a == b || a != nil && b != nil && a.firstName() == b.firstName()
	}
	return (i == 0 && j == 0 || i > 0 && j > 0 && begin(i, j)) && begin(i+1, j+1)
}

// asBase reports whether p, which may be nil, is what updates say.
func asBase(p *page, updates []update) bool {
	return p == nil && allNil(updates) || p != nil && !touches(p, updates)
}

// noteAll records what updates change in p.
func (d *deriver) noteAll(p *page, updates []update) {
	for _, u := range updates {
		d.rev++
		var was entry
		if n, found := p.find(u.name); found {
			was = p.entries[n]
		}
		if !was.res.Equal(u.res) {
			d.note(u.name, was.res, u.res)
		}
	}
}

// gather returns what the collection has had in the range of base page i.
func (d *deriver) gather(i, j int) (out []*page) {
	from, to := "", ""
	if i > 0 {
		from = d.base[i].firstName()
	}
	if i+1 < len(d.base) {
		to = d.base[i+1].firstName()
	}
	for first := j; j < max(1, len(d.old)); j++ {
		if j > first && to != "" && d.old[j].firstName() >= to {
			break
		}
		pages := d.old[min(j, len(d.old)):min(j+1, len(d.old))]
		if own := d.ownAt(j); own != nil {
			pages = own.pages
		}
		for _, p := range pages {
			if p = p.between(from, to); p != nil {
				out = append(out, p)
			}
		}
	}
	return out
}

// between returns the part of p from one name up to another, which is not in it; nil when
// there is none. An empty name is no bound.
func (p *page) between(from, to string) *page {
	a, b := 0, len(p.entries)
	if from != "" {
		a, _ = p.find(from)
	}
	if to != "" {
		b, _ = p.find(to)
	}
	switch {
	case a == 0 && b == len(p.entries):
		return p
	case a >= b:
		return nil
	}
	return newPage(slices.Clone(p.entries[a:b]))
}

// covers reports whether p, which may be nil, can stand for pages. A revision in p may be
// newer than need be: clients then move on to it without being sent anything, but for one
// that is far behind, which may be sent a resource that it has.
func covers(p *page, pages []*page) bool {
	n := 0
	for _, q := range pages {
		if p == nil || n+len(q.entries) > len(p.entries) {
			return false
		}
		for i := range q.entries {
			if p != q && (!p.entries[n+i].res.Equal(q.entries[i].res) || p.entries[n+i].rev < q.entries[i].rev) {
				return false
			}
		}
		n += len(q.entries)
	}
	return p == nil && n == 0 || p != nil && n == len(p.entries)
}
