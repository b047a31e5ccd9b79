package snapshot

import (
	"cmp"
	"maps"
	"slices"

	"google.golang.org/grpc/mem"
)

// Difference has the changes from a cursor to a snapshot. It is immutable, and clients share it.
type Difference struct {
	from    uint64
	Changed mem.BufferSlice // one DeltaEntry for each changed item
	Bytes   int             // of Changed
	Removed []string
	joined  mem.BufferSlice // Changed in one buffer, if it is small and several clients need it
}

// joinedBytes bounds the entries that are joined in one buffer. The transport handles each buffer once for
// each client, so fewer buffers cost less.
const joinedBytes = 512 << 10

// Entries returns Changed, for messages of at most most bytes.
func (d *Difference) Entries(most int) mem.BufferSlice {
	if d.joined != nil && d.Bytes <= most {
		return d.joined
	}
	return d.Changed
}

// joins reports whether entries of this size are joined.
func joins(entries mem.BufferSlice, size int) bool { return len(entries) > 1 && size <= joinedBytes }

// join returns entries in one buffer, or unchanged if they are too large.
func join(entries mem.BufferSlice, size int) mem.BufferSlice {
	if !joins(entries, size) {
		return entries
	}
	b := make([]byte, 0, size)
	for _, e := range entries {
		b = append(b, e.ReadOnlyData()...)
	}
	return mem.BufferSlice{mem.SliceBuffer(b)}
}

// Empty reports whether nothing has changed.
func (d *Difference) Empty() bool { return len(d.Changed) == 0 && len(d.Removed) == 0 }

// Add adds a changed item.
func (d *Difference) Add(r Item) {
	e := r.DeltaEntry()
	d.Changed = append(d.Changed, mem.SliceBuffer(e))
	d.Bytes += len(e)
}

