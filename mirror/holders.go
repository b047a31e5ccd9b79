package mirror

import (
	"slices"
	"unique"
)

// holders has, for each key, the stores with a copy of it: merging looks into no others. A place is an index
// of sources.
//
// Most keys have one holder: the source of the served resource. They need no entry in several. A store that
// has a new copy has marked the key, and is not a holder until update. A holder may have lost its copy since.
type holders struct {
	sources []Source // in order of priority
	places  []int32  // 0, 1, 2, …: places[n:n+1] are the holders of a key whose only holder is n
	named   map[string]int32
	stores  map[*Store]int32
	several map[unique.Handle[Kind]]map[string][]int32 // sorted, by full name
	looked  func()                                     // for tests: called for each look into a store
}

func newHolders(sources []Source) holders {
	h := holders{sources: slices.Clone(sources), named: map[string]int32{}, stores: map[*Store]int32{}, several: map[unique.Handle[Kind]]map[string][]int32{}}
	for n, s := range h.sources {
		h.places = append(h.places, int32(n)) //nolint:gosec // as many as there are upstreams
		h.named[s.Name], h.stores[s.Store] = int32(n), int32(n)
	}
	return h
}

// moved returns the holders for other sources. A source takes the place of a former one with the same name.
func (h *holders) moved(sources []Source) holders {
	next := newHolders(sources)
	next.looked = h.looked
	for k, places := range h.entries {
		var now []int32
		for _, p := range places {
			n, ok := next.stores[h.sources[p].Store]
			if !ok {
				n, ok = next.named[h.sources[p].Name]
			}
			if ok {
				now = append(now, n)
			}
		}
		slices.Sort(now)
		next.set(k, slices.Compact(now))
	}
	return next
}

// entries yields the entries of several.
func (h *holders) entries(yield func(k ref, places []int32) bool) {
	for kind, byName := range h.several {
		for name, places := range byName {
			if !yield(ref{kind, name}, places) {
				return
			}
		}
	}
}

func (h *holders) set(k ref, places []int32) {
	if h.several[k.kind] == nil {
		h.several[k.kind] = map[string][]int32{}
	}
	h.several[k.kind][k.name] = places
}

// of returns the places of the holders of a key. served is the resource that is served under it.
func (h *holders) of(k ref, served *Resource) []int32 {
	if places, ok := h.several[k.kind][k.name]; ok {
		return places
	}
	return h.sourceOf(served)
}

// sourceOf returns the place of the source of a served resource.
func (h *holders) sourceOf(served *Resource) []int32 {
	if served != nil {
		if p, ok := h.named[served.Source()]; ok {
			return h.places[p : p+1]
		}
	}
	return nil
}

// update sets the holders of a key: those of the former holders, and of the stores that have marked the key,
// that have a copy.
func (h *holders) update(c *change, served *Resource) {
	was := h.of(c.ref, served)
	var room [8]int32
	now := append(room[:0], was...)
	if p, ok := h.stores[c.by]; ok {
		now = append(now, p)
	}
	for _, s := range c.also {
		if p, ok := h.stores[s]; ok {
			now = append(now, p)
		}
	}
	slices.Sort(now)
	now = slices.DeleteFunc(slices.Compact(now), func(p int32) bool { return h.copy(c.ref, p) == nil })
	if !slices.Equal(now, was) {
		h.set(c.ref, slices.Clone(now))
	}
}

// keep keeps the holders of a key when the served resource changes from was to served.
func (h *holders) keep(k ref, was, served *Resource) {
	if places := h.of(k, was); !slices.Equal(places, h.sourceOf(served)) {
		h.set(k, places)
	} else {
		delete(h.several[k.kind], k.name)
	}
}

// copy returns the copy of a key in a place, nil when there is none.
func (h *holders) copy(k ref, place int32) *Resource {
	if h.looked != nil {
		h.looked()
	}
	return h.sources[place].Store.named(k)
}
