package downstream

import (
	"cmp"
	"slices"

	"meshrelay/downstream/subscription"
	"meshrelay/mirror"
)

// types are those of the well-known kinds in MCP-over-xDS, in sending order, and typeByKind has them by kind. The type URLs
// of all API versions of a kind are for one type.
var types, typeByKind = wellKnownTypes()

func wellKnownTypes() (all []subscription.Type, byKind map[mirror.Kind]subscription.Type) {
	byKind = map[mirror.Kind]subscription.Type{}
	for i, info := range mirror.Kinds() {
		t := otherType(info.Kind)
		// istiod does not acknowledge MeshConfig (PROTOCOL S6).
		t.Order, t.Fixed, t.NeverAcknowledged = i+1, true, info.Kind == mirror.MeshConfig
		all, byKind[info.Kind] = append(all, t), t
	}
	return all, byKind
}

func otherType(kind mirror.Kind) subscription.Type {
	return subscription.Type{Group: cmp.Or(kind.Group, "core"), Kind: kind.Kind}
}

// typeOf returns the type of a kind.
func typeOf(kind mirror.Kind) subscription.Type {
	if t, ok := typeByKind[kind]; ok {
		return t
	}
	return otherType(kind)
}

// lookup returns the type of a type URL. It returns false for a type URL of another form, and for an API version that a
// well-known kind does not have (PROTOCOL S3).
func lookup(typeURL string) (subscription.Type, bool) {
	kind, version, err := mirror.ParseTypeURL(typeURL)
	if err != nil {
		return subscription.Type{}, false
	}
	if info, ok := mirror.LookupKind(kind); ok && !slices.Contains(info.Versions, version) {
		return subscription.Type{}, false
	}
	return typeOf(kind), true
}

// item names an item: each resource is one.
type item struct {
	name string // full name
	key  mirror.Key
}

// items are items of one type.
type items struct{ all []item }

// itemsByType has items, by their type.
type itemsByType map[subscription.Type]*items

// add adds an item, by its full name, too.
func (m itemsByType) add(name string, key mirror.Key) {
	t := typeOf(key.Kind)
	list := m[t]
	if list == nil {
		list = &items{}
		m[t] = list
	}
	list.all = append(list.all, item{name, key})
}

// reader reads the resources that a view shows. Any goroutine may call its method and functions.
type reader struct {
	resources Resources
	cluster   string                      // of its clients, empty if unknown
	accepts   func(*mirror.Resource) bool // nil: the view shows everything
	saw       func(*mirror.Resource)      // called with each resource that get returns
}

// get returns a resource, nil when the view does not show it.
func (r *reader) get(key mirror.Key) (shown *mirror.Resource) {
	if r.accepts == nil {
		shown = r.resources.Get(key)
	} else {
		shown = r.resources.Select(key, r.cluster, r.accepts)
	}
	if shown != nil {
		r.saw(shown)
	}
	return shown
}
