package snapshot

import (
	"cmp"
	"slices"
	"sync/atomic"
	"time"
)

// Collection is the items of one type in one view, as a sequence of snapshots. Only one
// goroutine applies changes; any number read the newest snapshot.
//
// A base collection has everything. It gives out the revisions of its type for all views, so
// a page of it can stand in any of them.
type Collection struct {
	current atomic.Pointer[Snapshot]
	Keep    Memory
	// last is the newest revision that was given out; of base collections.
	last uint64
}

// firstRev is older than any change, and newer than the cursor of a client that has nothing.
const firstRev = 1

// Memory is how much a collection remembers of the past.
type Memory struct{ Changes, Removals int }

// New returns an empty base collection.
func New() *Collection {
	c := &Collection{Keep: Memory{logLen, removedLen}, last: firstRev}
	c.current.Store(newSnapshot())
	return c
}

// Current returns the newest snapshot.
func (c *Collection) Current() *Snapshot { return c.current.Load() }

// Update is a name's new content; a nil Item removes it.
type Update struct {
	Name string
	Item Item
}

// Apply applies updates, at most one for each name, and reports whether anything differs. It sorts
// them and gives each the next revision. Its cost grows with updates and pages, not with items.
func (c *Collection) Apply(updates []Update, changedAt time.Time) bool {
	slices.SortFunc(updates, func(a, b Update) int { return cmp.Compare(a.Name, b.Name) })
	old := c.current.Load()
	b := builder{next: old.successor(changedAt), rev: c.last, keep: c.Keep}
	c.last += uint64(len(updates))
	b.pages = make([]*Page, 0, len(old.Pages)+1)
	b.next.Log = slices.Grow(b.next.Log, min(len(updates), 4*c.Keep.Changes))
	b.rebuild(old.Pages, updates)
	if b.next.Rev == old.Rev {
		return false
	}
	b.next.Pages = b.pages
	b.finish()
	c.current.Store(b.next)
	return true
}

// successor returns a copy of s without pages, to be changed.
func (s *Snapshot) successor(changedAt time.Time) *Snapshot {
	return &Snapshot{
		Rev: s.Rev, Digest: s.Digest, Version: s.Version, Count: s.Count, Bytes: s.Bytes,
		Log: s.Log, LogFrom: s.LogFrom, removed: s.removed, removedFrom: s.removedFrom, tidied: s.tidied,
		ChangedAt: changedAt,
	}
}

// builder makes one snapshot.
type builder struct {
	next  *Snapshot
	pages []*Page
	rev   uint64 // of the update before the next one
	keep  Memory
	// fresh tells that no client has seen the collection: nothing is a change to anyone.
	fresh bool
	// base is the page of the base collection that may stand for the range at work.
	base *Page
}

// finish completes a snapshot that differs from the one before.
func (b *builder) finish() {
	b.trim()
	b.next.Version = b.next.Digest.String()
}

// rebuild appends pages with updates applied. Both are sorted.
func (b *builder) rebuild(pages []*Page, updates []Update) {
	if len(pages) == 0 {
		b.rebuildPage(nil, updates)
		return
	}
	for len(updates) > 0 {
		i := pageOf(pages, updates[0].Name)
		b.pages = append(b.pages, pages[:i]...)
		n := len(updates)
		if i+1 < len(pages) {
			n = countBefore(updates, pages[i+1].firstName())
		}
		b.rebuildPage(pages[i], updates[:n])
		pages, updates = pages[i+1:], updates[n:]
	}
	b.pages = append(b.pages, pages...)
}

// pageOf returns the index of the page that a name belongs to.
func pageOf(pages []*Page, name string) int {
	i, found := slices.BinarySearchFunc(pages, name, func(p *Page, name string) int {
		return cmp.Compare(p.firstName(), name)
	})
	if !found && i > 0 {
		i--
	}
	return i
}

// rebuildPage appends p, which may be nil, with updates applied.
func (b *builder) rebuildPage(p *Page, updates []Update) {
	if p != nil && !touches(p, updates) {
		b.pages = append(b.pages, p)
		b.rev += uint64(len(updates))
		return
	}
	var old []Entry
	if p != nil {
		old = p.Entries
	}
	list := entryList{like: b.base, most: len(old) + len(updates)}
	for _, u := range updates {
		b.rev++
		n, found := slices.BinarySearchFunc(old, u.Name, func(e Entry, name string) int {
			return cmp.Compare(e.Item.FullName(), name)
		})
		list.add(old[:n]...)
		old = old[n:]
		var was Entry
		if found {
			was = old[0]
			old = old[1:]
		}
		switch {
		case Same(was.Item, u.Item):
			if was.Item != nil {
				list.add(Entry{u.Item, was.Rev})
			}
		case u.Item == nil:
			b.note(u.Name, was.Item, nil)
		default:
			list.add(Entry{u.Item, b.note(u.Item.FullName(), was.Item, u.Item)})
		}
	}
	list.add(old...)
	if list.own == nil && b.base != nil && list.n == len(b.base.Entries) {
		b.pages = append(b.pages, b.base)
		return
	}
	b.add(list.taken())
}

