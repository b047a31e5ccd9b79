package conflicts

import (
	"cmp"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/zeebo/xxh3"

	"meshrelay/federation"
	"meshrelay/mirror"
)

const (
	// maxShown bounds the claims that one HostConflict lists.
	maxShown = 64
	// maxClaims bounds the cost of one resource: its hosts, times the namespaces that see it.
	maxClaims = 4096
	// maxScoped bounds the namespaces beyond the first of each claim, over all hosts that
	// several resources claim. They take some 50 MB.
	maxScoped = 1 << 18
	// meshGateway is the gateway of a VirtualService that stands for all sidecars.
	meshGateway = "mesh"
	// clusterDomain completes hosts that are still short (rewrite.Rules.CompleteShortHosts is
	// off), as istioctl analyze does.
	clusterDomain = ".svc.cluster.local"
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

// HostConflict is a host that several resources of a kind claim where they see one another.
// The relay reports it and serves all of them: istiod decides which one takes effect.
type HostConflict struct {
	Kind mirror.Kind `json:"kind"`
	Host string      `json:"host"`
	// Visibility is "*" when every namespace sees one of the claims, so that it is in conflict
	// with each of the others; else the namespaces that see several.
	Visibility string `json:"visibility"`
	// Claims are the first claims by namespace and name. Of a conflict that has ended, they
	// are the claims that remain.
	Claims []Claim `json:"claims"`
	// More is the number of claims that Claims leaves out.
	More int `json:"more,omitempty"`
	// Winner is the "namespace/name" of the claim that istiod prefers, empty when that is
	// not certain. It is certain for VirtualServices that every namespace sees: istiod
	// takes the one that was created first, then the first by "name.namespace". Of
	// ServiceEntries, istiod merges those of one namespace and prefers Services of the
	// cluster, and a Sidecar may choose.
	Winner string `json:"winner,omitempty"`
	// Apart is why the merge policy has not united the claims, if it unites resources of one
	// host. Hosts does not set it.
	Apart string `json:"apart,omitempty"`
	// Since is when the present claims came into conflict.
	Since time.Time `json:"since"`
	// Ended reports that the update ended the conflict.
	Ended bool `json:"ended,omitempty"`

	sum uint64 // of the keys in conflict
}

// Hosts finds the hosts that several served ServiceEntries or VirtualServices claim. As
// istioctl analyze (IST0109), it looks at VirtualServices for the gateway "mesh" only: for
// other gateways istiod merges those of one host.
//
// Memory and the time of an update grow with the hosts of the resource and the namespaces that
// see it. Hosts does not follow a resource above maxClaims, nor one for which maxScoped leaves
// no room; NotFollowed lists them.
//
// Its methods may be called from any goroutine.
type Hosts struct {
	now func() time.Time

	// mu guards all below.
	mu sync.Mutex
	// single holds the only resource that claims a host, as nearly all hosts have one, by a
	// hash of the host. multi holds the other hosts.
	single map[uint64]*mirror.Resource
	multi  map[hostKey]*host
	// contested is the part of multi with a conflict.
	contested map[hostKey]*host
	// scoped is the number of namespaces that maxScoped, the field, bounds.
	scoped, maxScoped int
	// unfollowed are the resources that are not followed. waiting are those of them that are
	// tried again when scoped is less than retryBelow.
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

// NewHosts returns an empty Hosts, with now as its clock.
func NewHosts(now func() time.Time) *Hosts {
	return &Hosts{
		now: now, single: map[uint64]*mirror.Resource{}, multi: map[hostKey]*host{}, contested: map[hostKey]*host{},
		maxScoped: maxScoped, retryBelow: maxScoped - maxClaims, unfollowed: map[mirror.Key]NotFollowed{}, waiting: map[mirror.Key]*mirror.Resource{},
	}
}

// Update replaces a served resource, old, by cur, which has the same key. Either may be nil.
// It returns the conflicts that began, changed or ended. It ignores kinds other than
// ServiceEntry and VirtualService.
func (h *Hosts) Update(old, cur *mirror.Resource) (changed []HostConflict) {
	r := cmp.Or(cur, old)
	if r == nil {
		return nil
	}
	kind := federation.HostKindOf(r.Kind())
	if kind == nil {
		return nil
	}
	was, next := claimantOf(kind, old), claimantOf(kind, cur)
	h.mu.Lock()
	defer h.mu.Unlock()
	changed = h.update(r.Key(), was, next)
	return append(changed, h.retry()...)
}

// update replaces the claims of a resource. Either claimant may be nil.
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
	h.expand(was, math.MaxInt)
	if next != nil && (!h.expand(next, h.maxScoped+was.extra()) || h.scoped-was.extra()+next.extra() > h.maxScoped) {
		h.compact(next)
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
		changed = h.recompute(t, !was.same(next))
	}
	h.compact(was)
	h.compact(next)
	return changed
}

// expand moves the hosts of a claimant from single to multi. It stops, and returns false, when
// scoped exceeds limit.
func (h *Hosts) expand(c *claimant, limit int) bool {
	if c == nil {
		return true
	}
	for key := range c.keys() {
		if h.scoped > limit {
			return false
		}
		r := h.single[key.hash()]
		if r == nil || h.multi[key] != nil {
			continue
		}
		if owner := claimantOf(c.kind, r); owner != nil && r.Kind() == c.kind.Kind && slices.Contains(owner.hosts, key.host) {
			h.multi[key] = &host{}
			h.multi[key].insert(owner)
			h.scoped += owner.scopes()
			delete(h.single, key.hash())
		}
	}
	return h.scoped <= limit
}

// compact moves the hosts of a claimant back to single where one resource claims them.
func (h *Hosts) compact(c *claimant) {
	for key := range c.keys() {
		e, hash := h.multi[key], key.hash()
		switch {
		case e == nil:
		case e.all.len == 0:
			delete(h.multi, key)
		case e.all.len == 1 && h.single[hash] == nil:
			owner := e.all.first(1)[0]
			h.single[hash] = owner.resource
			h.scoped -= owner.scopes()
			delete(h.multi, key)
		}
	}
}

// Counts returns the number of conflicts by kind.
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
	return joinScopes(out)
}

