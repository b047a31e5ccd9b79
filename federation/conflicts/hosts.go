package conflicts

import (
	"cmp"
	"fmt"
	"hash/maphash"
	"maps"
	"slices"
	"sync"
	"time"

	"meshrelay/federation"
	"meshrelay/mirror"
)

const (
	// maxShown bounds the claims that one HostConflict lists.
	maxShown = 64
	// maxClaims bounds the cost of one resource: its hosts, times the namespaces that see it.
	maxClaims = 4096
	// maxScoped bounds the sum of claimant.scopes over all hosts that several resources claim. So many take
	// some 50 MB.
	maxScoped = 1 << 18
)

// Claim is a resource that claims a host. Its kind is the conflict's.
type Claim struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Source is the upstream from which the served resource comes.
	Source string `json:"source"`
	// Visibility is "*", or the namespaces that see the resource.
	Visibility string `json:"visibility"`
}

// HostConflict is a host that several resources of a kind claim for the same namespaces. The relay reports it
// and serves all of them. istiod decides which one takes effect.
type HostConflict struct {
	Kind mirror.Kind `json:"kind"`
	Host string      `json:"host"`
	// Visibility is "*" when every namespace sees one of the claims: it is in conflict with each other claim.
	// Otherwise it has the namespaces that see several.
	Visibility string `json:"visibility"`
	// Claims are the first claims by namespace and name. In a conflict that has ended, they are the claims
	// that remain.
	Claims []Claim `json:"claims"`
	// More is the number of claims that are not in Claims.
	More int `json:"more,omitempty"`
	// Winner is the "namespace/name" of the claim that istiod prefers, empty when that is not certain. It is
	// certain for VirtualServices that every namespace sees: istiod takes the oldest, then the first by
	// "name.namespace". It is never certain for ServiceEntries: istiod merges those of one namespace and
	// prefers Services of the cluster, and a Sidecar may choose.
	Winner string `json:"winner,omitempty"`
	// Apart is why the merge policy has not united the claims, if it unites resources of one host. The admin
	// endpoint sets it.
	Apart string `json:"apart,omitempty"`
	// Since is when the present claims came into conflict.
	Since time.Time `json:"since"`
	// Ended reports that the update ended the conflict.
	Ended bool `json:"ended,omitempty"`

	sum uint64 // of the keys in conflict
}

// NotFollowed is a resource whose hosts Hosts does not follow, because they are too many. The resource is
// served like any other.
type NotFollowed struct {
	mirror.Key
	// Source is the upstream from which the served resource comes.
	Source string `json:"source"`
	// Hosts is the number of hosts that it claims.
	Hosts int `json:"hosts"`
	// Namespaces is the number of namespaces that see it, 0 for all.
	Namespaces int `json:"namespaces,omitempty"`
	// Reason is why it is not followed.
	Reason string `json:"reason"`
}

var (
	tooMany = fmt.Sprintf("its hosts, times the namespaces of its exportTo, are more than %d", maxClaims)
	noRoom  = "too many namespaces see the contested hosts of all resources together"
)

// Hosts finds the hosts that several served resources of a kind claim (federation.Owned). Of one upstream, only
// ServiceEntries, and VirtualServices for the gateway "mesh", are in conflict (istioctl analyze: IST0109): istiod merges
// the others of one host.
//
// The memory and time of an update grow with the hosts of the resource and the namespaces that see it. Hosts does
// not follow a resource above maxClaims. It does not follow a resource for which maxScoped leaves no room,
// until the resource changes. NotFollowed lists both.
//
// Its methods may be called from any goroutine.
type Hosts struct {
	// Served returns the resource that is served under a key, or nil. It is set before the first Update.
	Served func(mirror.Key) *mirror.Resource
	now    func() time.Time
	seed   maphash.Seed

	// mu guards all below.
	mu sync.Mutex
	// single has the resource of each host that one resource claims, by a hash of the host. Nearly all hosts
	// are there. multi has the other hosts.
	single map[uint64]*mirror.Resource
	multi  map[hostKey]*host
	// scoped is the sum that maxScoped bounds.
	scoped, maxScoped int
	// unfollowed has the resources that are not followed.
	unfollowed map[mirror.Key]NotFollowed
	routes     map[mirror.Key]*claimant // that have ServiceEntries as parents
}

type hostKey struct {
	kind mirror.Kind
	host string
}

// NewHosts returns an empty Hosts, with now as its clock.
func NewHosts(now func() time.Time) *Hosts {
	return &Hosts{
		now: now, seed: maphash.MakeSeed(), routes: map[mirror.Key]*claimant{},
		single: map[uint64]*mirror.Resource{}, multi: map[hostKey]*host{},
		maxScoped: maxScoped, unfollowed: map[mirror.Key]NotFollowed{},
	}
}

