package mirror

// Policy decides which resource is served when several sources have a copy. Its methods run on any goroutine.
// They must be pure functions: the order in which copies arrive has no effect.
type Policy interface {
	// Merge decides between copies, in order of priority; there is at least one. They all have the same key
	// or, for a Grouper, the same group. The key of the first copy is then served. It serves an only copy as
	// it is.
	Merge(copies []Copy) Decision
}

// Grouper is a Policy that also merges resources of different keys.
type Grouper interface {
	Policy
	// Group returns the same text for resources to merge. A resource without a group, for which it returns
	// an empty text, is merged with copies of its own key only.
	Group(r *Resource) string
}

// mergesKeys reports whether a Policy merges resources of different keys.
func mergesKeys(p Policy) bool {
	_, is := p.(Grouper)
	return is
}

func groupOf(p Policy, r *Resource) string {
	if g, ok := p.(Grouper); ok {
		return g.Group(r)
	}
	return ""
}

// Decision is the result of a Policy.
type Decision struct {
	// Served is the resource that is served; nil for none.
	Served *Resource
	// Winner is the index of the copy whose key and fields are served, -1 for none.
	Winner int
	// United are the indexes of the other copies that are part of Served.
	United []int
	// Reason is a few words, for example "first in order" or "newest".
	Reason string
}

// First is the Policy that serves the first copy in order of priority.
type First struct{}

// Merge implements Policy.
func (First) Merge(copies []Copy) Decision {
	d := Decision{Served: copies[0].Resource}
	if len(copies) > 1 {
		d.Reason = "first in order"
	}
	return d
}
