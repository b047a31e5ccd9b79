package services

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/zeebo/xxh3"
	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"
	"k8s.io/apimachinery/pkg/labels"

	"meshrelay/federation"
	"meshrelay/mirror"
	"meshrelay/upstreams/kubernetes/object"
)

// Options are the settings on which services depend. Nobody may change Local afterwards.
type Options struct {
	Domain string // of the cluster, "cluster.local" by default
	// SystemNetwork is the label topology.istio.io/network of the system namespace. It is the network of endpoints that
	// name none. If it is empty, Network is.
	SystemNetwork, Network string
	HBONE                  bool            // endpoints in an ambient mesh tell that they take it
	Selector               labels.Selector // of the labels of Services; nil selects all
	Exported               bool            // only Services with a ServiceExport
	Discovery              string          // the host of the istiod, "istiod.istio-system.svc" by default; Domain may follow
	Local                  []string        // the hosts that the MeshConfig makes clusterLocal; they may begin with "*"
}

func (o Options) withDefaults() Options {
	o.Domain, o.Discovery = cmp.Or(o.Domain, "cluster.local"), cmp.Or(o.Discovery, "istiod.istio-system.svc")
	if o.Selector == nil {
		o.Selector = labels.Everything()
	}
	return o
}

func (o *Options) host(n Name) string { return n.Name + "." + n.Namespace + ".svc." + o.Domain }

// local returns why other clusters must not reach a Service, empty if they may (istio pilot/pkg/model/cluster_local.go).
func (o *Options) local(n Name, v *service) string {
	host := o.host(n)
	matches := func(p string) bool { return p == host || strings.HasPrefix(p, "*") && strings.HasSuffix(host, p[1:]) }
	switch {
	case n == Name{"default", "kubernetes"}:
		return "each cluster has its own API server"
	case n.Namespace == "kube-system":
		return "services of kube-system are for their own cluster"
	case host == o.Discovery || host == o.Discovery+"."+o.Domain:
		return "it is the istiod of its cluster"
	case v.local:
		return "its internalTrafficPolicy is Local"
	case slices.ContainsFunc(o.Local, matches):
		return "serviceSettings of the MeshConfig make its host clusterLocal"
	}
	return ""
}

// State has the inputs of one cluster. A change costs about as much as the endpoints that it changes. A changed pod also
// costs a look at each address in the slices of its namespace, and a Node, which is rare, at all addresses. Only one
// method may run at a time.
type State struct {
	options Options
	synced  [inputs]bool
	absent  [inputs]bool // of the synced ones, those without objects
	spaces  map[string]*space
	reads   selections
	quota   quota
	told    map[Name]xxh3.Uint128 // hashes of the outputs that Flush has returned

	changed  map[Name]struct{}   // Services
	clusters map[string]struct{} // those whose endpoints may have changed
	nodes    map[symbol]struct{} // that have changed
}

// space has the objects of a namespace. Nobody changes an object.
type space struct {
	objects     [inputs]map[string]any // by name
	slices      map[string][]*slice    // by Service
	index       index
	changedPods map[string]struct{}
}

// New returns a State without inputs.
func New(o Options) *State {
	return &State{
		options: o.withDefaults(), spaces: map[string]*space{}, told: map[Name]xxh3.Uint128{}, quota: newQuota(),
		changed: map[Name]struct{}{}, clusters: map[string]struct{}{}, nodes: map[symbol]struct{}{},
	}
}

// SetOptions changes the options.
func (s *State) SetOptions(o Options) {
	if o = o.withDefaults(); !reflect.DeepEqual(o, s.options) {
		s.touchAll() // the clusters of the old domain
		s.options = o
		s.touchAll()
	}
}

// Synced notes that the State has all objects of an input.
func (s *State) Synced(in Input) {
	if s.synced[in] = true; s.absent[in] {
		s.absent[in] = false
		s.touchAll()
	}
}