// Update replaces a served resource, old, by cur, which has the same key. Either may be nil. It returns the
// conflicts that began, changed or ended. It ignores kinds that federation.Owned does not have.
func (h *Hosts) Update(old, cur *mirror.Resource) (changed []HostConflict) {
	r := cmp.Or(cur, old)
	if r == nil || !slices.Contains(federation.Owned, r.Kind()) {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	changed = h.update(r.Key(), old, cur)
	for key, c := range h.routes {
		if slices.Contains(c.parents, r.Key()) {
			changed = append(changed, h.update(key, c.resource, c.resource)...)
		}
	}
	return joinScopes(changed)
}

func (h *Hosts) update(key mirror.Key, old, cur *mirror.Resource) (changed []HostConflict) {
	was, kind := h.claimantOf(old), key.Kind
	delete(h.routes, key)
	next := h.claimantOf(cur)
	defer next.forgetHosts()
	if _, skipped := h.unfollowed[key]; skipped {
		delete(h.unfollowed, key)
		was = nobody
	}
	if reason := h.refusal(was, next); reason != "" {
		h.unfollowed[key] = NotFollowed{key, cur.Source(), len(next.hosts), len(next.visibility.Namespaces), reason}
		next = nobody
	}
	for _, name := range was.hosts {
		changed = append(changed, h.change(hostKey{kind, name}, was, next.on(name))...)
	}
	for _, name := range next.hosts {
		if was.on(name) == nobody {
			changed = append(changed, h.change(hostKey{kind, name}, nobody, next)...)
		}
	}
	return changed
}

// refusal returns why next, which replaces was, is not followed. It is empty when next is followed.
func (h *Hosts) refusal(was, next *claimant) string {
	if len(next.hosts)*(1+next.scopes()) > maxClaims {
		return tooMany
	}
	scoped := h.scoped
	if scoped+len(next.hosts)*(next.scopes()+maxClaims) <= h.maxScoped {
		return "" // the usual case: no claimant has more than maxClaims namespaces
	}
	for _, name := range next.hosts {
		key := hostKey{next.kind, name}
		if h.multi[key] != nil {
			scoped += next.scopes() - was.on(name).scopes()
		} else if owner := h.single[h.hash(key)]; owner != nil && owner != was.resource {
			scoped += next.scopes() + h.claimantOf(owner).scopes()
		}
		if scoped > h.maxScoped {
			return noRoom
		}
	}
	return ""
}

func (h *Hosts) hash(key hostKey) uint64 { return maphash.Comparable(h.seed, key) }

// change replaces the claim of a resource to a host, and returns the conflicts that changed.
func (h *Hosts) change(key hostKey, was, next *claimant) []HostConflict {
	hash := h.hash(key)
	e, owner := h.multi[key], h.single[hash]
	switch {
	case e != nil:
		h.scoped -= e.scoped
	case owner == nil || owner == was.resource:
		if next == nobody {
			delete(h.single, hash)
		} else {
			h.single[hash] = next.resource
		}
		return nil
	default:
		e = &host{scopes: map[string]*scope{}}
		if c := h.claimantOf(owner).on(key.host); c != nobody { // else two hosts have the same hash
			c.forgetHosts()
			delete(h.single, hash)
			e.insert(c)
		}
	}
	changed := e.replace(key, was, next, h.now)
	switch all := e.scopes[federation.Everyone]; {
	case all == nil:
		delete(h.multi, key)
	case len(all.claims) == 1 && h.single[hash] == nil:
		h.single[hash] = all.claims[0].resource
		delete(h.multi, key)
	default:
		h.multi[key] = e
		h.scoped += e.scoped
	}
	return changed
}

// Counts returns the number of conflicts by kind.
func (h *Hosts) Counts() map[mirror.Kind]int {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := map[mirror.Kind]int{federation.ServiceEntry: 0, federation.VirtualService: 0}
	for key, host := range h.multi {
		sums := map[uint64]struct{}{}
		for _, s := range host.scopes {
			if !s.since.IsZero() {
				sums[s.reported] = struct{}{}
			}
		}
		out[key.kind] += len(sums)
	}
	return out
}

// Conflicts returns all conflicts, sorted by kind, host and visibility.
func (h *Hosts) Conflicts() []HostConflict {
	h.mu.Lock()
	defer h.mu.Unlock()
	var out []HostConflict
	for key, host := range h.multi {
		for name, s := range host.scopes {
			if !s.since.IsZero() {
				out = append(out, host.conflict(key, name, s))
			}
		}
	}
	return joinScopes(out)
}

// NotFollowed returns the resources that are not followed, sorted by key.
func (h *Hosts) NotFollowed() []NotFollowed {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.SortedFunc(maps.Values(h.unfollowed), func(a, b NotFollowed) int { return mirror.CompareKeys(a.Key, b.Key) })
}

// Skipped returns why a resource is not followed. It returns false if it is followed.
func (h *Hosts) Skipped(key mirror.Key) (NotFollowed, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	n, ok := h.unfollowed[key]
	return n, ok
}
