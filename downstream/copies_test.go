package downstream

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"meshrelay/mirror"
)

// copies is a Resources of several copies a key. It is for one goroutine.
//
// It serves the first copy of a key, with two exceptions: of a name that ends with "reject" it
// serves nothing when copies differ, of a name that ends with "union" a resource with the hosts of
// all copies.
type copies struct {
	order  []string                                    // sources
	byKey  map[mirror.Key]map[string]*mirror.Resource  // by source
	served map[mirror.Kind]map[string]*mirror.Resource // to everybody
}

func newCopies(sources ...string) *copies {
	return &copies{
		order: sources, byKey: map[mirror.Key]map[string]*mirror.Resource{},
		served: map[mirror.Kind]map[string]*mirror.Resource{},
	}
}

// put sets a source's copy; remove takes it away.
func (c *copies) put(r *mirror.Resource) mirror.Key {
	key := r.Key()
	if c.byKey[key] == nil {
		c.byKey[key] = map[string]*mirror.Resource{}
	}
	c.byKey[key][r.Source()] = r
	c.serve(key)
	return key
}

func (c *copies) remove(key mirror.Key, source string) {
	delete(c.byKey[key], source)
	if len(c.byKey[key]) == 0 {
		delete(c.byKey, key)
	}
	c.serve(key)
}

func (c *copies) serve(key mirror.Key) {
	old := c.served[key.Kind][key.FullName()]
	cur := c.merge(key, func(*mirror.Resource) bool { return true })
	switch {
	case old.Equal(cur):
	case cur == nil:
		delete(c.served[key.Kind], key.FullName())
	default:
		if c.served[key.Kind] == nil {
			c.served[key.Kind] = map[string]*mirror.Resource{}
		}
		c.served[key.Kind][key.FullName()] = cur
	}
}

// merge is the plain definition of what those see who see what accept lets through.
func (c *copies) merge(key mirror.Key, accept func(*mirror.Resource) bool) *mirror.Resource {
	var all []*mirror.Resource
	for _, source := range c.order {
		if r := c.byKey[key][source]; r != nil && accept(r) {
			all = append(all, r)
		}
	}
	switch {
	case len(all) == 0:
		return nil
	case len(all) == 1:
		return all[0]
	case strings.HasSuffix(key.Name, "reject"):
		return nil
	case strings.HasSuffix(key.Name, "union"):
		var hosts []string
		for _, r := range all {
			body := &networking.ServiceEntry{}
			if err := r.Body().UnmarshalTo(body); err != nil {
				panic(err)
			}
			hosts = append(hosts, body.Hosts...)
		}
		return build(key.Kind, key.Namespace, key.Name, &networking.ServiceEntry{Hosts: hosts})
	}
	return all[0]
}

func (c *copies) Get(key mirror.Key) *mirror.Resource { return c.served[key.Kind][key.FullName()] }

func (c *copies) Select(key mirror.Key, cluster string, accept func(*mirror.Resource) bool) *mirror.Resource {
	if r := c.merge(key, accept); !r.Equal(c.Get(key)) {
		return r
	}
	return c.Get(key)
}

func (c *copies) List(kind mirror.Kind, _ string) []*mirror.Resource {
	return slices.SortedFunc(maps.Values(c.served[kind]), func(a, b *mirror.Resource) int {
		return cmp.Compare(a.FullName(), b.FullName())
	})
}

func (c *copies) Kinds() []mirror.Kind {
	return slices.SortedFunc(maps.Keys(c.served), mirror.CompareKinds)
}

func (c *copies) Keys(kind mirror.Kind) (out []mirror.Key) {
	for key := range c.byKey {
		if key.Kind == kind {
			out = append(out, key)
		}
	}
	slices.SortFunc(out, func(a, b mirror.Key) int { return cmp.Compare(a.FullName(), b.FullName()) })
	return out
}

func (c *copies) SourceKinds() []mirror.Kind {
	kinds := map[mirror.Kind]bool{}
	for key := range c.byKey {
		kinds[key.Kind] = true
	}
	return slices.SortedFunc(maps.Keys(kinds), mirror.CompareKinds)
}

// copyOf returns a resource as another source has it, of another cluster.
func copyOf(r *mirror.Resource, source, cluster string) *mirror.Resource {
	s := r.Spec()
	s.Source, s.Cluster = source, cluster
	return must(mirror.New(s))
}
