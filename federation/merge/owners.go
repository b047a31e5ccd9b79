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
type hostOwners struct{ reject bool }

// OwnersByName returns the mirror.Owners for a value of hostConflicts: nil for "serve". With "first", the first upstream
// that claims a host is served, with "reject" none of them is.
func OwnersByName(name string) (mirror.Owners, error) {
	switch name {
	case "", "serve":
		return nil, nil //nolint:nilnil // there are none
	case "first", "reject":
		return hostOwners{reject: name == "reject"}, nil
	}
	return nil, fmt.Errorf("unknown hostConflicts %q: want serve, first or reject", text.Abbreviate(name))
}

// Claims implements mirror.Owners. A resource that no namespace sees claims nothing.
func (hostOwners) Claims(r *mirror.Resource, of func(mirror.Key) []string) mirror.Claims {
	if !slices.Contains(federation.Owned, r.Kind()) {
		return mirror.Claims{}
	}
	v := federation.VisibilityOf(federation.ExportTo(r), r.Namespace())
	if !v.Public && len(v.Namespaces) == 0 {
		return mirror.Claims{}
	}
	return mirror.Claims{What: federation.ClaimsUnder(r, federation.DefaultDomain, nil, of), Scopes: v.Namespaces}
}

// OnlyEarlier implements mirror.Owners.
func (o hostOwners) OnlyEarlier() bool { return !o.reject }

// Yields implements mirror.Owners. A VirtualService, route or DestinationRule also yields to a ServiceEntry: it would change how
// the host of that is reached. A ServiceEntry yields to no rule about its host.
func (hostOwners) Yields(kind, to mirror.Kind) bool {
	return kind == to || to == federation.ServiceEntry
}

// Reason implements mirror.Owners.
func (o hostOwners) Reason(_, other *mirror.Resource, host string) string {
	setting := "first"
	if o.reject {
		setting = "reject"
	}
	return fmt.Sprintf("host %s is also claimed by %s from %s (hostConflicts: %s)", text.Abbreviate(host), other.Key(), other.Source(), setting)
}