// touched are the scopes that an update may change, by host.
type touched map[hostKey]*touchedHost

type touchedHost struct {
	scopes map[string]struct{}
	public bool // whether there was a public claim
}

func (h *Hosts) touch(t touched, c *claimant) {
	for key := range c.keys() {
		e := t[key]
		if e == nil {
			e = &touchedHost{scopes: map[string]struct{}{federation.Everyone: {}}}
			if host := h.multi[key]; host != nil {
				e.public = host.public > 0
			}
			t[key] = e
		}
		for _, ns := range c.visibility.Namespaces {
			e.scopes[ns] = struct{}{}
		}
	}
}

// recompute finds the conflicts in the touched scopes, and returns those that changed. With
// all, it returns every conflict there: the resource itself looks different.
func (h *Hosts) recompute(t touched, all bool) []HostConflict {
	var out []HostConflict
	now := h.now()
	for key, e := range t {
		host := h.multi[key]
		if host == nil {
			continue
		}
		// The first public claim turns the conflicts of single namespaces into one of everyone,
		// and the end of the last public claim turns it back.
		if e.public != (host.public > 0) {
			for ns := range host.crowded {
				e.scopes[ns] = struct{}{}
			}
			for ns := range host.since {
				e.scopes[ns] = struct{}{}
			}
		}
		for scope := range e.scopes {
			if c, ok := host.recompute(key, scope, now, all); ok {
				out = append(out, c)
			}
		}
		if delete(h.contested, key); len(host.since) > 0 {
			h.contested[key] = host
		}
	}
	return joinScopes(out)
}

func (h *Hosts) add(c *claimant) {
	for key := range c.keys() {
		if h.multi[key] == nil {
			h.multi[key] = &host{}
		}
		h.multi[key].insert(c)
		h.scoped += c.scopes()
	}
}

// remove keeps hosts without claims: recompute needs them.
func (h *Hosts) remove(c *claimant) {
	for key := range c.keys() {
		if e := h.multi[key]; e != nil && e.drop(c) {
			h.scoped -= c.scopes()
		}
	}
}
