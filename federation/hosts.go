package federation

import (
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"

	"meshrelay/internal/wire"
	"meshrelay/mirror"
)

const (
	// Everyone is the Visibility of a resource that all namespaces see.
	Everyone = "*"
	// MaxScopes bounds the namespaces that Visibility.String names.
	MaxScopes = 16
)

// HostKind is a kind whose resources claim hosts, with the numbers of the fields of its body. The number is 0
// for a field that the kind does not have.
type HostKind struct {
	Kind                      mirror.Kind
	hosts, exportTo, gateways protowire.Number
}

// entryEndpoints is the number of the field endpoints of a ServiceEntry.
const entryEndpoints = 6

// The host kinds.
var (
	EntryHosts   = &HostKind{Kind: ServiceEntry, hosts: 1, exportTo: 7}
	ServiceHosts = &HostKind{Kind: VirtualService, hosts: 1, exportTo: 6, gateways: 2}
)

// HasEndpoints reports whether the body of a ServiceEntry has endpoints. It decodes nothing.
func HasEndpoints(body []byte) bool { return wire.Last(body, entryEndpoints) != nil }

// HostKindOf returns the HostKind of a kind, nil for a kind that claims no hosts.
func HostKindOf(kind mirror.Kind) *HostKind {
	switch kind {
	case ServiceEntry:
		return EntryHosts
	case VirtualService:
		return ServiceHosts
	}
	return nil
}

// HostFields has the fields of a body that determine which hosts it claims, and where.
type HostFields struct{ Hosts, ExportTo, Gateways []string }

// Parse reads the fields without decoding the body. It stops at the first byte that is not protobuf: a
// mirror.Resource holds no such body.
func (k *HostKind) Parse(body []byte) (f HostFields) {
	c := wire.Fields(body)
	for c.Next() {
		if c.Type != protowire.BytesType {
			continue
		}
		switch c.Number {
		case k.hosts:
			f.Hosts = append(f.Hosts, string(c.Value()))
		case k.exportTo:
			f.ExportTo = append(f.ExportTo, string(c.Value()))
		case k.gateways:
			f.Gateways = append(f.Gateways, string(c.Value()))
		}
	}
	return f
}

// Visibility is the set of namespaces that see a resource. The zero Visibility is empty.
type Visibility struct {
	Public     bool
	Namespaces []string // sorted, each once; empty when public
}

// VisibilityOf returns the Visibility for the exportTo of a resource in a namespace. No exportTo and "*" mean
// everyone, "~" means nobody, and "." the namespace itself.
func VisibilityOf(exportTo []string, namespace string) Visibility {
	if len(exportTo) == 0 || slices.Contains(exportTo, Everyone) {
		return Visibility{Public: true}
	}
	if slices.Contains(exportTo, "~") {
		return Visibility{}
	}
	v := Visibility{Namespaces: make([]string, 0, len(exportTo))}
	for _, to := range exportTo {
		if to == "." {
			to = namespace
		}
		v.Namespaces = append(v.Namespaces, to)
	}
	slices.Sort(v.Namespaces)
	v.Namespaces = slices.Compact(v.Namespaces)
	return v
}

// Equal reports whether v and other have the same namespaces.
func (v Visibility) Equal(other Visibility) bool {
	return v.Public == other.Public && slices.Equal(v.Namespaces, other.Namespaces)
}

// String returns the namespaces for people, at most MaxScopes of them.
func (v Visibility) String() string {
	switch {
	case v.Public:
		return Everyone
	case len(v.Namespaces) == 0:
		return "nobody"
	case len(v.Namespaces) > MaxScopes:
		return strings.Join(v.Namespaces[:MaxScopes], ",") + fmt.Sprintf(" and %d more", len(v.Namespaces)-MaxScopes)
	}
	return strings.Join(v.Namespaces, ",")
}
