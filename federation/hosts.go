package federation

import (
	"fmt"
	"slices"
	"strings"

	"meshrelay/internal/wire"
)

const (
	// Everyone is the Visibility of a resource that all namespaces see.
	Everyone = "*"
	// MaxScopes bounds the namespaces that Visibility.String names.
	MaxScopes = 16
)

// entryEndpoints is the number of the field endpoints of a ServiceEntry.
const entryEndpoints = 6

// HasEndpoints reports whether the body of a ServiceEntry has endpoints. It decodes nothing.
func HasEndpoints(body []byte) bool { return wire.Last(body, entryEndpoints) != nil }

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
