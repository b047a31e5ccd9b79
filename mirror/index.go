package mirror

import (
	"cmp"
	"maps"
	"slices"
)

// index holds resources by kind and full name.
type index map[Kind]map[string]*Resource

func (x index) get(key Key) *Resource { return x[key.Kind][key.FullName()] }

// list returns the resources of a kind, sorted by full name: those of one namespace, or all
// when namespace is empty.
func (x index) list(kind Kind, namespace string) []*Resource {
	out := make([]*Resource, 0, len(x[kind]))
	for _, r := range x[kind] {
		if namespace == "" || r.Namespace() == namespace {
			out = append(out, r)
		}
	}
	slices.SortFunc(out, func(a, b *Resource) int { return cmp.Compare(a.name, b.name) })
	return out
}

// kinds returns the kinds of which there are resources, in sending order.
func (x index) kinds() []Kind { return slices.SortedFunc(maps.Keys(x), CompareKinds) }

// counts returns the number of resources by kind.
func (x index) counts() map[Kind]int {
	out := make(map[Kind]int, len(x))
	for kind, byName := range x {
		out[kind] = len(byName)
	}
	return out
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
