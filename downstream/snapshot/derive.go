package snapshot

import (
	"cmp"
	"slices"
	"time"
)

// A derived collection is the items of one type in a view that does not see all copies. Each base
// page stands for the names from its first up to the first of the next. In each of these ranges a
// derived collection has the base page, if the content is the same, or pages of its own.

// NewDerived returns an empty derived collection.
func NewDerived() *Collection {
	c := &Collection{Keep: Memory{derivedLogLen, derivedRemovedLen}}
	c.current.Store(newSnapshot())
	return c
}

// Basis is one state of a base collection, for derived collections to follow.
type Basis struct {
	pages []*Page
	last  uint64
}

// Basis returns the present state of a base collection; nil is a collection that has nothing yet.
func (c *Collection) Basis() Basis {
	if c == nil {
		return Basis{last: firstRev}
	}
	return Basis{c.current.Load().Pages, c.last}
}

// Follow applies updates to a derived collection. They name, in order, the same as the last updates
// of the base. It reports whether clients have anything to look at; the pages may change even if
// not.
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

// Begin applies updates to a derived collection that no client has seen. Its revision becomes that
// of the base, and it has no past.
func (c *Collection) Begin(b Basis, updates []Update, changedAt time.Time) {
	slices.SortFunc(updates, func(a, b Update) int { return cmp.Compare(a.Name, b.Name) })
	old := c.current.Load()
	d := builder{next: old.successor(changedAt), keep: c.Keep, fresh: true}
	d.next.Pages = d.layOver(b.pages, old.Pages, updates)
	d.next.Rev, d.next.LogFrom, d.next.removedFrom = b.last, b.last, b.last
	d.finish()
	c.current.Store(d.next)
}

// AllGone reports whether updates remove all that they name.
func AllGone(updates []Update) bool {
	return !slices.ContainsFunc(updates, func(u Update) bool { return u.Item != nil })
}

// layOver applies updates to the pages of a derived collection. It returns the base pages wherever
// these can stand for them, and base itself when all can.
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
			// No entry is newer than its snapshot: a client that has that has it.
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

// countBefore returns how many of updates are of a name before another.
func countBefore(updates []Update, name string) int {
	if len(updates) == 0 || updates[0].Name >= name {
		return 0
	}
	n, _ := slices.BinarySearchFunc(updates, name, func(u Update, name string) int { return cmp.Compare(u.Name, name) })
	return n
}

// cut splits pages, which begin in the range of a base page, where the next range begins.
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

// Covers reports whether p can stand for pages. A newer revision in p does no harm: clients move on
// to it, and a client that is far behind may be sent a resource that it has.
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

// Fork returns a derived collection with the content and the past of any c.
func (c *Collection) Fork() *Collection {
	s := c.current.Load()
	same := s.successor(s.ChangedAt)
	same.Pages = s.Pages
	// The arrays behind them are c's to append to.
	same.Log, same.removed = slices.Clip(same.Log), slices.Clip(same.removed)
	fork := NewDerived()
	fork.current.Store(same)
	return fork
}

// DropEncoded drops the encodings in a form of the pages that none of users has.
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
