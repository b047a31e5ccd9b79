package downstream

import (
	"cmp"
	"slices"
	"sync/atomic"
	"time"

	"meshrelay/mirror"
)

// collection is the resources of one kind in one view, as a sequence of snapshots.
// Only one goroutine applies changes; any number read current.
//
// The collection of the base view has everything. It gives out the revisions of its kind,
// for all views: so a page of it can stand in any of them.
type collection struct {
	current atomic.Pointer[snapshot]
	keep    memory
	// last is the newest revision that was given out; of base collections.
	last uint64
	// base and own are the layout of a derived collection: the base collection's pages,
	// and where it has its own instead, in order.
	base []*page
	own  []region
}

// firstRev is older than any change. The cursor of a client that was sent nothing is older
// than that.
const firstRev = 1

// memory is how much a collection remembers of the past.
type memory struct{ changes, removals int }

func newCollection() *collection {
	c := &collection{keep: memory{logLen, removedLen}, last: firstRev}
	c.current.Store(newSnapshot())
	return c
}

// update is a name's new content; nil removes it.
type update struct {
	name string
	res  *mirror.Resource
}

// apply makes a new snapshot of the current one and updates, which name each name
// at most once, and reports whether anything differed. Its cost grows with the
// number of updates and of pages, not of resources.
//
// It sorts updates, and gives each a revision of its own, in that order: those after the
// last one before the call.
func (c *collection) apply(updates []update, changedAt time.Time) bool {
	slices.SortFunc(updates, func(a, b update) int { return cmp.Compare(a.name, b.name) })
	old := c.current.Load()
	b := builder{next: old.successor(changedAt), rev: c.last, keep: c.keep}
	c.last += uint64(len(updates))
	b.pages = make([]*page, 0, len(old.pages)+1)
	b.rebuild(old.pages, updates)
	if b.next.rev == old.rev {
		return false
	}
	b.next.pages = b.pages
	b.finish()
	c.current.Store(b.next)
	return true
}

// successor returns a snapshot to be, which differs from s in nothing yet but that it has
// no pages.
func (s *snapshot) successor(changedAt time.Time) *snapshot {
	return &snapshot{
		rev: s.rev, digest: s.digest, version: s.version, count: s.count, bytes: s.bytes,
		log: s.log, logFrom: s.logFrom, removed: s.removed, removedFrom: s.removedFrom, tidied: s.tidied,
		changedAt: changedAt,
	}
}

// builder makes one snapshot.
type builder struct {
	next  *snapshot
	pages []*page
	rev   uint64 // of the update before the next one
	keep  memory
	// fresh says that no client has seen the collection: nothing is a change to anyone.
	fresh bool
}

// finish completes a snapshot that differs from the one before.
func (b *builder) finish() {
	b.trim()
	b.next.version = b.next.digest.String()
}

// rebuild appends pages with updates applied. Both are sorted.
func (b *builder) rebuild(pages []*page, updates []update) {
	if len(pages) == 0 {
		b.rebuildPage(nil, updates)
		return
	}
	for len(updates) > 0 {
		i := pageOf(pages, updates[0].name)
		b.pages = append(b.pages, pages[:i]...)
		n := len(updates)
		if i+1 < len(pages) {
			next := pages[i+1].firstName()
			n, _ = slices.BinarySearchFunc(updates, next, func(u update, name string) int { return cmp.Compare(u.name, name) })
		}
		b.rebuildPage(pages[i], updates[:n])
		pages, updates = pages[i+1:], updates[n:]
	}
	b.pages = append(b.pages, pages...)
}

// pageOf returns the index of the page that a name belongs to: the last that does not
// begin after it, or the first.
func pageOf(pages []*page, name string) int {
	i, found := slices.BinarySearchFunc(pages, name, func(p *page, name string) int {
		return cmp.Compare(p.firstName(), name)
	})
	if !found && i > 0 {
		i--
	}
	return i
}

// rebuildPage appends p, which may be nil, with updates applied.
func (b *builder) rebuildPage(p *page, updates []update) {
	if p != nil && !touches(p, updates) {
		b.pages = append(b.pages, p)
		b.rev += uint64(len(updates))
		return
	}
	var old []entry
	if p != nil {
		old = p.entries
	}
	entries := make([]entry, 0, len(old)+len(updates))
	for _, u := range updates {
		b.rev++
		n, found := slices.BinarySearchFunc(old, u.name, func(e entry, name string) int {
			return cmp.Compare(e.res.FullName(), name)
		})
		entries = append(entries, old[:n]...)
		old = old[n:]
		var was entry
		if found {
			was = old[0]
			old = old[1:]
		}
		switch {
		case was.res.Equal(u.res):
			if was.res != nil {
				entries = append(entries, entry{u.res, was.rev})
			}
		case u.res == nil:
			b.note(u.name, was.res, nil)
		default:
			entries = append(entries, entry{u.res, b.note(u.res.FullName(), was.res, u.res)})
		}
	}
	b.add(append(entries, old...))
}

// add appends entries as pages.
func (b *builder) add(entries []entry) {
	if len(entries) == 0 {
		return
	}
	// Small neighbours become one page, so that removals do not leave crumbs.
	if n := len(b.pages); n > 0 {
		if last := b.pages[n-1]; last.bytes+sizeOf(entries) <= pageBytes/2 {
			entries = slices.Concat(last.entries, entries)
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
func touches(p *page, updates []update) bool {
	for _, u := range updates {
		i, found := p.find(u.name)
		if !found && u.res != nil || found && !p.entries[i].res.Equal(u.res) {
			return true
		}
	}
	return false
}

// note records the change of the update that is at work and returns its rev.
func (b *builder) note(name string, was, is *mirror.Resource) uint64 {
	s := b.next
	c := change{rev: b.rev, name: name}
	if was != nil {
		c.was = was.Digest()
		s.digest = s.digest.minus(c.was)
		s.bytes -= len(was.Frame())
		s.count--
	}
	if is != nil {
		s.digest = s.digest.plus(is.Digest())
		s.bytes += len(is.Frame())
		s.count++
	}
	if b.fresh {
		return firstRev
	}
	s.rev = b.rev
	if is == nil {
		s.removed = append(s.removed, removal{s.rev, name})
	}
	if s.log = append(s.log, c); len(s.log) > 4*b.keep.changes {
		b.trim() // a great many at once: the first content, say
	}
	return s.rev
}

// trim bounds the log and the removals. Older snapshots share the arrays behind
// both; they are appended to in place and copied when cut.
func (b *builder) trim() {
	s := b.next
	if n := b.keep.changes; len(s.log) > 2*n {
		s.logFrom = s.log[len(s.log)-n-1].rev
		s.log = slices.Clone(s.log[len(s.log)-n:])
	}
	// Each time the removals have doubled: so they are as many as the names, about, not as
	// the removals of a kind whose names come and go.
	if n := b.keep.removals; len(s.removed) > 2*s.tidied+n/64 {
		s.removed = newest(s.removed)
		if over := len(s.removed) - n; over > 0 {
			s.removedFrom = s.removed[over-1].rev
			s.removed = slices.Clone(s.removed[over:])
		}
		s.tidied = len(s.removed)
	}
}

// newest returns of each name the newest removal, in the same order. A cursor before
// another one is before that too.
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

func sizeOf(entries []entry) (n int) {
	for i := range entries {
		n += len(entries[i].res.Frame())
	}
	return n
}
