package mirror

// Policy settles what is served of the copies that several sources have. Its methods are
// called from any goroutine, and must depend on nothing but their arguments: then what is
// served does not depend on the order in which things came.
type Policy interface {
	// Merge settles what is served of copies, of which there is at least one, in order of
	// priority. All are of one kind: of one key or, when Group makes several keys one, of
	// one group, of which the first names the key that is served.
	Merge(copies []Provider) Verdict
	// Group returns what a resource has in common with those of other keys that are to be
	// merged with it. Empty: it is merged with copies of its own key only.
	Group(r *Resource) string
}

// Verdict is what a Policy has settled.
type Verdict struct {
	// Served is what is served; nil when nobody's copy is.
	Served *Resource
	// Winner is the index of the copy whose key and fields are served, -1 when nobody's is.
	Winner int
	// United are the indexes of the other copies that went into what is served.
	United []int
	// Reason says in a few words why, for example "first in order" or "newest"; and, for
	// the copies that are neither Winner nor United, why they are not served.
	Reason string
}
