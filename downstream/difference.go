package downstream

import (
	"cmp"
	"slices"

	"google.golang.org/grpc/mem"

	"meshrelay/mirror"
)

// difference is what brings a client from one cursor to a snapshot. It is
// immutable, and shared by the clients that need the same.
type difference struct {
	from    uint64
	changed mem.BufferSlice // the DeltaEntry of each changed resource
	bytes   int             // of changed
	removed []string
}

func (d *difference) empty() bool { return len(d.changed) == 0 && len(d.removed) == 0 }

func (d *difference) add(r *mirror.Resource) {
	e := r.DeltaEntry()
	d.changed = append(d.changed, mem.SliceBuffer(e))
	d.bytes += len(e)
}

// since returns the difference between a cursor and the snapshot. ok is false when
// the snapshot no longer knows what was removed since then.
func (s *snapshot) since(from uint64) (d *difference, ok bool) {
	if from == s.rev {
		return &difference{from: from}, true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range s.deltas {
		if d.from == from {
			return d, true
		}
	}
	if d, ok = s.compare(from); !ok {
		return nil, false
	}
	if len(s.deltas) == deltasKept {
		s.deltas = slices.Delete(s.deltas, 0, 1)
	}
	s.deltas = append(s.deltas, d)
	return d, true
}

func (s *snapshot) compare(from uint64) (*difference, bool) {
	switch {
	case from > s.rev:
		return nil, false
	case from >= s.logFrom:
		return s.replay(from), true
	case from >= s.removedFrom:
		return s.scan(from), true
	}
	return nil, false
}

// changesSince returns the changes between a cursor and the snapshot, oldest first. ok is
// false when the log does not reach back to it.
func (s *snapshot) changesSince(from uint64) (changes []change, ok bool) {
	if from > s.rev || from < s.logFrom {
		return nil, false
	}
	start, _ := slices.BinarySearchFunc(s.log, from+1, func(c change, rev uint64) int { return cmp.Compare(c.rev, rev) })
	return s.log[start:], true
}

// replay reads the difference from the log: its cost grows with the number of
// changes alone.
func (s *snapshot) replay(from uint64) *difference {
	d := &difference{from: from}
	tail, _ := s.changesSince(from)
	var seen map[string]struct{}
	if len(tail) > 1 {
		seen = make(map[string]struct{}, len(tail))
	}
	for _, c := range tail {
		// The first change of a name since the cursor says what the client has.
		if seen != nil {
			if _, again := seen[c.name]; again {
				continue
			}
			seen[c.name] = struct{}{}
		}
		r := s.get(c.name)
		switch {
		case r != nil && r.Digest() != c.was:
			d.add(r)
		case r == nil && c.was != [16]byte{}:
			d.removed = append(d.removed, c.name)
		}
	}
	return d
}

// scan reads the difference from the pages, for a cursor that the log no longer
// covers. It may name removals that the client never knew of, which clients ignore.
func (s *snapshot) scan(from uint64) *difference {
	d := &difference{from: from}
	for _, p := range s.pages {
		if p.maxRev <= from {
			continue
		}
		for i := range p.entries {
			if p.entries[i].rev > from {
				d.add(p.entries[i].res)
			}
		}
	}
	start, _ := slices.BinarySearchFunc(s.removed, from+1, func(r removal, rev uint64) int { return cmp.Compare(r.rev, rev) })
	seen := map[string]struct{}{}
	for _, r := range s.removed[start:] {
		if _, again := seen[r.name]; !again && s.get(r.name) == nil {
			seen[r.name] = struct{}{}
			d.removed = append(d.removed, r.name)
		}
	}
	return d
}

// everything returns all resources as a difference from nothing. It costs a buffer
// header a resource, once for all clients that come while the snapshot is the newest.
func (s *snapshot) everything() *difference {
	if d := s.full.Load(); d != nil {
		return d
	}
	d := &difference{changed: make(mem.BufferSlice, 0, s.count)}
	s.each(d.add)
	s.full.Store(d)
	return d
}

// opening returns the response that brings a client everything, as the first of its type
// on its stream. It is made once for each type URL: a list of buffers for each client
// would be more than all else that a client costs.
func (s *snapshot) opening(typeURL string, controlPlane []byte) *message {
	all := s.everything()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range s.openings {
		if o.typeURL == typeURL {
			return o.message
		}
	}
	m := deltaMessage(typeURL, firstNonce(typeURL), controlPlane, all.changed, all.bytes, nil)
	// Of nothing there is no list to share, and clients may make up any number of types.
	if s.count > 0 && len(s.openings) < openingsKept {
		s.openings = append(s.openings, opening{typeURL, m})
	}
	return m
}

// opening is an encoded response that brings everything.
type opening struct {
	typeURL string
	message *message
}

// beyond returns the difference between what a client says it holds, by version,
// and the snapshot (initial_resource_versions).
func (s *snapshot) beyond(held map[string]string) *difference {
	if len(held) == 0 {
		return s.everything()
	}
	d := &difference{}
	kept := 0
	s.each(func(r *mirror.Resource) {
		v, ok := held[r.FullName()]
		if ok {
			kept++
		}
		if !ok || v != r.Version() {
			d.add(r)
		}
	})
	if kept < len(held) {
		for name := range held {
			if s.get(name) == nil {
				d.removed = append(d.removed, name)
			}
		}
		slices.Sort(d.removed)
	}
	return d
}
