package downstream

import (
	"context"
	"maps"
	"sync"
	"time"

	"meshrelay/mirror"
)

// maxKnown bounds the clusters and revisions that are known.
const maxKnown = 32_768

// known are the clusters and control plane revisions of resources. Clients that claim others have
// nothing to be kept from, and share a view: else each could claim a new one and take all views.
//
// That view does not show resources of a cluster that is not known yet: first the cluster becomes
// known and its clients move to a view of their own, then others see the resource.
type known struct {
	mu sync.Mutex // guards all below but news; taken after views.mu
	// names are known. fresh become known once the clients that claim them are moved.
	names, fresh map[claim]struct{}
	last         origin // the last origin that was looked up: most resources share it
	// news has one slot: there is something fresh.
	news chan struct{}
}

// claim is a cluster or, if it is so marked, a revision.
type claim struct {
	name       string
	isRevision bool
}

func newKnown() *known {
	return &known{names: map[claim]struct{}{}, fresh: map[claim]struct{}{}, news: make(chan struct{}, 1)}
}

// has reports whether a cluster or revision is known, or none. The caller holds mu.
func (k *known) has(c claim) bool {
	_, ok := k.names[c]
	return ok || c.name == ""
}

// narrow returns the variant for a client that claims the cluster and revision of want.
func (k *known) narrow(want variant) variant {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.has(claim{want.cluster, false}) {
		want.cluster, want.strangeCluster = "", true
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

// note reports whether an origin is known, and learns it if not. strangers reports whether any
// client claims an unknown origin.
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
		return true
	}
	k.fresh[c] = struct{}{}
	select {
	case k.news <- struct{}{}:
	default:
	}
	return false
}

// adopt makes known what is fresh, and reports whether there was anything.
func (k *known) adopt() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	adopted := len(k.fresh) > 0
	maps.Copy(k.names, k.fresh)
	clear(k.fresh)
	return adopted
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

// note learns the origin of a resource, and reports whether it is known. The caller holds mu.
func (vs *views) note(r *mirror.Resource) (knows bool) {
	return vs.known.note(origin{r.Cluster(), r.Revision()}, vs.strangers)
}

// accepts returns the filter of the copies that views of a variant show. knows reports whether the
// origin of a copy is known.
func (vs *views) accepts(x variant, knows func(*mirror.Resource) bool) func(*mirror.Resource) bool {
	if !x.strange() {
		return x.accepts
	}
	return func(r *mirror.Resource) bool {
		// Of a revision that is not known it is left out anyway.
		known := knows(r)
		return x.accepts(r) && (known || !x.strangeCluster)
	}
}

// admit returns the view for a client with the rule and claims of want. The caller releases it.
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
		vs.release(v, who) // filling it has made the cluster or the revision known
	}
}

// rematch brings clients to what they are to see from now on, by what is known now.
func (vs *views) rematch(moves []move, now time.Time) {
	vs.mu.Lock()
	defer vs.mu.Unlock()
	learned := vs.known.adopt()
	for i := range moves {
		moves[i].to = vs.known.narrow(moves[i].to)
	}
	if !vs.move(moves, now) && learned {
		vs.bring(true, nil, now) // resources that strangers did not see
	}
}
