package snapshot

import (
	"cmp"
	"slices"
	"time"
)

// A derived collection has the items of one type in a view that does not see all copies. A base page covers
// the names from its first name up to the first name of the next page. For each of these ranges, a derived
// collection has the base page if the content is the same, otherwise its own pages.

// NewDerived returns an empty derived collection.
func NewDerived() *Collection {
	c := &Collection{Keep: Memory{derivedLogLen, derivedRemovedLen}}
	c.current.Store(newSnapshot())
	return c
}

// Basis is a state of a base collection that derived collections follow.
type Basis struct {
	pages []*Page
	last  uint64
}

// Basis returns the present state of a base collection. nil means an empty collection.
func (c *Collection) Basis() Basis {
	if c == nil {
		return Basis{last: firstRev}
	}
	return Basis{c.current.Load().Pages, c.last}
}

// Follow applies updates to a derived collection. They must have the names of the last updates of the base,
// in the same order. It reports whether clients may see a difference: the pages can change without one.
func (c *Collection) Follow(b Basis, updates []Update, changedAt time.Time) bool {
	old := c.current.Load()
	if old.Count == 0 && AllGone(updates) {
		return false
	}
	d := builder{next: old.successor(changedAt), rev: b.last - uint64(len(updates)), keep: c.Keep}
	d.next.Pages = d.layOver(b.pages, old.Pages, updates)
	changed := d.next.Rev != old.Rev
	switch {
	case changed:
		d.finish()
	case slices.Equal(d.next.Pages, old.Pages):
		return false
	default:
		d.next.ChangedAt = old.ChangedAt
	}
	c.current.Store(d.next)
	return changed
}

// Begin builds a derived collection at the base's revision, without history. No client may have read it.
func (c *Collection) Begin(b Basis, updates []Update, changedAt time.Time) {
	slices.SortFunc(updates, func(a, b Update) int { return cmp.Compare(a.Name, b.Name) })
	old := c.current.Load()
	d := builder{next: old.successor(changedAt), keep: c.Keep, fresh: true}
	d.next.Pages = d.layOver(b.pages, old.Pages, updates)
	d.next.Rev, d.next.LogFrom, d.next.removedFrom = b.last, b.last, b.last
	d.finish()
	c.current.Store(d.next)
}

// AllGone reports whether all updates are removals.
func AllGone(updates []Update) bool {
	return !slices.ContainsFunc(updates, func(u Update) bool { return u.Item != nil })
}

// layOver applies updates to the pages of a derived collection. It uses base pages where they have the same
// content, and returns base itself if all have.
func (b *builder) layOver(base, pages []*Page, updates []Update) (out []*Page) {
	had := len(pages)
	for i := range max(1, len(base)) {
		mine := pages
		inRange := len(updates)
		if i+1 < len(base) {
			mine, pages = cut(pages, base[i], base[i+1])
			inRange = countBefore(updates, base[i+1].firstName())
		}
		if inRange > 0 {
			b.pages, b.base = b.pages[:0], nil
			if i < len(base) {
				b.base = base[i]
			}
			b.rebuild(mine, updates[:inRange])
			mine, updates = b.pages, updates[inRange:]
		}
		shared := i < len(base) && Covers(base[i], mine)
		if shared {
			// A client at a snapshot must have all its entries: no entry may be newer than Rev.
			b.next.Rev = max(b.next.Rev, base[i].MaxRev)
			mine = base[i : i+1]
		}
		if out == nil && !shared {
			out = append(make([]*Page, 0, had+1), base[:i]...)
		}
		if out != nil || !shared {
			out = append(out, mine...)
		}
	}
	switch {
	case b.next.Count == 0:
		return nil
	case out == nil:
		return base
	}
	return out
}

// countBefore returns the number of updates whose names sort before name.
func countBefore(updates []Update, name string) int {
	if len(updates) == 0 || updates[0].Name >= name {
		return 0
	}
	n, _ := slices.BinarySearchFunc(updates, name, func(u Update, name string) int { return cmp.Compare(u.Name, name) })
	return n
}

// cut splits pages at the first name of the next base page.
func cut(pages []*Page, base, next *Page) (before, after []*Page) {
	if len(pages) > 1 && pages[0] == base && pages[1] == next {
		return pages[:1], pages[1:]
	}
	name := next.firstName()
	n := 0
	for n < len(pages) && pages[n].firstName() < name {
		n++
	}
	if n == 0 {
		return nil, pages
	}
	last := pages[n-1].Entries
	at, _ := pages[n-1].find(name)
	if at == len(last) {
		return pages[:n], pages[n:]
	}
	before = append(slices.Clone(pages[:n-1]), newPage(slices.Clone(last[:at])))
	return before, append([]*Page{newPage(slices.Clone(last[at:]))}, pages[n:]...)
}

// Covers reports whether the base page p can replace pages. A newer revision in p is allowed. A client that
// is far behind may then get a resource that it already has.
func Covers(p *Page, pages []*Page) bool {
	count, bytes := 0, 0
	for _, q := range pages {
		count, bytes = count+len(q.Entries), bytes+q.Bytes
	}
	if count != len(p.Entries) || bytes != p.Bytes {
		return false
	}
	theirs := p.Entries
	for _, q := range pages {
		for i := 0; q != p && i < len(q.Entries); i++ {
			if !Same(theirs[i].Item, q.Entries[i].Item) || theirs[i].Rev < q.Entries[i].Rev {
				return false
			}
		}
		theirs = theirs[len(q.Entries):]
	}
	return true
}

// Fork returns a derived collection with the content and the history of c.
func (c *Collection) Fork() *Collection {
	s := c.current.Load()
	same := s.successor(s.ChangedAt)
	same.Pages = s.Pages
	// Only c may append to the shared arrays.
	same.Log, same.removed = slices.Clip(same.Log), slices.Clip(same.removed)
	fork := NewDerived()
	fork.current.Store(same)
	return fork
}

// DropEncoded drops the encodings of pages in a form, except pages that one of users has.
func (c *Collection) DropEncoded(form Form, users []*Collection) {
	needed := map[*Page]bool{}
	for _, u := range users {
		for _, p := range u.current.Load().Pages {
			if p.Encoded(form) {
				needed[p] = true
			}
		}
	}
	for _, p := range c.current.Load().Pages {
		if !needed[p] {
			p.encoded[form].Store(nil)
		}
	}
}
