package federation

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/zeebo/xxh3"

	"meshrelay/mirror"
)

const (
	// maxShown bounds the claims that are shown of one conflict.
	maxShown = 64
	// maxScopes bounds the namespaces that are shown of one conflict.
	maxScopes = 16
	// everyone is the visibility of what all namespaces see.
	everyone = "*"
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
	Host string      `json:"host"`
	Kind mirror.Kind `json:"-"`
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
// Its methods may be called from any goroutine. An update costs time in proportion to the
// hosts of that resource, times the namespaces to which it is exported.
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
}

type hostKey struct {
	kind *hostKind
	host string
}

func (k hostKey) hash() uint64 {
	return xxh3.HashStringSeed(k.host, uint64(k.kind.hosts)<<8|uint64(k.kind.exportTo))
}

// NewHosts returns a Hosts that nobody claims anything of. It asks now for the time.
func NewHosts(now func() time.Time) *Hosts {
	return &Hosts{now: now, lone: map[uint64]*mirror.Resource{}, hosts: map[hostKey]*host{}, contested: map[hostKey]*host{}}
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
	kind := hostKindOf(r.Kind())
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
	t := touched{}
	h.unfold(was)
	h.unfold(next)
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

// unfold makes what is noted of the hosts of a claimant whole.
func (h *Hosts) unfold(c *claimant) {
	if c == nil {
		return
	}
	for _, name := range c.hosts {
		key := hostKey{c.kind, name}
		r := h.lone[key.hash()]
		if r == nil || h.hosts[key] != nil {
			continue
		}
		if owner := claimantOf(c.kind, r); owner != nil && r.Kind() == c.kind.kind && slices.Contains(owner.hosts, name) {
			h.hosts[key] = &host{}
			h.hosts[key].insert(owner)
			delete(h.lone, key.hash())
		}
	}
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
		case len(e.all.sorted) == 0:
			delete(h.hosts, key)
		case len(e.all.sorted) == 1 && h.lone[hash] == nil:
			h.lone[hash] = e.all.sorted[0].resource
			delete(h.hosts, key)
		}
	}
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

// claimant is what one resource claims. It is immutable.
type claimant struct {
	kind            *hostKind
	namespace, name string
	source          string
	created         time.Time
	sum             uint64 // of the key
	visibility      visibility
	hosts           []string // sorted, each once
	resource        *mirror.Resource
}

// equal reports whether two claimants are the same in all that is shown of them.
func (c *claimant) equal(other *claimant) bool {
	if c == nil || other == nil {
		return c == other
	}
	return c.same(other) && slices.Equal(c.hosts, other.hosts)
}

// same reports whether two claimants look the same within a conflict that both are in.
func (c *claimant) same(other *claimant) bool {
	return c != nil && other != nil && c.source == other.source && c.created.Equal(other.created) &&
		c.visibility.equal(other.visibility)
}

// host is who claims one host.
type host struct {
	all    claimSet
	public int // how many of all are visible to everyone
	// scoped are those that are not, by the namespaces that see them.
	scoped map[string]claimSet
	// crowded are those of these namespaces that see several.
	crowded map[string]struct{}
	// since is when the present claims of a scope, "*" or a namespace, came to be in
	// conflict. There is no entry for scopes without a conflict.
	since map[string]since
}

type since struct {
	time time.Time
	sum  uint64
}

// in returns the claims in a scope that are in conflict there. What everyone sees is in
// conflict with all others, which leaves one conflict of all.
func (h *host) in(scope string) (set claimSet, conflict bool) {
	if scope == everyone {
		return h.all, h.public > 0 && len(h.all.sorted) > 1
	}
	set = h.scoped[scope]
	return set, h.public == 0 && len(set.sorted) > 1
}

