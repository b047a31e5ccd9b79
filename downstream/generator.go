package downstream

import (
	"meshrelay/downstream/snapshot"
	"meshrelay/downstream/subscription"
	"meshrelay/mirror"
)

// Generator makes the items of some types. Any goroutine may call its methods.
type Generator interface {
	// Type returns the type for a type URL. ok is false if the generator does not make it.
	Type(typeURL string) (t subscription.Type, ok bool)
	// Types returns the types that have metrics of their own.
	Types() []subscription.Type
	// Affected calls add for each item that contains, or contained, the resource of a key.
	Affected(key mirror.Key, add func(t subscription.Type, ref Ref))
	// Item returns an item made of the resources of from, nil when there is none.
	Item(from Reader, t subscription.Type, ref Ref) snapshot.Item
}

// Ref names an item of a type.
type Ref struct {
	Name string
	// Key names the resource for the item. Only the generator uses it.
	Key mirror.Key

	gone bool // no key affects it any more
}

// Reader reads the resources that a view shows.
type Reader interface {
	// Get returns a resource, nil when the view does not show it.
	Get(key mirror.Key) *mirror.Resource
	// Keys returns all keys of a kind that any upstream has, sorted by full name.
	Keys(kind mirror.Kind) []mirror.Key
}

// reader is a Reader for one view. Any goroutine may call its methods and functions.
type reader struct {
	resources Resources
	cluster   string                      // of its clients, empty if unknown
	accepts   func(*mirror.Resource) bool // nil: the view shows everything
	saw       func(*mirror.Resource)      // called with each resource that Get returns
}

func (r *reader) Keys(kind mirror.Kind) []mirror.Key { return r.resources.Keys(kind) }

func (r *reader) Get(key mirror.Key) (shown *mirror.Resource) {
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

// generators are the generators of a Server. The first one that knows a type makes it.
type generators []Generator

func (gs generators) lookup(typeURL string) (subscription.Type, bool) {
	for _, g := range gs {
		if t, ok := g.Type(typeURL); ok {
			return t, true
		}
	}
	return subscription.Type{}, false
}

// items are items of one type.
type items struct {
	of        subscription.Type
	generator Generator
	refs      []Ref
}

// affected adds to byType the items that contain the resource of a key.
func (gs generators) affected(key mirror.Key, byType map[subscription.Type]*items) {
	for _, g := range gs {
		g.Affected(key, func(t subscription.Type, ref Ref) {
			list := byType[t]
			if list == nil {
				list = &items{of: t, generator: g}
				byType[t] = list
			}
			list.refs = append(list.refs, ref)
		})
	}
}
