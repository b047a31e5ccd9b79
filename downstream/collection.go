package downstream

import (
	"cmp"
	"encoding/base64"
	"encoding/binary"
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"meshrelay/mirror"
)

const (
	// logLen is how many of the newest changes of a collection are remembered. A
	// client that is further behind is served by comparing revisions.
	logLen = 4096
	// removedLen is how many removed names are remembered, for clients that the log
	// no longer covers. A client that is further behind still has to say what it
	// holds, by reconnecting.
	removedLen = 65536
	// deltasKept is how many encoded differences a snapshot keeps for sharing.
	deltasKept = 4
	// openingsKept is how many type URLs a snapshot keeps complete responses of: a kind
	// has few API versions.
	openingsKept = 4
)

// digest identifies the content of a set of resources: the sum of the resources'
// 128-bit digests. It does not depend on their order, and changes with one addition
// or subtraction a change.
type digest struct{ hi, lo uint64 }

func (d digest) plus(sum [16]byte) digest {
	lo, carry := bits.Add64(d.lo, binary.BigEndian.Uint64(sum[8:]), 0)
	hi, _ := bits.Add64(d.hi, binary.BigEndian.Uint64(sum[:8]), carry)
	return digest{hi, lo}
}

func (d digest) minus(sum [16]byte) digest {
	lo, borrow := bits.Sub64(d.lo, binary.BigEndian.Uint64(sum[8:]), 0)
	hi, _ := bits.Sub64(d.hi, binary.BigEndian.Uint64(sum[:8]), borrow)
	return digest{hi, lo}
}

// String returns the version_info of the set: the same in every relay that serves
// the same set.
func (d digest) String() string {
	var b [16]byte
	binary.BigEndian.PutUint64(b[:8], d.hi)
	binary.BigEndian.PutUint64(b[8:], d.lo)
	return base64.RawURLEncoding.EncodeToString(b[:])
}

// change is one entry of a collection's log. was is the digest of what the name
// had before; zero when nothing.
type change struct {
	rev  uint64
	name string
	was  [16]byte
}

// removal is a name that was removed.
type removal struct {
	rev  uint64
	name string
}

// snapshot is one state of a collection. It is immutable; any number of clients
// read it at once, without locks.
type snapshot struct {
	// rev counts the changes that led here. A client's cursor is the rev of the
	// snapshot it was last brought to.
	rev     uint64
	digest  digest
	version string // digest, spelled
	count   int
	bytes   int // sum of the frames
	pages   []*page
	// log has every change with a rev above logFrom, removed every removal with a rev
	// above removedFrom, oldest first.
	log         []change
	logFrom     uint64
	removed     []removal
	removedFrom uint64
	// changedAt is when the oldest change that this snapshot brought was noticed.
	changedAt time.Time

	// full caches the difference from nothing, deltas those from recent cursors.
	full     atomic.Pointer[difference]
	mu       sync.Mutex // guards all below
	deltas   []*difference
	openings []opening
}

func newSnapshot() *snapshot { return &snapshot{version: digest{}.String()} }

// collection is the resources of one kind in one view, as a sequence of snapshots.
// Only one goroutine applies changes; any number read.
type collection struct {
	current atomic.Pointer[snapshot]
}

