package snapshot

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

// Region is the pages, or none, that a derived collection has in the range of the base
// page at that index, in its place.
type Region struct {
	At    int
	Pages []*Page
}

// NewDerived returns an empty derived collection.
func NewDerived() *Collection {
	c := &Collection{Keep: Memory{derivedLogLen, derivedRemovedLen}}
	c.current.Store(newSnapshot())
	return c
}

// Batch is the updates that a base collection has had applied last, for derived collections
// to follow.
type Batch struct {
	base  []*Page
	at    []int  // of each update, the index of the base page in whose range it is
	first uint64 // the revision before that of the first update
}

// Batch returns the batch of the updates that were applied last, in their order.
func (c *Collection) Batch(updates []Update) *Batch {
	bt := newBatch(c.current.Load().Pages, updates)
	bt.first = c.last - uint64(len(updates))
	return bt
}

func newBatch(base []*Page, updates []Update) *Batch {
	bt := &Batch{base: base, at: make([]int, len(updates))}
	for i, u := range updates {
		if len(bt.base) > 0 {
			bt.at[i] = pageOf(bt.base, u.Name)
		}
	}
	return bt
}

// Follow brings a derived collection to updates, which name what those of the batch do,
// in the same order. It reports whether clients have anything to look at; the pages may be
// others, and the snapshot so, even when not.
func (c *Collection) Follow(bt *Batch, updates []Update, changedAt time.Time) bool {
	old := c.current.Load()
	if old.Count == 0 && AllGone(updates) {
		return false
	}
	d := deriver{
		builder: builder{next: old.successor(changedAt), rev: bt.first, keep: c.Keep},
		Batch:   bt, old: c.Base, own: c.Own,
	}
	d.run(updates)
	changed := d.next.Rev != old.Rev
	switch {
	case changed:
		d.finish()
	case samePages(bt.base, c.Base):
		return false
	default:
		d.next.ChangedAt = old.ChangedAt
	}
	c.publish(&d)
	return changed
}

// Basis is one state of a base collection.
type Basis struct {
	pages []*Page
	last  uint64
}

// Basis returns the present state of a base collection; nil is one that has nothing yet.
func (c *Collection) Basis() Basis {
	if c == nil {
		return Basis{last: firstRev}
	}
	return Basis{c.current.Load().Pages, c.last}
}

// Begin brings a derived collection that no client has seen to updates, over one state of
// the base collection. Its revision is that of the base, and it has no past.
func (c *Collection) Begin(b Basis, updates []Update, changedAt time.Time) {
	slices.SortFunc(updates, func(a, b Update) int { return cmp.Compare(a.Name, b.Name) })
	d := deriver{
		builder: builder{next: c.current.Load().successor(changedAt), keep: c.Keep, fresh: true},
		Batch:   newBatch(b.pages, updates), old: c.Base, own: c.Own,
	}
	d.run(updates)
	d.next.Rev, d.next.LogFrom, d.next.removedFrom = b.last, b.last, b.last
	d.finish()
	c.publish(&d)
}

// publish makes what d has made the content.
func (c *Collection) publish(d *deriver) {
	c.Base, c.Own = d.base, d.made
	if d.next.Count == 0 {
		c.Base, c.Own = nil, nil
	}
	d.next.Pages = layout(c.Base, c.Own)
	c.current.Store(d.next)
}

// layout returns base with the pages of regions in their places.
func layout(base []*Page, own []Region) []*Page {
	if len(own) == 0 {
		return base
	}
	n := len(base)
	for _, r := range own {
		n += len(r.Pages)
	}
	pages := make([]*Page, 0, n)
	from := 0
	for _, r := range own {
		pages = append(pages, base[from:r.At]...)
		pages = append(pages, r.Pages...)
		from = min(r.At+1, len(base)) // without base pages, one region stands for all
	}
	return append(pages, base[from:]...)
}

// AllGone reports whether updates remove all that they name.
func AllGone(updates []Update) bool {
	return !slices.ContainsFunc(updates, func(u Update) bool { return u.Item != nil })
}

func samePages(a, b []*Page) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}

// deriver makes one snapshot of a derived collection: it walks the ranges of the base's
// new pages and those of its old ones side by side.
type deriver struct {
	builder
	*Batch
	old  []*Page  // the base's pages before
	own  []Region // before; those that the walk has passed are cut off
	made []Region
}

