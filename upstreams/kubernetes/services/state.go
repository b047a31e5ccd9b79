package services

import (
	"maps"
	"reflect"
	"slices"
	"strconv"

	"github.com/zeebo/xxh3"
)

// State has the inputs of one cluster. A change costs about as much as the endpoints that it changes; that of a pod
// costs a look at each address in the slices of its namespace, and that of a Node, which is rare, at all of them. Only
// one method may run at a time.
type State struct {
	options Options
	synced  [inputs]bool
	spaces  map[string]*space
	// wanted are the clusters that somebody reads. selections are those of selectors, by namespace and name.
	wanted     map[string]struct{}
	selections map[string]map[string]selection
	told       map[Name]xxh3.Uint128 // hashes of the outputs that Flush has returned

	changed      map[Name]struct{}   // Services
	clusters     map[string]struct{} // those whose endpoints may have changed
	changedNodes map[string]struct{}
}

// space has the objects of a namespace. Nobody changes an object.
type space struct {
	objects     [inputs]map[string]any // by name
	slices      map[string][]*slice    // by Service
	changedPods map[string]struct{}
}

// New returns a State without inputs.
func New(o Options) *State {
	return &State{
		options: o.withDefaults(), spaces: map[string]*space{}, selections: map[string]map[string]selection{}, told: map[Name]xxh3.Uint128{},
		changed: map[Name]struct{}{}, clusters: map[string]struct{}{}, changedNodes: map[string]struct{}{},
	}
}

// SetOptions changes the options.
func (s *State) SetOptions(o Options) {
	if o.Equal(s.options) {
		return
	}
	s.touchAll() // the clusters of the old domain
	s.options = o.withDefaults()
	s.touchAll()
}

// Synced notes that the State has all objects of an input, or that there are none because they can not be read.
func (s *State) Synced(in Input) { s.synced[in] = true }

func (s *State) ready() bool { return !slices.Contains(s.synced[:], false) }

// Set adds an object, or changes it.
func (s *State) Set(of Decoded) {
	if d, is := of.(*decoded); is {
		s.set(d.in, d.name, d.content)
	}
}

// Remove removes an object, if it exists.
func (s *State) Remove(in Input, n Name) { s.set(in, n, nil) }

// Retain removes the objects of an input for which keep returns false.
func (s *State) Retain(in Input, keep func(Name) bool) {
	for namespace, sp := range s.spaces {
		for _, name := range slices.Collect(maps.Keys(sp.objects[in])) {
			if n := (Name{namespace, name}); !keep(n) {
				s.set(in, n, nil)
			}
		}
	}
}

func (s *State) space(namespace string) *space {
	sp := s.spaces[namespace]
	if sp == nil {
		sp = &space{slices: map[string][]*slice{}, changedPods: map[string]struct{}{}}
		for in := range sp.objects {
			sp.objects[in] = map[string]any{}
		}
		s.spaces[namespace] = sp
	}
	return sp
}

// get returns an object, nil if there is none.
func get[T any](s *State, in Input, n Name) *T {
	if sp := s.spaces[n.Namespace]; sp != nil {
		v, _ := sp.objects[in][n.Name].(*T)
		return v
	}
	return nil
}

// set changes an object, and removes it if now is nil.
func (s *State) set(in Input, n Name, now any) {
	sp := s.space(n.Namespace)
	old := sp.objects[in][n.Name]
	if reflect.DeepEqual(old, now) {
		return
	}
	s.touchFor(in, n, old)
	if l, is := old.(*slice); is {
		if sp.slices[l.service] = slices.DeleteFunc(sp.slices[l.service], func(o *slice) bool { return o == l }); len(sp.slices[l.service]) == 0 {
			delete(sp.slices, l.service)
		}
	}
	if l, is := now.(*slice); is && l.service != "" {
		sp.slices[l.service] = append(sp.slices[l.service], l)
	}
	if sp.objects[in][n.Name] = now; now == nil {
		delete(sp.objects[in], n.Name)
	}
	s.touchFor(in, n, now)
}

// touchFor notes what an object changes, with its old or its new content.
func (s *State) touchFor(in Input, n Name, content any) {
	sp := s.spaces[n.Namespace]
	switch c := content.(type) {
	case *service:
		s.touch(n, c)
		s.changed[n] = struct{}{}
	case *slice:
		of := Name{n.Namespace, c.service}
		s.touch(of, get[service](s, Services, of))
	case *node:
		s.changedNodes[n.Name] = struct{}{}
	case *workload:
		for cluster, sel := range s.selections[n.Namespace] {
			if c.has(sel.labels) {
				s.clusters[cluster] = struct{}{}
			}
		}
		if in == Pods {
			sp.changedPods[n.Name] = struct{}{}
			return
		}
		for name, v := range sp.objects[Services] {
			if v := v.(*service); v.selects(c) {
				s.touch(Name{n.Namespace, name}, v)
			}
		}
	}
}

// touch notes that the endpoints of a Service, which may be nil, may have changed.
func (s *State) touch(n Name, v *service) {
	if v == nil {
		return
	}
	for _, p := range v.entry.Ports {
		if p.Protocol != udp {
			s.clusters["outbound|"+strconv.FormatUint(uint64(p.Number), 10)+"||"+s.options.host(n)] = struct{}{}
		}
	}
}

// touchAll notes that everything may have changed.
func (s *State) touchAll() {
	for namespace, sp := range s.spaces {
		for name, v := range sp.objects[Services] {
			s.touchFor(Services, Name{namespace, name}, v)
		}
	}
	for _, of := range s.selections {
		for cluster := range of {
			s.clusters[cluster] = struct{}{}
		}
	}
}

// flushInputs notes what has endpoints that are changed pods, or are on changed Nodes. It forgets empty namespaces.
func (s *State) flushInputs() {
	has := func(set map[string]struct{}, name string) bool { _, is := set[name]; return is }
	for namespace, sp := range s.spaces {
		if len(sp.changedPods)+len(s.changedNodes) == 0 {
			continue
		}
		changed := func(m member) bool {
			return has(sp.changedPods, m.pod) || len(s.changedNodes) > 0 && has(s.changedNodes, s.nodeOf(namespace, m).String())
		}
		for name, list := range sp.slices {
			if of := (Name{namespace, name}); slices.ContainsFunc(list, func(l *slice) bool { return slices.ContainsFunc(l.members, changed) }) {
				s.touch(of, get[service](s, Services, of))
			}
		}
		for name, p := range sp.objects[Pods] {
			if len(s.changedNodes) > 0 && has(s.changedNodes, p.(*workload).node.String()) {
				s.touchFor(Pods, Name{namespace, name}, p)
			}
		}
		clear(sp.changedPods)
		if !slices.ContainsFunc(sp.objects[:], func(m map[string]any) bool { return len(m) > 0 }) {
			delete(s.spaces, namespace)
		}
	}
	clear(s.changedNodes)
}
