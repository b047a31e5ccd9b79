package conflicts

import (
	"cmp"
	"slices"
	"time"

	"github.com/zeebo/xxh3"

	"meshrelay/federation"
	"meshrelay/mirror"
)

// claimant is one resource with its claims. It does not change once Hosts.Update has returned.
type claimant struct {
	kind            mirror.Kind
	namespace, name string
	source          string
	created         time.Time
	sum             uint64 // of the key
	visibility      federation.Visibility
	hosts           []string // sorted, each once; nil after the update
	resource        *mirror.Resource
	// merges: istiods merge it with others of its kind, so that it is in conflict with those of other upstreams only.
	merges  bool
	parents []mirror.Key // ServiceEntries whose hosts it claims
}

// nobody claims nothing.
var nobody = &claimant{}

// claimantOf returns the claimant of a resource. It returns nobody for nil and for a resource that claims
// nothing: a VirtualService without hosts, because it is a delegate, a resource that no namespace sees, and a sibling of a
// service, which is no rival of it. That of a route of ServiceEntries is kept until its next update.
func (h *Hosts) claimantOf(r *mirror.Resource) *claimant {
	if r == nil || r.HasAnnotation(mirror.SiblingAnnotation) {
		return nobody
	}
	key := r.Key()
	if c := h.routes[key]; c != nil {
		return c
	}
	c := &claimant{
		kind: key.Kind, namespace: key.Namespace, name: key.Name, source: r.Source(),
		resource: r, sum: xxh3.HashString(r.FullName()), visibility: federation.VisibilityOf(federation.ExportTo(r), key.Namespace),
	}
	c.hosts = federation.ClaimsUnder(r, federation.DefaultDomain, nil, func(parent mirror.Key) (hosts []string) {
		c.parents, h.routes[key] = append(c.parents, parent), c
		if entry := h.Served(parent); entry != nil {
			hosts = federation.Claims(entry, federation.DefaultDomain)
		}
		return hosts
	})
	if len(c.hosts) == 0 || !c.visibility.Public && len(c.visibility.Namespaces) == 0 {
		return nobody
	}
	c.merges = key.Kind != federation.ServiceEntry && (key.Kind != federation.VirtualService || !federation.OfMesh(r))
	if key.Kind == federation.VirtualService {
		c.created = r.Metadata().CreateTime
	}
	return c
}

// forgetHosts drops the hosts: conflicts keep the claimant, and need only its key.
func (c *claimant) forgetHosts() {
	if c != nobody && c.parents == nil {
		c.hosts = nil
	}
}

// on returns c if it claims a host, and nobody otherwise.
func (c *claimant) on(host string) *claimant {
	if _, claimed := slices.BinarySearch(c.hosts, host); claimed {
		return c
	}
	return nobody
}

// same reports whether two claimants look the same in a HostConflict.
func (c *claimant) same(other *claimant) bool {
	return c.source == other.source && c.created.Equal(other.created) && c.visibility.Equal(other.visibility)
}

// scopes returns the number of namespaces that see a claimant, minus one, and 0 for a public one.
func (c *claimant) scopes() int { return max(len(c.visibility.Namespaces)-1, 0) }

// seenAs returns the names of the scopes that hold a claimant's claims.
func (c *claimant) seenAs() []string {
	return append([]string{federation.Everyone}, c.visibility.Namespaces...)
}

func compareClaimants(a, b *claimant) int {
	return cmp.Or(cmp.Compare(a.namespace, b.namespace), cmp.Compare(a.name, b.name))
}
