package snapshot

import (
	"cmp"
	"slices"
	"sync/atomic"
	"time"
)

// Collection is the items of one type in one view, as a sequence of snapshots. One goroutine applies changes.
// Any goroutine may read the newest snapshot.
//
// A base collection has all items. It assigns the revisions of its type for all views, so that derived
// collections can use its pages.
type Collection struct {
	current atomic.Pointer[Snapshot]
	Keep    Memory
	// last is the newest assigned revision of a base collection.
	last uint64
}

// firstRev is the revision of the first content. The cursor of a client without content is lower, and the
// revision of each change is higher.
const firstRev = 1

// Memory is how many changes and removals a collection remembers.
type Memory struct{ Changes, Removals int }

// New returns an empty base collection.
func New() *Collection {
	c := &Collection{Keep: Memory{logLen, removedLen}, last: firstRev}
	c.current.Store(newSnapshot())
	return c
}

// Current returns the newest snapshot.
func (c *Collection) Current() *Snapshot { return c.current.Load() }

// Update is the new item of a name; nil removes it.
type Update struct {
	Name string
	Item Item
}

// Apply applies updates, at most one for each name, and reports whether anything has changed. It sorts them,
// and assigns the next revision to each. Its cost grows with the number of updates and pages, not of items.
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

// successor returns a copy of s without pages, for the next snapshot.
func (s *Snapshot) successor(changedAt time.Time) *Snapshot {
	return &Snapshot{
		Rev: s.Rev, Digest: s.Digest, Version: s.Version, Count: s.Count, Bytes: s.Bytes,
		Log: s.Log, LogFrom: s.LogFrom, removed: s.removed, removedFrom: s.removedFrom, tidied: s.tidied,
		ChangedAt: changedAt,
	}
}

// builder builds one snapshot.
type builder struct {
	next  *Snapshot
	pages []*Page
	rev   uint64 // of the last update
	keep  Memory
	// fresh is set if no client has seen the collection: then it records no changes.
	fresh bool
	// base is the page of the base collection for the names that are being rebuilt, or nil.
	base *Page
}

// finish completes the next snapshot.
func (b *builder) finish() {
	b.trim()
	b.next.Version = b.next.Digest.String()
}

// rebuild applies updates to pages, and appends the result. Both are sorted.
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

// pageOf returns the index of the page to which a name belongs.
func pageOf(pages []*Page, name string) int {
	i, found := slices.BinarySearchFunc(pages, name, func(p *Page, name string) int {
		return cmp.Compare(p.firstName(), name)
	})
	if !found && i > 0 {
		i--
	}
	return i
}

// rebuildPage applies updates to p, which may be nil, and appends the result.
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

// entryList is a list of entries. While the list equals the beginning of the page like, it allocates nothing.
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

// taken returns the entries as a slice that the list owns.
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
	// Join small neighbours, so that removals do not leave many tiny pages.
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

// note records the change of an item, and returns its revision.
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
		b.trim() // such as the first content
	}
	return s.Rev
}

// trim limits the log and the removals. Older snapshots share their arrays: trim appends in place, and copies
// before it removes.
func (b *builder) trim() {
	s := b.next
	if n := b.keep.Changes; len(s.Log) > 2*n {
		s.LogFrom = s.Log[len(s.Log)-n-1].Rev
		s.Log = slices.Clone(s.Log[len(s.Log)-n:])
	}
	// Do this each time the removals have doubled. What is left then is about one removal for each name that
	// comes and goes.
	if n := b.keep.Removals; len(s.removed) > 2*s.tidied+n/64 {
		s.removed = newest(s.removed)
		if over := len(s.removed) - n; over > 0 {
			s.removedFrom = s.removed[over-1].rev
			s.removed = slices.Clone(s.removed[over:])
		}
		s.tidied = len(s.removed)
	}
}

// newest returns only the newest removal of each name, in the same order.
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
