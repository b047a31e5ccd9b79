package downstream

import (
	"slices"

	"meshrelay/downstream/snapshot"
	"meshrelay/downstream/subscription"
	"meshrelay/mirror"
)

// mcpGenerator makes the types of MCP-over-xDS. Each resource is an item. The type URLs of all API versions
// of a kind are for one type.
type mcpGenerator struct {
	known map[mirror.Kind]subscription.Type
	types []subscription.Type // in sending order
}

func newMCPGenerator() *mcpGenerator {
	g := &mcpGenerator{known: map[mirror.Kind]subscription.Type{}}
	for i, info := range mirror.Kinds() {
		t := g.typeOf(info.Kind)
		// istiod does not acknowledge MeshConfig (PROTOCOL S6).
		t.Order, t.Fixed, t.NeverAcknowledged = i+1, true, info.Kind == mirror.MeshConfig
		g.known[info.Kind] = t
		g.types = append(g.types, t)
	}
	return g
}

func (g *mcpGenerator) typeOf(kind mirror.Kind) subscription.Type {
	if t, ok := g.known[kind]; ok {
		return t
	}
	group := kind.Group
	if group == "" {
		group = "core"
	}
	return subscription.Type{Group: group, Kind: kind.Kind}
}

// Type returns the type of a kind. It returns false for a type URL of another form, and for an API version
// that a well-known kind does not have (PROTOCOL S3).
func (g *mcpGenerator) Type(typeURL string) (subscription.Type, bool) {
	kind, version, err := mirror.ParseTypeURL(typeURL)
	if err != nil {
		return subscription.Type{}, false
	}
	if info, ok := mirror.LookupKind(kind); ok && !slices.Contains(info.Versions, version) {
		return subscription.Type{}, false
	}
	return g.typeOf(kind), true
}

func (g *mcpGenerator) Types() []subscription.Type { return g.types }

func (g *mcpGenerator) Affected(key mirror.Key, add func(subscription.Type, Ref)) {
	add(g.typeOf(key.Kind), Ref{Name: key.FullName(), Key: key})
}

func (g *mcpGenerator) Item(from Reader, _ subscription.Type, ref Ref) snapshot.Item {
	if r := from.Get(ref.Key); r != nil {
		return r
	}
	return nil // not an Item that holds a nil *mirror.Resource
}
