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

// claimant is one resource with its claims. Hosts fills the same few again for each update, since most
// resources claim hosts that nobody else does: what stays is what kept returns.
type claimant struct {
	kind            *federation.HostKind
	namespace, name string
	source          string
	created         time.Time
	sum             uint64 // of the key
	visibility      federation.Visibility
	hosts           []string // sorted, each once
	resource        *mirror.Resource

	used   bool                  // fields may hold something
	fields federation.HostFields // of the resource
	copied *claimant             // what kept has returned
}

// nobody claims nothing.
var nobody = &claimant{}

// of makes c the claimant of a resource, and returns c, or nobody for a resource that claims nothing:
// a VirtualService without hosts, because it is a delegate, or for other gateways than "mesh", a
// resource that no namespace sees, and nil.
func (c *claimant) of(kind *federation.HostKind, r *mirror.Resource) *claimant {
	if r == nil {
		return nobody
	}
	f := kind.Parse(r.BodyValue(), c.fields)
	c.used, c.fields = true, f
	if len(f.Gateways) > 0 && !slices.Contains(f.Gateways, meshGateway) {
		return nobody
	}
	key := r.Key()
	*c = claimant{
		used: true, fields: f,
		kind: kind, namespace: key.Namespace, name: key.Name, source: r.Source(),
		resource: r, sum: xxh3.HashString(r.FullName()), visibility: federation.VisibilityOf(f.ExportTo, key.Namespace),
	}
	if len(f.Hosts) == 0 || !c.visibility.Public && len(c.visibility.Namespaces) == 0 {
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

// kept returns a copy of c that stays, without its hosts.
func (c *claimant) kept() *claimant {
	if c.copied == nil {
		k := *c
		k.hosts, k.fields = nil, federation.HostFields{}
		c.copied = &k
	}
	return c.copied
}

// maxReused bounds the texts of a resource for which a claimant keeps room.
const maxReused = 64

// forget makes c hold on to nothing.
func (c *claimant) forget() {
	if !c.used {
		return
	}
	f := c.fields
	*c = claimant{fields: federation.HostFields{Hosts: emptied(f.Hosts), ExportTo: emptied(f.ExportTo), Gateways: emptied(f.Gateways)}}
}

// emptied returns texts without its elements, nil when it has room for many.
func emptied(texts []string) []string {
	if cap(texts) > maxReused {
		return nil
	}
	clear(texts[:cap(texts)])
	return texts[:0]
}

// hostName completes a short host of a VirtualService. istiod uses the hosts of a ServiceEntry
// as they stand.
func (c *claimant) hostName(h string) string {
	if c.kind != federation.ServiceHosts || h == "" || strings.HasPrefix(h, "*") || strings.Contains(h, ".") {
		return h
	}
	return h + "." + c.namespace + clusterDomain
}

// on returns c if it claims a host, or else nobody.
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

// scopes is how many namespaces beyond the first see a claimant.
func (c *claimant) scopes() int { return max(len(c.visibility.Namespaces)-1, 0) }

// seenAs returns the names of the scopes that hold a claimant's claims.
func (c *claimant) seenAs() []string {
	return append([]string{federation.Everyone}, c.visibility.Namespaces...)
}

func compareClaimants(a, b *claimant) int {
	return cmp.Or(cmp.Compare(a.namespace, b.namespace), cmp.Compare(a.name, b.name))
}
