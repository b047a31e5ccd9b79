package views

import (
	"cmp"
	"maps"
	"sync"
	"sync/atomic"

	"meshrelay/mirror"
)

// maxKnown bounds the known clusters and revisions.
const maxKnown = 32_768

// Origin is the cluster and the control plane revision of a resource.
type Origin struct{ Cluster, Revision string }

// OriginOf returns the origin of a resource.
func OriginOf(r *mirror.Resource) Origin { return Origin{r.Cluster(), r.Revision()} }

// Known has the clusters and control plane revisions that resources name. If a client claims a cluster or a
// revision that no resource names, nothing is left out for it. All such clients share a view: otherwise each
// could claim a new name, and they would use up the views that there may be.
//
// The shared view does not show resources of an unknown cluster. When such a resource comes, its cluster
// becomes known, and the clients that claim it get their own view. Then the shared view shows the resource.
type Known struct {
	mu sync.Mutex // guards all fields but news and learning
	// same has other IDs of clusters, by ID.
	same map[string]string
	// names are the known claims. fresh become known once the clients that claim them have moved to their own
	// views.
	names, fresh map[claim]struct{}
	last         Origin // the last origin that was looked up: most resources share it
	// news has an element when fresh is not empty.
	news chan struct{}
	// learning is set from the first of fresh until the clients that claim them have their views. A response
	// meanwhile would tell which ones were known before, if only by resources that the client does not see.
	learning atomic.Bool
}

// claim is the name of a cluster or of a revision.
type claim struct {
	name       string
	isRevision bool
}

// NewKnown returns a Known that knows nothing.
func NewKnown() *Known {
	return &Known{names: map[claim]struct{}{}, fresh: map[claim]struct{}{}, news: make(chan struct{}, 1)}
}

// has reports whether a claim is known or empty. The caller holds mu.
func (k *Known) has(c claim) bool {
	_, ok := k.names[c]
	return ok || c.name == ""
}

// Narrow returns want, with the cluster and the revision replaced by strangeCluster and strangeRevision if
// they are unknown.
func (k *Known) Narrow(want Selection) Selection {
	k.mu.Lock()
	defer k.mu.Unlock()
	want.Cluster = cmp.Or(k.same[want.Cluster], want.Cluster)
	if !k.has(claim{want.Cluster, false}) {
		want.Cluster, want.strangeCluster = "", true
	}
	if !k.has(claim{want.Revision, true}) {
		want.Revision, want.strangeRevision = "", true
	}
	return want
}

// Knows reports whether the cluster and the revision of an origin are known.
func (k *Known) Knows(o Origin) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return o == k.last || k.has(claim{o.Cluster, false}) && k.has(claim{o.Revision, true})
}

// Note reports whether an origin is known, and adds it if not. strangers reports whether any client has a
// view for unknown clusters or revisions: then the origin becomes known later.
func (k *Known) Note(o Origin, strangers func() bool) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if o == k.last {
		return true
	}
	knows := k.learn(claim{o.Cluster, false}, strangers)
	knows = k.learn(claim{o.Revision, true}, strangers) && knows
	if knows {
		k.last = o
	}
	return knows
}

func (k *Known) learn(c claim, strangers func() bool) bool {
	switch {
	case k.has(c):
		return true
	case len(k.names)+len(k.fresh) >= maxKnown:
		return false
	case !strangers():
		k.names[c] = struct{}{}
		mirror.Signal(k.news) // for clients of the cluster that are sent what is its own
		return true
	}
	k.fresh[c] = struct{}{}
	k.learning.Store(true)
	mirror.Signal(k.news)
	return false
}

// Adopt makes fresh known, and reports whether fresh had any.
func (k *Known) Adopt() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	adopted := len(k.fresh) > 0
	maps.Copy(k.names, k.fresh)
	clear(k.fresh)
	return adopted
}

// Learned notes that the clients have the views for what was adopted.
func (k *Known) Learned() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.learning.Store(len(k.fresh) > 0)
}

// News has an element when there are clusters or revisions that Adopt makes known, or that have become known.
func (k *Known) News() <-chan struct{} { return k.news }

// Learning reports whether clients wait for the views of what has become known.
func (k *Known) Learning() bool { return k.learning.Load() }

// Same sets other IDs of clusters, by ID. Clients that claim an ID are sent nothing of the other one either.
func (k *Known) Same(ids map[string]string) {
	k.mu.Lock()
	k.same = ids
	k.mu.Unlock()
	mirror.Signal(k.news)
}
