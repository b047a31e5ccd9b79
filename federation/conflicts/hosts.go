package conflicts

import (
	"math"
	"slices"
	"sync"
	"time"

	"github.com/zeebo/xxh3"

	"meshrelay/federation"
	"meshrelay/mirror"
)

const (
	// maxShown bounds the claims that are shown of one conflict.
	maxShown = 64
	// maxClaims bounds what is followed of one config: its hosts, times the namespaces to
	// which it is exported.
	maxClaims = 4096
	// maxScoped bounds what is noted for namespaces beyond the first of each claim, of all
	// hosts that several configs claim. It takes some 50 MB.
	maxScoped = 1 << 18
	// meshGateway is the gateway of a VirtualService that stands for all sidecars.
	meshGateway = "mesh"
	// clusterDomain completes the hosts that are still short here (Rewrite.CompleteShortHosts
	// is off), as istioctl analyze does.
	clusterDomain = ".svc.cluster.local"
)

// Claim is a resource that claims a host. Its kind is the conflict's.
type Claim struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Source is the upstream from which the resource that is served comes.
	Source string `json:"source"`
	// Visibility is "*", or the namespaces to which the resource is visible.
	Visibility string `json:"visibility"`
}

// HostConflict is a host that several resources of a kind claim in a place where they see
// one another. It is found, not prevented: which of them takes effect is up to istiod.
type HostConflict struct {
	Kind mirror.Kind `json:"kind"`
	Host string      `json:"host"`
	// Visibility is "*" when one of the claims is visible to every namespace, so that it
	// is in conflict with each of the others; else the namespaces that see several.
	Visibility string `json:"visibility"`
	// Claims are sorted by namespace and name. Of many, the first are shown. Of a conflict
	// that has ended, they are those that are left.
	Claims []Claim `json:"claims"`
	// More is the number of claims that are not shown.
	More int `json:"more,omitempty"`
	// Winner is the "namespace/name" of the claim that istiod prefers, empty when that is
	// not certain. It is certain for VirtualServices that every namespace sees: istiod
	// takes the one that was created first, then the first by "name.namespace". Of
	// ServiceEntries, those in one namespace are merged, Services of the cluster come
	// first, and a Sidecar may choose.
	Winner string `json:"winner,omitempty"`
	// Apart is why the merge policy has not united the claims, where it unites resources of
	// one host. It is not known to Hosts.
	Apart string `json:"apart,omitempty"`
	// Since is when the present claims came to be in conflict.
	Since time.Time `json:"since"`
	// Ended says that this was a conflict until the update that tells of it.
	Ended bool `json:"ended,omitempty"`

	sum uint64 // of the keys in conflict
}

// Hosts finds the hosts that several resources claim, among the ServiceEntries and
// VirtualServices that it is told of. As istioctl analyze does (IST0109), it looks at
// VirtualServices for the gateway "mesh" only: for other gateways istiod merges those of
// one host.
//
// Memory and the time of an update grow with the hosts of the resource and the namespaces to
// which it is exported. Their product is bounded: a resource above maxClaims is not followed,
// nor is one for which there is no room in maxScoped. See NotFollowed.
//
// Its methods may be called from any goroutine.
type Hosts struct {
	now func() time.Time

	// mu guards all below.
	mu sync.Mutex
	// lone are the resources that claim a host by themselves, as nearly all do, by a hash of
	// the host. hosts are the other hosts.
	lone  map[uint64]*mirror.Resource
	hosts map[hostKey]*host
	// contested are those of hosts that are in conflict somewhere.
	contested map[hostKey]*host
	// scoped counts what maxScoped, the field, bounds: the extra namespaces of all claims in
	// hosts.
	scoped, maxScoped int
	// unfollowed are the resources that are not followed. waiting are those of them that
	// are once less than retryBelow is noted.
	unfollowed map[mirror.Key]NotFollowed
	waiting    map[mirror.Key]*mirror.Resource
	retryBelow int
}

type hostKey struct {
	kind *federation.HostKind
	host string
}

func (k hostKey) hash() uint64 {
	seed := uint64(0)
	if k.kind == federation.ServiceHosts {
		seed = 1
	}
	return xxh3.HashStringSeed(k.host, seed)
}

// NewHosts returns a Hosts that nobody claims anything of. It asks now for the time.
func NewHosts(now func() time.Time) *Hosts {
	return &Hosts{
		now: now, lone: map[uint64]*mirror.Resource{}, hosts: map[hostKey]*host{}, contested: map[hostKey]*host{},
		maxScoped: maxScoped, retryBelow: maxScoped - maxClaims, unfollowed: map[mirror.Key]NotFollowed{}, waiting: map[mirror.Key]*mirror.Resource{},
	}
}

// Update tells of a resource that is served, old, which is now cur: nil when it is no
// longer served. It returns the conflicts that this has begun, changed or ended. Kinds
// other than ServiceEntry and VirtualService are ignored.
func (h *Hosts) Update(old, cur *mirror.Resource) (changed []HostConflict) {
	r := cur
	if r == nil {
		r = old
	}
	if r == nil {
		return nil
	}
	kind := federation.HostKindOf(r.Kind())
	if kind == nil {
		return nil
	}
	var was, next *claimant
	if old != nil {
		was = claimantOf(kind, old)
	}
	if cur != nil {
		next = claimantOf(kind, cur)
	}

	h.mu.Lock()
	defer h.mu.Unlock()
	changed = h.update(r.Key(), was, next)
	return append(changed, h.retry()...)
}