// entryList is a list of entries. It allocates nothing as long as a page, if there is one, begins
// with them.
type entryList struct {
	like *Page
	n    int // entries of like
	own  []Entry
	most int
}

func (l *entryList) add(entries ...Entry) {
	if l.own == nil && l.like != nil {
		end := l.n + len(entries)
		if end <= len(l.like.Entries) && slices.Equal(l.like.Entries[l.n:end], entries) {
			l.n = end
			return
		}
	}
	l.own = append(l.taken(), entries...)
}

// taken returns the entries as a slice of its own.
func (l *entryList) taken() []Entry {
	if l.own == nil {
		l.own = make([]Entry, 0, l.most)
		if l.like != nil {
			l.own = append(l.own, l.like.Entries[:l.n]...)
		}
	}
	return l.own
}

// add appends entries as pages.
func (b *builder) add(entries []Entry) {
	if len(entries) == 0 {
		return
	}
	// Small neighbours become one page, so that removals do not leave crumbs.
	if n := len(b.pages); n > 0 {
		if last := b.pages[n-1]; last.Bytes+sizeOf(entries) <= pageBytes/2 {
			entries = slices.Concat(last.Entries, entries)
			b.pages = b.pages[:n-1]
		}
	}
	if sizeOf(entries) <= 2*pageBytes {
		b.pages = append(b.pages, newPage(entries))
		return
	}
	b.pages = append(b.pages, paginate(entries)...)
}

// touches reports whether updates change anything in p.
func touches(p *Page, updates []Update) bool {
	for _, u := range updates {
		i, found := p.find(u.Name)
		if !found && u.Item != nil || found && !Same(p.Entries[i].Item, u.Item) {
			return true
		}
	}
	return false
}

// note records the change of the update that is at work and returns its rev.
func (b *builder) note(name string, was, is Item) uint64 {
	s := b.next
	c := Change{Rev: b.rev, Name: name}
	if was != nil {
		c.Was = was.Digest()
		s.Digest = s.Digest.minus(c.Was)
		s.Bytes -= len(was.Frame())
		s.Count--
	}
	if is != nil {
		s.Digest = s.Digest.Plus(is.Digest())
		s.Bytes += len(is.Frame())
		s.Count++
	}
	if b.fresh {
		return firstRev
	}
	s.Rev = b.rev
	if is == nil {
		s.removed = append(s.removed, removal{s.Rev, name})
	}
	if s.Log = append(s.Log, c); len(s.Log) > 4*b.keep.Changes {
		b.trim() // a great many at once: the first content, say
	}
	return s.Rev
}

// trim bounds the log and the removals. Older snapshots share their arrays, which grow in place and
// are copied when cut.
func (b *builder) trim() {
	s := b.next
	if n := b.keep.Changes; len(s.Log) > 2*n {
		s.LogFrom = s.Log[len(s.Log)-n-1].Rev
		s.Log = slices.Clone(s.Log[len(s.Log)-n:])
	}
	// Each time the removals have doubled: they are about as many as the names that come and go.
	if n := b.keep.Removals; len(s.removed) > 2*s.tidied+n/64 {
		s.removed = newest(s.removed)
		if over := len(s.removed) - n; over > 0 {
			s.removedFrom = s.removed[over-1].rev
			s.removed = slices.Clone(s.removed[over:])
		}
		s.tidied = len(s.removed)
	}
}

// newest returns the newest removal of each name, in the same order.
func newest(list []removal) []removal {
	kept := make([]removal, 0, len(list)/2)
	seen := make(map[string]struct{}, len(list)/2)
	for _, r := range slices.Backward(list) {
		if _, again := seen[r.name]; !again {
			seen[r.name] = struct{}{}
			kept = append(kept, r)
		}
	}
	slices.Reverse(kept)
	return kept
}

func sizeOf(entries []Entry) (n int) {
	for i := range entries {
		n += len(entries[i].Item.Frame())
	}
	return n
}