// Absent notes that the objects of an input can not be read, or need not be, unless they were.
func (s *State) Absent(in Input) {
	s.absent[in] = s.absent[in] || !s.synced[in]
	s.synced[in] = true
}

func (s *State) ready() bool { return !slices.Contains(s.synced[:], false) }

// Set adds an object that Decode has decoded, or changes it.
func (s *State) Set(of object.Input) {
	if d, is := of.(*decoded); is {
		s.set(d.in, d.name, d.content)
	}
}

// Remove removes an object, if it exists.
func (s *State) Remove(in Input, n Name) { s.set(in, n, nil) }

// nothing is the space of a namespace without objects. Nobody changes it.
var nothing = &space{}

// in returns the objects of a namespace, to read.
func (s *State) in(namespace string) *space { return cmp.Or(s.spaces[namespace], nothing) }

// get returns an object, nil if there is none.
func get[T any](s *State, in Input, n Name) (v *T) {
	v, _ = s.in(n.Namespace).objects[in][n.Name].(*T)
	return v
}

// set changes an object, and removes it if now is nil.
func (s *State) set(in Input, n Name, now any) {
	sp := s.spaces[n.Namespace]
	if sp == nil {
		sp = &space{slices: map[string][]*slice{}, changedPods: map[string]struct{}{}, index: newIndex()}
		sp.index.keep(s.reads.first[n.Namespace], nil)
		for in := range sp.objects {
			sp.objects[in] = map[string]any{}
		}
		s.spaces[n.Namespace] = sp
	}
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
	for name, v := range sp.index.replace(in, n.Name, old, now) {
		s.touch(Name{n.Namespace, name}, v)
	}
	s.touchFor(in, n, now)
}

// touchFor notes what an object changes, by its old or its new content.
func (s *State) touchFor(in Input, n Name, content any) {
	sp := s.spaces[n.Namespace]
	switch c := content.(type) {
	case *service:
		s.touch(n, c)
		s.changed[n] = struct{}{}
	case *slice:
		of := Name{n.Namespace, c.service}
		s.touch(of, get[service](s, Services, of))
	case *export:
		s.changed[n] = struct{}{}
	case *node:
		s.nodes[symbolOf(n.Name)] = struct{}{}
	case *namespace:
		if c.distribution != "" {
			for name := range s.in(n.Name).objects[Services] {
				s.changed[Name{n.Name, name}] = struct{}{}
			}
		}
	case *workload:
		s.reads.each(n.Namespace, c, func(cluster string) { s.clusters[cluster] = struct{}{} })
		if in == Pods {
			sp.changedPods[n.Name] = struct{}{}
			return
		}
		sp.index.selecting(c, func(name string, v *service) { s.touch(Name{n.Namespace, name}, v) })
	}
}