// update replaces what a resource claims. Either claimant may be nil.
func (h *Hosts) update(key mirror.Key, was, next *claimant) (changed []HostConflict) {
	if _, skipped := h.unfollowed[key]; skipped {
		delete(h.unfollowed, key)
		delete(h.waiting, key)
		was = nil
	}
	if next.claims() > maxClaims {
		h.unfollowed[key] = next.notFollowed(tooMany)
		next = nil
	}
	h.unfold(was, math.MaxInt)
	if next != nil && (!h.unfold(next, h.maxScoped+was.extra()) || h.scoped-was.extra()+next.extra() > h.maxScoped) {
		h.fold(next)
		changed = h.update(key, was, nil)
		h.unfollowed[key], h.waiting[key] = next.notFollowed(noRoom), next.resource
		return changed
	}
	t := touched{}
	h.touch(t, was)
	h.touch(t, next)
	h.remove(was)
	h.add(next)
	if !was.equal(next) {
		changed = h.settle(t, !was.same(next))
	}
	h.fold(was)
	h.fold(next)
	return changed
}

// unfold makes what is noted of the hosts of a claimant whole. It stops, and reports false,
// when more than limit is noted.
func (h *Hosts) unfold(c *claimant, limit int) bool {
	if c == nil {
		return true
	}
	for _, name := range c.hosts {
		if h.scoped > limit {
			return false
		}
		key := hostKey{c.kind, name}
		r := h.lone[key.hash()]
		if r == nil || h.hosts[key] != nil {
			continue
		}
		if owner := claimantOf(c.kind, r); owner != nil && r.Kind() == c.kind.Kind && slices.Contains(owner.hosts, name) {
			h.hosts[key] = &host{}
			h.hosts[key].insert(owner)
			h.scoped += owner.scopes()
			delete(h.lone, key.hash())
		}
	}
	return h.scoped <= limit
}

// fold makes what is noted of the hosts of a claimant small again, where it is the only one
// who claims them.
func (h *Hosts) fold(c *claimant) {
	if c == nil {
		return
	}
	for _, name := range c.hosts {
		key := hostKey{c.kind, name}
		e, hash := h.hosts[key], key.hash()
		switch {
		case e == nil:
		case e.all.len == 0:
			delete(h.hosts, key)
		case e.all.len == 1 && h.lone[hash] == nil:
			owner := e.all.first(1)[0]
			h.lone[hash] = owner.resource
			h.scoped -= owner.scopes()
			delete(h.hosts, key)
		}
	}
}

// Counts returns the number of conflicts by kind, without making them.
func (h *Hosts) Counts() map[mirror.Kind]int {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := map[mirror.Kind]int{federation.ServiceEntry: 0, federation.VirtualService: 0}
	for key, host := range h.contested {
		sums := make(map[uint64]struct{}, 1)
		for _, since := range host.since {
			sums[since.sum] = struct{}{}
		}
		out[key.kind.Kind] += len(sums)
	}
	return out
}

// Conflicts returns all conflicts, sorted by kind, host and visibility.
func (h *Hosts) Conflicts() []HostConflict {
	h.mu.Lock()
	defer h.mu.Unlock()
	var out []HostConflict
	for key, host := range h.contested {
		for scope, since := range host.since {
			out = append(out, host.conflict(key, scope, since))
		}
	}
	return foldScopes(out)
}

// touched are the scopes that an update may change, by host.
type touched map[hostKey]*touchedHost

type touchedHost struct {
	scopes map[string]struct{}
	public bool // whether there was a public claim
}

func (h *Hosts) touch(t touched, c *claimant) {
	if c == nil {
		return
	}
	for _, name := range c.hosts {
		key := hostKey{c.kind, name}
		e := t[key]
		if e == nil {
			e = &touchedHost{scopes: map[string]struct{}{federation.Everyone: {}}}
			if host := h.hosts[key]; host != nil {
				e.public = host.public > 0
			}
			t[key] = e
		}
		for _, ns := range c.visibility.Namespaces {
			e.scopes[ns] = struct{}{}
		}
	}
}

// settle notes which scopes are in conflict after an update, and returns those in which
// something has changed. about says that the resource itself looks different.
func (h *Hosts) settle(t touched, about bool) []HostConflict {
	var out []HostConflict
	now := h.now()
	for key, e := range t {
		host := h.hosts[key]
		if host == nil {
			continue
		}
		// With the first public claim the conflicts of single namespaces become one of
		// federation.Everyone, which falls apart into them with the end of the last public one.
		if e.public != (host.public > 0) {
			for ns := range host.crowded {
				e.scopes[ns] = struct{}{}
			}
			for ns := range host.since {
				e.scopes[ns] = struct{}{}
			}
		}
		for scope := range e.scopes {
			if c, ok := host.settle(key, scope, now, about); ok {
				out = append(out, c)
			}
		}
		if delete(h.contested, key); len(host.since) > 0 {
			h.contested[key] = host
		}
	}
	return foldScopes(out)
}

func (h *Hosts) add(c *claimant) {
	if c == nil {
		return
	}
	for _, name := range c.hosts {
		key := hostKey{c.kind, name}
		e := h.hosts[key]
		if e == nil {
			e = &host{}
			h.hosts[key] = e
		}
		e.insert(c)
		h.scoped += c.scopes()
	}
}

// remove leaves hosts without claims behind, for settle to see.
func (h *Hosts) remove(c *claimant) {
	if c == nil {
		return
	}
	for _, name := range c.hosts {
		e := h.hosts[hostKey{c.kind, name}]
		if e == nil || !e.all.drop(c) {
			continue // nobody was told of it
		}
		h.scoped -= c.scopes()
		if c.visibility.Public {
			e.public--
		}
		for _, ns := range c.visibility.Namespaces {
			set := e.scoped[ns]
			set.drop(c)
			e.keep(ns, set)
		}
	}
}