func newCollection() *collection {
	c := &collection{}
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
func (c *collection) apply(updates []update, changedAt time.Time) bool {
	slices.SortFunc(updates, func(a, b update) int { return cmp.Compare(a.name, b.name) })
	old := c.current.Load()
	b := builder{next: snapshot{
		rev: old.rev, digest: old.digest, count: old.count, bytes: old.bytes,
		log: old.log, logFrom: old.logFrom, removed: old.removed, removedFrom: old.removedFrom,
		changedAt: changedAt,
	}}
	b.next.pages = make([]*page, 0, len(old.pages)+1)
	pages := old.pages
	if len(pages) == 0 {
		b.rebuild(nil, updates)
		updates = nil
	}
	for i, p := range pages {
		n := len(updates)
		if i+1 < len(pages) {
			next := pages[i+1].firstName()
			n, _ = slices.BinarySearchFunc(updates, next, func(u update, name string) int { return cmp.Compare(u.name, name) })
		}
		b.rebuild(p, updates[:n])
		updates = updates[n:]
	}
	if b.next.rev == old.rev {
		return false
	}
	b.trim()
	b.next.version = b.next.digest.String()
	c.current.Store(&b.next)
	return true
}

// builder makes one snapshot.
type builder struct {
	next snapshot
}

// rebuild appends p, which may be nil, with updates applied.
func (b *builder) rebuild(p *page, updates []update) {
	if p != nil && !touches(p, updates) {
		b.next.pages = append(b.next.pages, p)
		return
	}
	var old []entry
	if p != nil {
		old = p.entries
	}
	entries := make([]entry, 0, len(old)+len(updates))
	for _, u := range updates {
		n, found := slices.BinarySearchFunc(old, u.name, func(e entry, name string) int {
			return cmp.Compare(e.res.FullName(), name)
		})
		entries = append(entries, old[:n]...)
		old = old[n:]
		var was *mirror.Resource
		if found {
			was = old[0].res
			old = old[1:]
		}
		switch {
		case was.Equal(u.res):
			if was != nil {
				entries = append(entries, entry{u.res, b.revOf(was, p)})
			}
		case u.res == nil:
			b.note(u.name, was, nil)
		default:
			entries = append(entries, entry{u.res, b.note(u.res.FullName(), was, u.res)})
		}
	}
	entries = append(entries, old...)
	if len(entries) == 0 {
		return
	}
	// Small neighbours become one page, so that removals do not leave crumbs.
	if n := len(b.next.pages); n > 0 {
		if last := b.next.pages[n-1]; last.bytes+sizeOf(entries) <= pageBytes/2 {
			entries = slices.Concat(last.entries, entries)
			b.next.pages = b.next.pages[:n-1]
		}
	}
	if sizeOf(entries) <= 2*pageBytes {
		b.next.pages = append(b.next.pages, newPage(entries))
		return
	}
	b.next.pages = append(b.next.pages, paginate(entries)...)
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

func (b *builder) revOf(r *mirror.Resource, p *page) uint64 {
	i, _ := p.find(r.FullName())
	return p.entries[i].rev
}

// note records one change and returns its rev.
func (b *builder) note(name string, was, is *mirror.Resource) uint64 {
	s := &b.next
	s.rev++
	c := change{rev: s.rev, name: name}
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
	} else {
		s.removed = append(s.removed, removal{s.rev, name})
	}
	if s.log = append(s.log, c); len(s.log) > 4*logLen {
		b.trim() // a great many at once: the first content, say
	}
	return s.rev
}

// trim bounds the log and the removals. Older snapshots share the arrays behind
// both; they are appended to in place and copied when cut.
func (b *builder) trim() {
	s := &b.next
	if len(s.log) > 2*logLen {
		s.log = slices.Clone(s.log[len(s.log)-logLen:])
		s.logFrom = s.log[0].rev - 1
	}
	if len(s.removed) > 2*removedLen {
		s.removedFrom = s.removed[len(s.removed)-removedLen-1].rev
		s.removed = slices.Clone(s.removed[len(s.removed)-removedLen:])
	}
}

func sizeOf(entries []entry) (n int) {
	for i := range entries {
		n += len(entries[i].res.Frame())
	}
	return n
}

// find returns the entry of a name.
func (s *snapshot) find(name string) (entry, bool) {
	i, found := slices.BinarySearchFunc(s.pages, name, func(p *page, name string) int {
		return cmp.Compare(p.firstName(), name)
	})
	if !found {
		if i == 0 {
			return entry{}, false
		}
		i--
	}
	if n, ok := s.pages[i].find(name); ok {
		return s.pages[i].entries[n], true
	}
	return entry{}, false
}

// get returns the resource of a name, nil when there is none.
func (s *snapshot) get(name string) *mirror.Resource {
	e, _ := s.find(name)
	return e.res
}

// each calls f with every resource, in the order of names.
func (s *snapshot) each(f func(*mirror.Resource)) {
	for _, p := range s.pages {
		for i := range p.entries {
			f(p.entries[i].res)
		}
	}
}
