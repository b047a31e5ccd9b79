package mirror

import (
	"cmp"
	"maps"
	"slices"
	"sync"
)

// contents is an index with its lock. Store and Aggregate embed it.
type contents struct {
	// mu guards index, and the fields that Store and Aggregate put under it.
	mu    sync.RWMutex
	index index
}

// Get implements ConfigStore.
func (c *contents) Get(key Key) *Resource { return c.named(refOf(key)) }

func (c *contents) named(k ref) *Resource {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.index.get(k)
}

// List implements ConfigStore.
func (c *contents) List(kind Kind, namespace string) []*Resource {
	c.mu.RLock()
	defer c.mu.RUnlock()
	out := make([]*Resource, 0, len(c.index[kind]))
	for _, r := range c.index[kind] {
		if namespace == "" || r.Namespace() == namespace {
			out = append(out, r)
		}
	}
	slices.SortFunc(out, func(a, b *Resource) int { return cmp.Compare(a.name, b.name) })
	return out
}

// All returns the resources of a kind in no order: a reader that wants few of many sorts those.
func (c *contents) All(kind Kind) []*Resource {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return slices.AppendSeq(make([]*Resource, 0, len(c.index[kind])), maps.Values(c.index[kind]))
}

// Kinds returns the kinds that have resources, in sending order.
func (c *contents) Kinds() []Kind {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return slices.SortedFunc(maps.Keys(c.index), CompareKinds)
}

// Counts returns the number of resources by kind.
func (c *contents) Counts() map[Kind]int {
	c.mu.RLock()
	defer c.mu.RUnlock()
	out := make(map[Kind]int, len(c.index))
	for kind, byName := range c.index {
		out[kind] = len(byName)
	}
	return out
}

// index holds resources by kind and full name.
type index map[Kind]map[string]*Resource

func (x index) get(k ref) *Resource { return x[k.kind.Value()][k.name] }

// reserve makes room for n resources of a kind that has none.
func (x index) reserve(kind Kind, n int) {
	if x[kind] == nil {
		x[kind] = make(map[string]*Resource, n)
	}
}

// replace puts cur in the place of old, which has the same key. Either may be nil.
func (x index) replace(old, cur *Resource) {
	if old != nil {
		// A map keeps the key that it has, and with it the memory of the old resource's name.
		kind := old.Kind()
		if delete(x[kind], old.name); len(x[kind]) == 0 && cur == nil {
			delete(x, kind)
		}
	}
	if cur == nil {
		return
	}
	byName := x[cur.Kind()]
	if byName == nil {
		byName = map[string]*Resource{}
		x[cur.Kind()] = byName
	}
	byName[cur.name] = cur
}