// run makes the regions and what is known of the content. updates are as in the batch.
func (d *deriver) run(updates []Update) {
	done := 0
	j := 0 // the old range in which the new one begins
	for i := range max(1, len(d.base)) {
		n := done
		for n < len(updates) && d.at[n] == i {
			n++
		}
		for len(d.own) > 0 && d.own[0].At < j {
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
func (d *deriver) part(i, j int, updates []Update) {
	same := d.sameRange(i, j)
	own := d.ownAt(j)
	switch {
	case same && len(updates) == 0 && pageAt(d.base, i) == pageAt(d.old, j):
		if own != nil {
			d.made = append(d.made, Region{i, own.Pages})
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
	case Covers(p, d.pages):
		if p != nil {
			// No entry is newer than its snapshot: a client that has that has it.
			d.next.Rev = max(d.next.Rev, p.MaxRev)
		}
	case same && own != nil && slices.Equal(d.pages, own.Pages):
		d.made = append(d.made, Region{i, own.Pages})
	case len(d.pages) == 0:
		d.made = append(d.made, Region{At: i})
	default:
		d.made = append(d.made, Region{i, slices.Clone(d.pages)})
	}
}

func pageAt(pages []*Page, i int) *Page {
	if i < len(pages) {
		return pages[i]
	}
	return nil
}

// ownAt returns the old region of range j; nil when the base's page stood there.
func (d *deriver) ownAt(j int) *Region {
	switch {
	case len(d.own) == 0 || d.own[0].At > j:
		return nil
	case d.own[0].At == j: // the walk is there
		return &d.own[0]
	}
	i, found := slices.BinarySearchFunc(d.own, j, func(r Region, at int) int { return cmp.Compare(r.At, at) })
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
func asBase(p *Page, updates []Update) bool {
	return p == nil && AllGone(updates) || p != nil && !touches(p, updates)
}

// noteAll records what updates change in p.
func (d *deriver) noteAll(p *Page, updates []Update) {
	for _, u := range updates {
		d.rev++
		var was Entry
		if n, found := p.find(u.Name); found {
			was = p.Entries[n]
		}
		if !Same(was.Item, u.Item) {
			d.note(u.Name, was.Item, u.Item)
		}
	}
}

// gather returns what the collection has had in the range of base page i.
func (d *deriver) gather(i, j int) (out []*Page) {
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
			pages = own.Pages
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
func (p *Page) between(from, to string) *Page {
	a, b := 0, len(p.Entries)
	if from != "" {
		a, _ = p.find(from)
	}
	if to != "" {
		b, _ = p.find(to)
	}
	switch {
	case a == 0 && b == len(p.Entries):
		return p
	case a >= b:
		return nil
	}
	return newPage(slices.Clone(p.Entries[a:b]))
}

// Covers reports whether p, which may be nil, can stand for pages. A revision in p may be
// newer than need be: clients then move on to it without being sent anything, but for one
// that is far behind, which may be sent a resource that it has.
func Covers(p *Page, pages []*Page) bool {
	n := 0
	for _, q := range pages {
		if p == nil || n+len(q.Entries) > len(p.Entries) {
			return false
		}
		for i := range q.Entries {
			if p != q && (!Same(p.Entries[n+i].Item, q.Entries[i].Item) || p.Entries[n+i].Rev < q.Entries[i].Rev) {
				return false
			}
		}
		n += len(q.Entries)
	}
	return p == nil && n == 0 || p != nil && n == len(p.Entries)
}

// EachOwn calls f with every item that the collection does not share with the base.
func (c *Collection) EachOwn(f func(Item)) {
	if c.Base == nil && c.Own == nil {
		c.current.Load().Each(f)
		return
	}
	for _, r := range c.Own {
		for _, p := range r.Pages {
			for i := range p.Entries {
				f(p.Entries[i].Item)
			}
		}
	}
}

// Fork returns a derived collection with the content and the past of c, which may be a base
// collection.
func (c *Collection) Fork() *Collection {
	s := c.current.Load()
	same := s.successor(s.ChangedAt)
	same.Pages = s.Pages
	// The arrays behind them are c's to append to.
	same.Log, same.removed = slices.Clip(same.Log), slices.Clip(same.removed)
	fork := NewDerived()
	fork.Base, fork.Own = c.Base, c.Own
	if c.last > 0 {
		fork.Base = s.Pages
	}
	fork.current.Store(same)
	return fork
}

// DropEncoded drops the encodings of the pages that none of users has: they hold the bytes
// of the items a second time.
func (c *Collection) DropEncoded(users []*Collection) {
	needed := map[*Page]bool{}
	for _, u := range users {
		for _, p := range u.current.Load().Pages {
			if p.encoded.Load() != nil {
				needed[p] = true
			}
		}
	}
	for _, p := range c.current.Load().Pages {
		if !needed[p] {
			p.encoded.Store(nil)
		}
	}
}