// touch notes that the endpoints of a Service, which may be nil, may have changed.
func (s *State) touch(n Name, v *service) {
	if v != nil {
		for _, p := range v.ports {
			s.clusters[s.cluster(n, p)] = struct{}{}
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
	for cluster := range s.reads.byCluster {
		s.clusters[cluster] = struct{}{}
	}
}

// Output is the ServiceEntry of a Service. Nobody may change its maps.
type Output struct {
	Key                 mirror.Key
	Created             time.Time
	Labels, Annotations map[string]string
	Body                *networking.ServiceEntry
	LeftOut             string // why other clusters must not reach the Service; there is no Body then
}

// Gone reports whether the Service is gone. Only the Key is set then.
func (o *Output) Gone() bool { return o.Body == nil && o.LeftOut == "" }

// Digest returns a hash of the content of an output.
func (o *Output) Digest() xxh3.Uint128 {
	head := fmt.Appendf(nil, "%q %d %q %q", o.LeftOut, o.Created.Unix(), o.Labels, o.Annotations)
	all, _ := proto.MarshalOptions{Deterministic: true}.MarshalAppend(head, o.Body) // it was decoded
	return xxh3.Hash128(all)
}

// Flush returns the outputs that changed since the last call, sorted by name, and the clusters whose
// endpoints may have changed, sorted. It returns nothing before all inputs have synced.
func (s *State) Flush() (changes []*Output, clusters []string) {
	if !s.ready() {
		return nil, nil
	}
	s.flushInputs()
	s.quota.retry(func(cluster string) { s.clusters[cluster] = struct{}{} })
	for n := range s.changed {
		out := s.output(n)
		before, had := s.told[n]
		if s.told[n] = out.Digest(); out.Gone() {
			delete(s.told, n)
		}
		if now, has := s.told[n]; has != had || now != before {
			changes = append(changes, out)
		}
	}
	slices.SortFunc(changes, func(a, b *Output) int { return cmp.Compare(a.Key.FullName(), b.Key.FullName()) })
	clusters = slices.Sorted(maps.Keys(s.clusters))
	clear(s.changed)
	clear(s.clusters)
	return changes, clusters
}

// All returns all outputs, in no order. It returns nothing before all inputs have synced. It does not change what Flush
// returns.
func (s *State) All() (all []*Output) {
	for namespace, sp := range s.spaces {
		for name := range sp.objects[Services] {
			if s.ready() {
				all = append(all, s.output(Name{namespace, name}))
			}
		}
	}
	return all
}

// output returns the output of a Service, which may be gone.
func (s *State) output(n Name) *Output {
	out := &Output{Key: mirror.Key{Kind: federation.ServiceEntry, Namespace: n.Namespace, Name: federation.SyntheticPrefix + n.Name}}
	v := get[service](s, Services, n)
	if v == nil {
		return out
	}
	out.Created, out.Labels, out.Annotations = v.created, v.labels, v.annotations
	// Istiods from 1.30 take that of the namespace for Services without one.
	if of := get[namespace](s, Namespaces, Name{Name: n.Namespace}); of != nil && of.distribution != "" && v.annotations == nil {
		out.Annotations = map[string]string{federation.DistributionAnnotation: of.distribution}
	}
	if out.LeftOut = s.leftOut(n, v); out.LeftOut == "" {
		out.Body = &networking.ServiceEntry{}
		_ = proto.Unmarshal([]byte(v.entry), out.Body) // decodeService has encoded it
		out.Body.Hosts = []string{s.options.host(n)}
	}
	return out
}

// leftOut returns why a Service is left out, empty if it is not. One that is not shared any more keeps its endpoints, for as
// long as its ServiceEntry is held.
func (s *State) leftOut(n Name, v *service) string {
	switch why := s.options.local(n, v); {
	case why != "":
		return why
	case !s.options.Selector.Matches(labels.Set(v.labels)):
		return "services.selector does not select it"
	case s.options.Exported && get[export](s, Exports, n) == nil:
		return "it has no ServiceExport, and services.only is exported"
	}
	return ""
}

// Problems returns what is served without endpoints because there would be too many, at most four lines.
func (s *State) Problems() (all []string) {
	crowded, alike := 0, 0
	for namespace, sp := range s.spaces {
		for name, v := range sp.objects[Services] {
			if sp.crowded(Name{namespace, name}, v.(*service)) {
				crowded++
			}
		}
		for _, some := range sp.index.services {
			if len(some) > maxAlike {
				alike += len(some)
			}
		}
	}
	add := func(n int, format string, args ...any) {
		if n > 0 {
			all = append(all, fmt.Sprintf(format, append([]any{n}, args...)...))
		}
	}
	add(crowded, "%d Services have no endpoints: they have more than %d ports, or their ports times the addresses and ports of their EndpointSlices are more than %d: split them", maxPorts, maxServed)
	add(alike, "%d Services select no WorkloadEntries: more than %d selectors of their namespace begin with the same label: let fewer do so", maxAlike)
	add(s.reads.leftOut, "%d ports of ServiceEntries have no endpoints: more than %d selectors of their namespace begin with the same label: let fewer do so", maxAlike)
	add(s.quota.refused(), "%d ports have none of the workloads that they select: all ports of their namespace would have more than %d for each workload: let them select less", usualSelections)
	return all
}
