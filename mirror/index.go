package mirror

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"unique"
)

// contents is an index with its lock. Store and Aggregate embed it.
type contents struct {
	// mu guards index, and fields of Store and Aggregate.
	mu    sync.RWMutex
	index index
}

// Get returns the resource with a key, nil when there is none.
func (c *contents) Get(key Key) *Resource {
	kind := unique.Make(key.Kind)
	c.mu.RLock()
	defer c.mu.RUnlock()
	var room [maxNameLen]byte // a look-up allocates nothing
	return c.index[kind][string(key.appendFullName(room[:0]))]
}

func (c *contents) named(k ref) *Resource {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.index.get(k)
}

// List returns the resources of a kind, sorted by full name: those of one namespace, or all when namespace is
// empty.
func (c *contents) List(kind Kind, namespace string) []*Resource {
	c.mu.RLock()
	defer c.mu.RUnlock()
	byName := c.index[unique.Make(kind)]
	out := make([]*Resource, 0, len(byName))
	for _, r := range byName {
		if namespace == "" || r.Namespace() == namespace {
			out = append(out, r)
		}
	}
	slices.SortFunc(out, func(a, b *Resource) int { return cmp.Compare(a.name, b.name) })
	return out
}

// All returns the resources of a kind in no order, for readers that sort only a part of them.
func (c *contents) All(kind Kind) []*Resource {
	c.mu.RLock()
	defer c.mu.RUnlock()
	byName := c.index[unique.Make(kind)]
	return slices.AppendSeq(make([]*Resource, 0, len(byName)), maps.Values(byName))
}

// Kinds returns the kinds that have resources, in sending order.
func (c *contents) Kinds() []Kind {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return slices.SortedFunc(c.index.kinds, CompareKinds)
}

// Counts returns the number of resources by kind.
func (c *contents) Counts() map[Kind]int {
	c.mu.RLock()
	defer c.mu.RUnlock()
	out := make(map[Kind]int, len(c.index))
	for kind, byName := range c.index {
		out[kind.Value()] = len(byName)
	}
	return out
}

// index holds resources by kind and full name.
type index map[unique.Handle[Kind]]map[string]*Resource

func (x index) get(k ref) *Resource { return x[k.kind][k.name] }

// kinds yields the kinds that have resources.
func (x index) kinds(yield func(Kind) bool) {
	for kind := range x {
		if !yield(kind.Value()) {
			return
		}
	}
}

// reserve returns the resources of a kind by full name. It makes a new map with room for n.
func (x index) reserve(kind unique.Handle[Kind], n int) map[string]*Resource {
	byName := x[kind]
	if byName == nil {
		byName = make(map[string]*Resource, n)
		x[kind] = byName
	}
	return byName
}

// replace replaces old by cur, which has the same key. Either may be nil.
func (x index) replace(old, cur *Resource) {
	if old != nil {
		// Without the delete, the map would keep the old key, and with it the memory of the old name.
		kind := old.kind()
		if delete(x[kind], old.name); len(x[kind]) == 0 && cur == nil {
			delete(x, kind)
		}
	}
	if cur == nil {
		return
	}
	x.reserve(cur.kind(), 0)[cur.name] = cur
}
