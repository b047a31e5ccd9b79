package downstream

import (
	"cmp"
	"context"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"meshrelay/mirror"
)

// maxKnown bounds the known clusters and revisions.
const maxKnown = 32_768

// known has the clusters and control plane revisions that resources name. If a client claims a cluster or a
// revision that no resource names, nothing is left out for it. All such clients share a view: otherwise each
// could claim a new name, and they would use up maxViews.
//
// The shared view does not show resources of an unknown cluster. When such a resource comes, its cluster
// becomes known, and the clients that claim it get their own view. Then the shared view shows the resource.
type known struct {
	mu sync.Mutex // guards all fields but news and learning; locked after views.mu
	// same has other IDs of clusters, by ID.
	same map[string]string
	// names are the known claims. fresh become known once the clients that claim them have moved to their own
	// views.
	names, fresh map[claim]struct{}
	last         origin // the last origin that was looked up: most resources share it
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

func newKnown() *known {
	return &known{names: map[claim]struct{}{}, fresh: map[claim]struct{}{}, news: make(chan struct{}, 1)}
}

// has reports whether a claim is known or empty. The caller holds mu.
func (k *known) has(c claim) bool {
	_, ok := k.names[c]
	return ok || c.name == ""
}

// narrow returns want, with the cluster and the revision replaced by strangeCluster and strangeRevision if
// they are unknown.
func (k *known) narrow(want variant) variant {
	k.mu.Lock()
	defer k.mu.Unlock()
	want.cluster = cmp.Or(k.same[want.cluster], want.cluster)
	if !k.has(claim{want.cluster, false}) {
		want.cluster, want.strangeCluster, want.ofOwn = "", !want.ofOwn, false
	}
	if !k.has(claim{want.revision, true}) {
		want.revision, want.strangeRevision = "", true
	}
	return want
}

// knows reports whether the cluster and the revision of an origin are known.
func (k *known) knows(o origin) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return o == k.last || k.has(claim{o.cluster, false}) && k.has(claim{o.revision, true})
}

// note reports whether an origin is known, and adds it if not. strangers reports whether any client has a
// view for unknown clusters or revisions: then the origin becomes known later.
func (k *known) note(o origin, strangers func() bool) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if o == k.last {
		return true
	}
	knows := k.learn(claim{o.cluster, false}, strangers)
	knows = k.learn(claim{o.revision, true}, strangers) && knows
	if knows {
		k.last = o
	}
	return knows
}

func (k *known) learn(c claim, strangers func() bool) bool {
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

// adopt makes fresh known, and reports whether fresh had any.
func (k *known) adopt() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	adopted := len(k.fresh) > 0
	maps.Copy(k.names, k.fresh)
	clear(k.fresh)
	return adopted
}

// learned notes that the clients have the views for what was adopted.
func (k *known) learned() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.learning.Store(len(k.fresh) > 0)
}

func (v variant) strange() bool { return v.strangeCluster || v.strangeRevision }

// strangers reports whether there is a view for clients whose cluster or revision is unknown.
func (vs *views) strangers() bool {
	for _, v := range vs.copied() {
		if v.variant.strange() {
			return true
		}
	}
	return false
}

// note adds the origin of a resource, and reports whether it is known. The caller holds mu.
func (vs *views) note(r *mirror.Resource) (knows bool) {
	return vs.known.note(origin{r.Cluster(), r.Revision()}, vs.strangers)
}

// accepts returns a function that reports whether a view of a variant shows a copy. knows reports whether the
// origin of a copy is known.
func (vs *views) accepts(x variant, knows func(*mirror.Resource) bool) func(*mirror.Resource) bool {
	if !x.strange() {
		return x.accepts
	}
	return func(r *mirror.Resource) bool {
		// x.accepts leaves out copies of an unknown revision.
		known := knows(r)
		return x.accepts(r) && (known || !x.strangeCluster)
	}
}

// admit returns the view for a client with the variant want. The caller releases it.
func (vs *views) admit(ctx context.Context, want variant, who viewer) (*view, error) {
	for {
		x := vs.known.narrow(want)
		v, err := vs.acquire(ctx, x, who)
		if err != nil {
			return nil, err
		}
		if vs.known.narrow(want) == x {
			return v, nil
		}
		vs.release(v, who) // the fill has made the cluster or the revision known
	}
}

// rematch makes fresh known, and moves clients to their new views.
func (vs *views) rematch(moves []move, now time.Time) {
	vs.mu.Lock()
	defer vs.mu.Unlock()
	learned := vs.known.adopt()
	for i := range moves {
		moves[i].to = vs.known.narrow(moves[i].to)
	}
	if !vs.move(moves, now) && learned {
		vs.bring(true, nil, now) // the resources that the shared view did not show
	}
	vs.known.learned()
}

// Same sets other IDs of clusters, by ID. Clients that claim an ID are sent nothing of the other one either.
func (s *Server) Same(ids map[string]string) {
	k := s.views.known
	k.mu.Lock()
	k.same = ids
	k.mu.Unlock()
	mirror.Signal(k.news)
}
