package conflicts

import (
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/zeebo/xxh3"

	"meshrelay/federation"
	"meshrelay/mirror"
)

// claimant is one resource with its claims. It is immutable. A nil claimant claims nothing.
type claimant struct {
	kind            *federation.HostKind
	namespace, name string
	source          string
	created         time.Time
	sum             uint64 // of the key
	visibility      federation.Visibility
	hosts           []string // sorted, each once
	resource        *mirror.Resource
}

// claimantOf returns nil for a resource that claims nothing: a VirtualService without hosts,
// because it is a delegate, or for other gateways than "mesh", a resource that no namespace
// sees, and nil.
func claimantOf(kind *federation.HostKind, r *mirror.Resource) *claimant {
	if r == nil {
		return nil
	}
	f := kind.Parse(r.BodyValue())
	if len(f.Gateways) > 0 && !slices.Contains(f.Gateways, meshGateway) {
		return nil
	}
	key := r.Key()
	c := &claimant{
		kind: kind, namespace: key.Namespace, name: key.Name, source: r.Source(),
		resource: r, sum: xxh3.HashString(r.FullName()), visibility: federation.VisibilityOf(f.ExportTo, key.Namespace),
	}
	if len(f.Hosts) == 0 || !c.visibility.Public && len(c.visibility.Namespaces) == 0 {
		return nil
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

// hostName completes a short host of a VirtualService. istiod uses the hosts of a ServiceEntry
// as they stand.
func (c *claimant) hostName(h string) string {
	if c.kind != federation.ServiceHosts || h == "" || strings.HasPrefix(h, "*") || strings.Contains(h, ".") {
		return h
	}
	return h + "." + c.namespace + clusterDomain
}

// keys returns the hosts that a claimant claims.
func (c *claimant) keys() iter.Seq[hostKey] {
	return func(yield func(hostKey) bool) {
		if c == nil {
			return
		}
		for _, h := range c.hosts {
			if !yield(hostKey{c.kind, h}) {
				return
			}
		}
	}
}

// equal reports whether two claimants claim the same hosts and look the same.
func (c *claimant) equal(other *claimant) bool {
	if c == nil || other == nil {
		return c == other
	}
	return c.same(other) && slices.Equal(c.hosts, other.hosts)
}

// same reports whether two claimants look the same in a HostConflict.
func (c *claimant) same(other *claimant) bool {
	return c != nil && other != nil && c.source == other.source && c.created.Equal(other.created) &&
		c.visibility.Equal(other.visibility)
}

// claims is the cost of a claimant: its hosts, times the namespaces that see it.
func (c *claimant) claims() int {
	if c == nil {
		return 0
	}
	return len(c.hosts) * (1 + c.scopes())
}

// scopes is how many namespaces beyond the first see a claimant.
func (c *claimant) scopes() int { return max(len(c.visibility.Namespaces)-1, 0) }

// extra is the part of maxScoped that a claimant takes.
func (c *claimant) extra() int {
	if c == nil {
		return 0
	}
	return len(c.hosts) * c.scopes()
}
