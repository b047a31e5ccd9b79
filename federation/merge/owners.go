package merge

import (
	"fmt"
	"slices"

	"meshrelay/federation"
	"meshrelay/internal/text"
	"meshrelay/mirror"
)

// hostOwners decides between upstreams whose resources, of different keys, claim one host for the same namespaces. Hosts
// are compared as texts: a wildcard is a host of its own. Copies of one key, and what is united, are no conflict.
//
// hostOwners is a mirror.Owners.
type hostOwners string

// OwnersByName returns the mirror.Owners for a value of hostConflicts. With "serve", all upstreams that claim a host are
// served, with "first" the first one, with "reject" none of them.
func OwnersByName(name string) (mirror.Owners, error) {
	switch name {
	case "", "serve", "first", "reject":
		return hostOwners(name), nil
	}
	return nil, fmt.Errorf("unknown hostConflicts %q: want serve, first or reject", text.Abbreviate(name))
}

// Owns implements mirror.Owners.
func (hostOwners) Owns(kind mirror.Kind) bool { return slices.Contains(federation.Owned, kind) }

// Claims implements mirror.Owners. A resource that no namespace sees claims nothing.
func (hostOwners) Claims(r *mirror.Resource, of func(mirror.Key) []string) mirror.Claims {
	v := federation.VisibilityOf(federation.ExportTo(r), r.Namespace())
	if !v.Public && len(v.Namespaces) == 0 {
		return mirror.Claims{}
	}
	return mirror.Claims{What: federation.ClaimsUnder(r, federation.DefaultDomain, nil, of), Scopes: v.Namespaces}
}

// Yielding implements mirror.Owners.
func (o hostOwners) Yielding() mirror.Yielding {
	switch o {
	case "first":
		return mirror.LaterYield
	case "reject":
		return mirror.AllYield
	}
	return mirror.NoneYields
}

// Yields implements mirror.Owners. A VirtualService, route or DestinationRule also yields to a ServiceEntry: it would change how
// the host of that is reached. A ServiceEntry yields to no rule about its host.
func (hostOwners) Yields(kind, to mirror.Kind) bool {
	return kind == to || to == federation.ServiceEntry
}

// Reason implements mirror.Owners.
func (o hostOwners) Reason(other *mirror.Resource, host string) string {
	return fmt.Sprintf("host %s is also claimed by %s from %s (hostConflicts: %s)", text.Abbreviate(host), other.Key(), other.Source(), string(o))
}
