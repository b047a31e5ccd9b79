package downstream

import (
	"maps"
	"time"

	"meshrelay/mirror"
)

// maxKnown bounds the clusters, and the revisions, that are known.
const maxKnown = 16_384

// known are the clusters and control plane revisions that resources are of. A client that
// claims another has nothing to be kept from, so those clients share a view: else each could
// claim a new one, and take all views that there may be.
//
// That view does not show what is of a cluster that is not known yet. So a client of that
// cluster is never sent what came from it: the cluster becomes known, the client is moved to a
// view of its own, and only then others see the resource. views.mu guards it.
type known struct {
	clusters, revisions map[string]struct{}
	// freshClusters and freshRevisions have been seen, and are not known before the clients
	// that claim them are moved.
	freshClusters, freshRevisions map[string]struct{}
	// last is the cluster and the revision that were looked up last: most are as these.
	lastCluster, lastRevision string
	// news has one slot: there is something fresh.
	news chan struct{}
}

func newKnown() known {
	return known{
		clusters: map[string]struct{}{}, revisions: map[string]struct{}{},
		freshClusters: map[string]struct{}{}, freshRevisions: map[string]struct{}{},
		news: make(chan struct{}, 1),
	}
}

// narrow returns the variant for a client that claims to be of the cluster and the revision of
// want.
func (k *known) narrow(want variant) variant {
	if _, ok := k.clusters[want.cluster]; want.cluster != "" && !ok {
		want.cluster, want.strangeCluster = "", true
	}
	if _, ok := k.revisions[want.revision]; want.revision != "" && !ok {
		want.revision, want.strangeRevision = "", true
	}
	return want
}

// note takes account of a resource that a view shows or may show, and reports whether its
// cluster and its revision are known. strangers reports whether any client claims one that is not.
func (k *known) note(r *mirror.Resource, strangers func() bool) bool {
	cluster, revision := r.Cluster(), r.Revision()
	if cluster == k.lastCluster && revision == k.lastRevision {
		return true
	}
	knows := k.look(cluster, k.clusters, k.freshClusters, strangers)
	knows = k.look(revision, k.revisions, k.freshRevisions, strangers) && knows
	if knows {
		k.lastCluster, k.lastRevision = cluster, revision
	}
	return knows
}

func (k *known) look(name string, names, fresh map[string]struct{}, strangers func() bool) bool {
	if _, ok := names[name]; ok || name == "" {
		return true
	}
	if len(names)+len(fresh) >= maxKnown {
		return false
	}
	if !strangers() {
		names[name] = struct{}{}
		return true
	}
	fresh[name] = struct{}{}
	select {
	case k.news <- struct{}{}:
	default:
	}
	return false
}

// settle makes known what is fresh, and reports whether there was anything.
func (k *known) settle() bool {
	if len(k.freshClusters)+len(k.freshRevisions) == 0 {
		return false
	}
	maps.Copy(k.clusters, k.freshClusters)
	maps.Copy(k.revisions, k.freshRevisions)
	clear(k.freshClusters)
	clear(k.freshRevisions)
	return true
}

func (v variant) strange() bool { return v.strangeCluster || v.strangeRevision }

// strangers reports whether a view is for clients whose cluster or revision is not known.
func (vs *views) strangers() bool {
	for _, v := range vs.copied() {
		if v.variant.strange() {
			return true
		}
	}
	return false
}

// note takes account of a resource that a view shows; nil is none.
func (vs *views) note(r *mirror.Resource) {
	if r != nil {
		vs.known.note(r, vs.strangers)
	}
}

// accepts returns what reports whether a copy is shown in views of a variant.
func (vs *views) accepts(x variant) func(*mirror.Resource) bool {
	if !x.strange() {
		return x.accepts
	}
	return func(r *mirror.Resource) bool {
		// Of a revision that is not known it is left out anyway.
		knows := vs.known.note(r, vs.strangers)
		return x.accepts(r) && (knows || !x.strangeCluster)
	}
}

// admit returns the view for a client whose rule and claims are those of want. The caller
// releases it.
func (vs *views) admit(want variant, protocol string) (*view, error) {
	vs.mu.Lock()
	defer vs.mu.Unlock()
	for {
		x := vs.known.narrow(want)
		v, err := vs.enter(x, protocol)
		if err != nil {
			return nil, err
		}
		if vs.known.narrow(want) == x {
			return v, nil
		}
		vs.leave(v, protocol) // filling it has made the cluster or the revision known
	}
}

// rematch brings clients to what they are to see from now on, by what is known now.
func (vs *views) rematch(transfers []transfer, now time.Time) {
	vs.mu.Lock()
	defer vs.mu.Unlock()
	learned := vs.known.settle()
	for i := range transfers {
		transfers[i].to = vs.known.narrow(transfers[i].to)
	}
	if !vs.transfer(transfers, now) && learned {
		vs.bring(true, nil, now) // what was not shown to strangers
	}
}