// conflict describes a scope that is in conflict, or was until now.
func (h *host) conflict(key hostKey, scope string, s since) HostConflict {
	out := HostConflict{Host: key.host, Kind: key.kind.kind, Visibility: scope, Since: s.time, sum: s.sum}
	set, conflict := h.in(scope)
	claims := set.sorted
	out.Ended = !conflict
	shown := claims[:min(len(claims), maxShown)]
	out.More = len(claims) - len(shown)
	out.Claims = make([]Claim, len(shown))
	for i, c := range shown {
		out.Claims[i] = Claim{Namespace: c.namespace, Name: c.name, Source: c.source, Visibility: c.visibility.String()}
	}
	// Not every namespace sees all claims when some are not public, and istiod puts those
	// first where they are seen. With very many, finding the winner would cost too much.
	if key.kind == serviceHosts && !out.Ended && scope == everyone && h.public == len(claims) && len(claims) <= maxShown {
		w := slices.MinFunc(claims, func(a, b *claimant) int {
			return cmp.Or(a.created.Compare(b.created), cmp.Compare(a.name+"."+a.namespace, b.name+"."+b.namespace))
		})
		out.Winner = w.namespace + "/" + w.name
	}
	return out
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
			e = &touchedHost{scopes: map[string]struct{}{everyone: {}}}
			if host := h.hosts[key]; host != nil {
				e.public = host.public > 0
			}
			t[key] = e
		}
		for _, ns := range c.visibility.namespaces {
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
		// everyone, which falls apart into them with the end of the last public one.
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

// settle notes whether a scope is in conflict, and describes the conflict if it changed.
func (h *host) settle(key hostKey, scope string, now time.Time, about bool) (c HostConflict, changed bool) {
	was, had := h.since[scope]
	set, conflict := h.in(scope)
	if !conflict {
		if !had {
			return c, false
		}
		delete(h.since, scope)
		return h.conflict(key, scope, was), true
	}
	s := since{now, set.sum}
	if had && was.sum == s.sum {
		if s.time = was.time; !about {
			return c, false
		}
	}
	if h.since == nil {
		h.since = map[string]since{}
	}
	h.since[scope] = s
	return h.conflict(key, scope, s), true
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
	}
}

func (h *host) insert(c *claimant) {
	h.all.insert(c)
	if c.visibility.public {
		h.public++
	}
	for _, ns := range c.visibility.namespaces {
		set := h.scoped[ns]
		set.insert(c)
		h.keep(ns, set)
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
		if c.visibility.public {
			e.public--
		}
		for _, ns := range c.visibility.namespaces {
			set := e.scoped[ns]
			set.drop(c)
			e.keep(ns, set)
		}
	}
}

// keep notes the claims that a namespace sees.
func (h *host) keep(ns string, set claimSet) {
	if h.scoped == nil {
		h.scoped = map[string]claimSet{}
	}
	switch len(set.sorted) {
	case 0:
		delete(h.scoped, ns)
		return
	case 1:
		delete(h.crowded, ns)
	case 2:
		if h.crowded == nil {
			h.crowded = map[string]struct{}{}
		}
		h.crowded[ns] = struct{}{}
	}
	h.scoped[ns] = set
}

// foldScopes sorts conflicts, and makes one of those that differ in the namespace only.
func foldScopes(conflicts []HostConflict) []HostConflict {
	slices.SortFunc(conflicts, func(a, b HostConflict) int {
		return cmp.Or(mirror.CompareKinds(a.Kind, b.Kind), cmp.Compare(a.Host, b.Host), cmp.Compare(a.Visibility, b.Visibility))
	})
	type same struct {
		kind  mirror.Kind
		host  string
		sum   uint64
		ended bool
	}
	var out []HostConflict
	at := make(map[same]int, len(conflicts))
	scopes := make([][]string, 0, len(conflicts))
	for _, c := range conflicts {
		k := same{c.Kind, c.Host, c.sum, c.Ended}
		i, ok := at[k]
		if !ok {
			at[k] = len(out)
			out, scopes = append(out, c), append(scopes, []string{c.Visibility})
			continue
		}
		scopes[i] = append(scopes[i], c.Visibility)
		if c.Since.Before(out[i].Since) {
			out[i].Since = c.Since
		}
	}
	for i := range out {
		out[i].Visibility = visibility{namespaces: scopes[i]}.String()
	}
	return out
}
