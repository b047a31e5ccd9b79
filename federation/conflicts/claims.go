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
}

// nobody claims nothing.
var nobody = &claimant{}

// claimantOf returns the claimant of a resource. It returns nobody for nil and for a resource that claims
// nothing: a VirtualService without hosts, because it is a delegate, or for other gateways than "mesh", a
// resource that no namespace sees, and a sibling of a service, which is no rival of it.
func claimantOf(r *mirror.Resource) *claimant {
	if r == nil || r.HasAnnotation(mirror.SiblingAnnotation) || r.Kind() == federation.VirtualService && !federation.OfMesh(r) {
		return nobody
	}
	key := r.Key()
	c := &claimant{
		kind: key.Kind, namespace: key.Namespace, name: key.Name, source: r.Source(), hosts: federation.Claims(r, federation.DefaultDomain),
		resource: r, sum: xxh3.HashString(r.FullName()), visibility: federation.VisibilityOf(federation.ExportTo(r), key.Namespace),
	}
	if len(c.hosts) == 0 || !c.visibility.Public && len(c.visibility.Namespaces) == 0 {
		return nobody
	}
	if key.Kind == federation.VirtualService {
		c.created = r.Metadata().CreateTime
	}
	return c
}

// forgetHosts drops the hosts: conflicts keep the claimant, and need only its key.
func (c *claimant) forgetHosts() {
	if c != nobody {
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
