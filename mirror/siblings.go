package mirror

import "slices"

// SiblingAnnotation is the annotation of a resource that is a sibling of the one whose name is its own without siblingSuffix bytes: it
// is served from the sources of that alone. Relays believe it from relays only.
const SiblingAnnotation = "meshrelay.io/sibling-of"

const siblingSuffix = len("-12345678")

// mainOf returns the key of which a key is a sibling, or the key itself.
func (a *Aggregate) mainOf(k ref) ref {
	cut := len(k.name) - siblingSuffix
	is := func(p int32) bool { r := a.holders.copy(k, p); return r != nil && r.HasAnnotation(SiblingAnnotation) }
	if cut > 0 && k.name[cut] == '-' && slices.ContainsFunc(a.holders.of(k, a.index.get(k)), is) {
		return ref{k.kind, k.name[:cut]}
	}
	return k
}

// ofMain returns what accepts the copies of a key. Those of a sibling come from the sources whose copies of its main key are
// served.
func (a *Aggregate) ofMain(k ref, accept func(*Resource) bool) func(*Resource) bool {
	main := a.mainOf(k)
	if main == k {
		return accept
	}
	copies := a.copies(main, accept)
	if len(copies) == 0 {
		return accept
	}
	d := a.policy(k.kind.Value()).Merge(copies)
	return func(r *Resource) bool {
		return accept(r) && d.Served != nil && slices.ContainsFunc(append(d.United, d.Winner), func(i int) bool { return copies[i].Source == r.Source() })
	}
}

// relate notes a sibling, and queues the siblings of a key: they may come from other sources now.
func (a *Aggregate) relate(k ref) {
	if main := a.mainOf(k); main != k && !slices.Contains(a.siblings[main], k) {
		a.siblings[main] = append(a.siblings[main], k)
	}
	if some := a.siblings[k]; len(some) > 0 {
		a.siblings[k] = slices.DeleteFunc(some, func(s ref) bool { a.queue.mark(s, nil); return a.mainOf(s) == s })
		a.queue.extend()
	}
}
