package conflicts

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/zeebo/xxh3"

	"meshrelay/federation"
	"meshrelay/mirror"
)

// claimant is one resource with its claims. It does not change once Hosts.Update has returned.
type claimant struct {
	kind            *federation.HostKind
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
// nothing: a VirtualService without hosts, because it is a delegate, or for other gateways than "mesh", and a
// resource that no namespace sees.
func claimantOf(kind *federation.HostKind, r *mirror.Resource) *claimant {
	if r == nil {
		return nobody
	}
	f := kind.Parse(r.BodyValue())
	if len(f.Hosts) == 0 || len(f.Gateways) > 0 && !slices.Contains(f.Gateways, federation.MeshGateway) {
		return nobody
	}
	key := r.Key()
	c := &claimant{
		kind: kind, namespace: key.Namespace, name: key.Name, source: r.Source(),
		resource: r, sum: xxh3.HashString(r.FullName()), visibility: federation.VisibilityOf(f.ExportTo, key.Namespace),
	}
	if !c.visibility.Public && len(c.visibility.Namespaces) == 0 {
		return nobody
	}
	for i, h := range f.Hosts {
		f.Hosts[i] = c.hostName(strings.ToLower(h))
	}
	slices.Sort(f.Hosts)
	c.hosts = slices.Compact(f.Hosts)
	if kind == federation.ServiceHosts {
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

// hostName completes a short host of a VirtualService. istiod does not complete the hosts of a ServiceEntry.
func (c *claimant) hostName(h string) string {
	if c.kind != federation.ServiceHosts || h == "" || strings.HasPrefix(h, "*") || strings.Contains(h, ".") {
		return h
	}
	return h + "." + c.namespace + clusterDomain
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
