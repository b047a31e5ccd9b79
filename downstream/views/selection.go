package views

import (
	"cmp"

	"meshrelay/mirror"
)

// Selection is what the clients of a view see that have one cluster and one control plane revision. The zero
// Selection shows everything. Selections that are equal show the same.
type Selection struct {
	Rule *Rule // nil: accepts every copy
	// Copies of Cluster, and copies for other revisions than Revision, are left out (PROTOCOL C11, S14).
	Cluster, Revision string
	// strangeCluster and strangeRevision are set when the client claims a cluster or a revision that is not
	// known.
	strangeCluster, strangeRevision bool
}

// Selection returns what a client sees that has the rule.
func (r *Rule) Selection(c Client) Selection {
	s := Selection{Revision: c.Revision, Cluster: cmp.Or(r.ClusterID, c.ClusterID)}
	if r.Accepts != nil {
		s.Rule = r
	}
	return s
}

// Accepts reports whether a copy is seen, whatever is known.
func (s Selection) Accepts(r *mirror.Resource) bool {
	if s.Cluster != "" && r.Cluster() == s.Cluster {
		return false
	}
	if (s.Revision != "" || s.strangeRevision) && r.Revision() != "" && r.Revision() != s.Revision {
		return false
	}
	return s.Rule == nil || s.Rule.Accepts(r)
}

// Accepting returns a function that reports whether a copy is seen. knows reports whether the origin of a copy is
// known.
func (s Selection) Accepting(knows func(*mirror.Resource) bool) func(*mirror.Resource) bool {
	if !s.Strange() {
		return s.Accepts
	}
	return func(r *mirror.Resource) bool {
		// Accepts leaves out copies of an unknown revision.
		known := knows(r)
		return s.Accepts(r) && (known || !s.strangeCluster)
	}
}

// Strange reports whether the selection is for clients whose cluster or revision is unknown.
func (s Selection) Strange() bool { return s.strangeCluster || s.strangeRevision }