// Since returns the difference between a cursor and the snapshot. ok is false if the snapshot no longer knows
// all removals since then.
func (s *Snapshot) Since(from uint64) (d *Difference, ok bool) {
	if from == s.Rev {
		return &Difference{from: from}, true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, d := range s.deltas {
		if d.from == from {
			if d.joined == nil && joins(d.Changed, d.Bytes) { // a second client needs it
				d = &Difference{d.from, d.Changed, d.Bytes, d.Removed, join(d.Changed, d.Bytes)}
				s.deltas[i] = d
			}
			return d, true
		}
	}
	switch {
	case from > s.Rev || from < s.LogFrom && from < s.removedFrom:
		return nil, false
	case from >= s.LogFrom:
		d = s.replay(from)
	default:
		d = s.scan(from)
	}
	if len(s.deltas) == deltasKept {
		s.deltas = slices.Delete(s.deltas, 0, 1)
	}
	s.deltas = append(s.deltas, d)
	return d, true
}

// ChangesSince returns the changes since a cursor, oldest first. ok is false if the log does not go back that
// far.
func (s *Snapshot) ChangesSince(from uint64) (changes []Change, ok bool) {
	if from > s.Rev || from < s.LogFrom {
		return nil, false
	}
	start, _ := slices.BinarySearchFunc(s.Log, from+1, func(c Change, rev uint64) int { return cmp.Compare(c.Rev, rev) })
	return s.Log[start:], true
}

// replay makes a difference from the log, in the order of names: in how many steps a view was brought to its
// content depends on what the view does not show. The cost of replay grows with the number of changes.
func (s *Snapshot) replay(from uint64) *Difference {
	d := &Difference{from: from}
	tail, _ := s.ChangesSince(from)
	if byName := func(a, b Change) int { return cmp.Compare(a.Name, b.Name) }; !slices.IsSortedFunc(tail, byName) {
		tail = slices.Clone(tail)
		slices.SortStableFunc(tail, byName)
	}
	var seen map[string]struct{}
	if len(tail) > 1 {
		seen = make(map[string]struct{}, len(tail))
	}
	for _, c := range tail {
		// Was of the first change since the cursor is the content that the client has.
		if seen != nil {
			if _, again := seen[c.Name]; again {
				continue
			}
			seen[c.Name] = struct{}{}
		}
		r := s.Get(c.Name)
		switch {
		case r != nil && r.Digest() != c.Was:
			d.Add(r)
		case r == nil && c.Was != [16]byte{}:
			d.Removed = append(d.Removed, c.Name)
		}
	}
	return d
}

// scan makes a difference from all pages, for a cursor older than the log. It may contain removals of names
// that the client never had; clients ignore these.
func (s *Snapshot) scan(from uint64) *Difference {
	d := &Difference{from: from}
	for _, p := range s.Pages {
		if p.MaxRev <= from {
			continue
		}
		for i := range p.Entries {
			if p.Entries[i].Rev > from {
				d.Add(p.Entries[i].Item)
			}
		}
	}
	start, _ := slices.BinarySearchFunc(s.removed, from+1, func(r removal, rev uint64) int { return cmp.Compare(r.rev, rev) })
	seen := map[string]struct{}{}
	for _, r := range s.removed[start:] {
		if _, again := seen[r.name]; !again && s.Get(r.name) == nil {
			seen[r.name] = struct{}{}
			d.Removed = append(d.Removed, r.name)
		}
	}
	return d
}

// Everything returns all items as a difference. It is made once for all clients.
func (s *Snapshot) Everything() *Difference {
	if d := s.full.Load(); d != nil {
		return d
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if d := s.full.Load(); d != nil {
		return d
	}
	d := &Difference{Changed: make(mem.BufferSlice, 0, s.Count)}
	s.Each(d.Add)
	s.full.Store(d)
	return d
}

// IsEverything reports whether d was returned by Everything.
func (s *Snapshot) IsEverything(d *Difference) bool { return d != nil && d == s.full.Load() }

// InitialResponses returns the first answer of a type, with all items, in parts of at most most bytes.
// Clients share it: a list of buffers for each client would take more memory than the rest of a client.
func (s *Snapshot) InitialResponses(typeURL string, controlPlane []byte, most int) (parts []*Message) {
	rest := s.Everything().Changed
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.initial {
		if r.typeURL == typeURL && r.most == most {
			return r.parts
		}
	}
	h := Head{TypeURL: typeURL, ControlPlane: controlPlane, Part: true}
	for h.Part {
		n, size := Cut(rest, most)
		h.Nonce, h.Part = FirstNonce(typeURL, len(parts)+1), n < len(rest)
		parts = append(parts, Delta(h, join(rest[:n], size), size, nil))
		h.ControlPlane, rest = nil, rest[n:]
	}
	// An answer without items is cheap, and clients may invent any number of type URLs.
	if s.Count > 0 && len(s.initial) < initialKept {
		s.initial = append(s.initial, initialResponse{typeURL, most, parts})
	}
	return parts
}

// initialResponse is an encoded answer with all items.
type initialResponse struct {
	typeURL string
	most    int // bytes of a part
	parts   []*Message
}

// Beyond returns the difference for a client that has the versions held (initial_resource_versions).
func (s *Snapshot) Beyond(held map[string]string) *Difference {
	if len(held) == 0 {
		return s.Everything()
	}
	d := &Difference{}
	kept := 0
	s.Each(func(r Item) {
		v, ok := held[r.FullName()]
		if ok {
			kept++
		}
		if !ok || v != r.Version() {
			d.Add(r)
		}
	})
	if kept < len(held) {
		for name := range held {
			if s.Get(name) == nil {
				d.Removed = append(d.Removed, name)
			}
		}
		slices.Sort(d.Removed)
	}
	return d
}

// With returns d, with the present items of some names added. A name without an item is added to Removed.
func (d *Difference) With(s *Snapshot, names map[string]struct{}) *Difference {
	out := &Difference{Changed: slices.Clone(d.Changed), Bytes: d.Bytes, Removed: slices.Clone(d.Removed)}
	present := make(map[*byte]struct{}, len(d.Changed))
	for _, b := range d.Changed {
		present[&b.ReadOnlyData()[0]] = struct{}{}
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		r := s.Get(name)
		if r == nil {
			if !slices.Contains(out.Removed, name) {
				out.Removed = append(out.Removed, name)
			}
			continue
		}
		if _, ok := present[&r.DeltaEntry()[0]]; !ok {
			out.Add(r)
		}
	}
	return out
}
