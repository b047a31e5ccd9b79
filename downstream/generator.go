package downstream

import (
	"meshrelay/downstream/snapshot"
	"meshrelay/downstream/subscription"
	"meshrelay/mirror"
)

// Generator makes the items of some types. It is safe for use by several goroutines.
type Generator interface {
	// Type returns the type that a type URL stands for; false: the generator does not make it.
	Type(typeURL string) (t subscription.Type, ok bool)
	// Types returns the types that have metrics of their own.
	Types() []subscription.Type
	// Affected calls add with each item that the resource of a key is, or was, part of.
	Affected(key mirror.Key, add func(t subscription.Type, ref Ref))
	// Item returns an item as it is made of what from shows, nil when there is none.
	Item(from Reader, t subscription.Type, ref Ref) snapshot.Item
}

// Ref names an item of a type.
type Ref struct {
	Name string
	// Key is of the resource that the item is made of, for the generator alone.
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

// reader is a Reader for one view. It is safe for use by several goroutines, and so are its functions.
type reader struct {
	resources Resources
	accepts   func(*mirror.Resource) bool // nil: the view shows everything
	saw       func(*mirror.Resource)      // is called with each resource that it returns
}

func (r *reader) Keys(kind mirror.Kind) []mirror.Key { return r.resources.Keys(kind) }

func (r *reader) Get(key mirror.Key) (shown *mirror.Resource) {
	if r.accepts == nil {
		shown = r.resources.Get(key)
	} else {
		shown = r.resources.Select(key, r.accepts)
	}
	if shown != nil {
		r.saw(shown)
	}
	return shown
}

// generators are those of a Server. The first that makes a type has it.
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

// affected adds the items that a key is part of to byType.
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
