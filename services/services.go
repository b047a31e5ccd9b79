// Package services lists the services of a view: what istiods make of its ServiceEntries, WorkloadEntries,
// DestinationRules and VirtualServices, for a client in a namespace (istio pilot/pkg/serviceregistry/serviceentry
// conversion.go, pilot/pkg/model push_context.go, sidecar.go and destination_rule.go). It differs from them in one way: it
// does not unite endpoints that exportTo hides with those that exportTo shows.
//
// Find is a pure function, and nobody keeps its result. The package must not know where resources come from, or how an
// answer is printed. Lists of different authors are not multiplied: hosts and labels have indexes, lists in an answer have
// a limit, and a budget bounds the rest (world.charge).
package services

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	meshconfig "istio.io/api/mesh/v1alpha1"

	"meshrelay/federation"
	"meshrelay/federation/filter"
	"meshrelay/internal/text"
	"meshrelay/mirror"
)

const (
	// UsualLimit is the limit of a Query that has none.
	UsualLimit = 1000
	// MaxLimit is the highest limit of a Query.
	MaxLimit = 100_000
	// rowLimit bounds the lists of a service in an answer about all hosts, maxSteps the work for an answer.
	rowLimit = 16
	maxSteps = 5_000_000
	// maxSimilar bounds the hosts that are suggested.
	maxSimilar = 8
)

// Input is what a view has, in any order.
type Input struct {
	// Mesh is the MeshConfig; nil has Istio's defaults.
	Mesh *mirror.Resource
	// Entries are ServiceEntries, Workloads WorkloadEntries, Rules DestinationRules, Routes VirtualServices.
	Entries, Workloads, Rules, Routes []*mirror.Resource
	// Copies are the copies of ServiceEntries that several upstreams have.
	Copies []Copy
}

// Copy is the copy of one upstream.
type Copy struct {
	*mirror.Resource
	United bool // with the copy that is served, or that copy itself
}

// Query selects services.
type Query struct {
	// Host selects one host, with details; empty selects all.
	Host string
	// Port, a number or a name, and Subset select endpoints of the Host.
	Port, Subset string
	// As is the namespace of the client. What exportTo hides from it is not there. Empty sees everything, and gets the
	// rules of clients in the namespace of the service.
	As string
	// Search selects hosts that contain it, From those from this one on, Findings those with a Finding.
	Search, From string
	Findings     bool
	// Limit bounds the number of services, and each list of one; 0 is UsualLimit.
	Limit int
}

// Answer is the result of Find.
type Answer struct {
	Services []Service `json:"services"`
	// More is the number of hosts that were not looked at, because of the limit.
	More int `json:"more,omitempty"`
	// Similar are hosts like that of the query, if it does not exist.
	Similar []string `json:"similar,omitempty"`
	// Partial is set if the work was too much: counts and endpoints are incomplete. Ask for one host then.
	Partial bool `json:"partial,omitempty"`
}

// Service is a host.
type Service struct {
	Host string `json:"host"`
	// Namespace is that of the entry that applies. Kubernetes is set if that was made of a Kubernetes service.
	Namespace  string   `json:"namespace"`
	Kubernetes bool     `json:"kubernetes,omitempty"`
	Resolution string   `json:"resolution"`
	Location   string   `json:"location"`
	Addresses  []string `json:"addresses,omitempty"`
	Ports      []Port   `json:"ports"`
	// Clusters are those of its entries and endpoints.
	Clusters []string `json:"clusters"`
	// Ready of All endpoints are healthy.
	Ready    int       `json:"ready"`
	All      int       `json:"all"`
	Subsets  []Subset  `json:"subsets,omitempty"`
	Findings []Finding `json:"findings,omitempty"`
	// Entries, Rules and Routes are the ServiceEntries, DestinationRules and VirtualServices of the host, LeftOut the
	// endpoints that clients do not get. These and Endpoints are in answers about one host.
	Entries   []Applied  `json:"entries,omitempty"`
	Rules     []Applied  `json:"rules,omitempty"`
	Routes    []Applied  `json:"routes,omitempty"`
	Endpoints []Endpoint `json:"endpoints,omitempty"`
	LeftOut   []Endpoint `json:"leftOut,omitempty"`
	// More has the number of elements beyond the limit, by list.
	More map[string]int `json:"more,omitempty"`
}

// Port is a port of a service.
type Port struct {
	Number   uint32 `json:"number"`
	Name     string `json:"name"`
	Protocol string `json:"protocol"`
}

// Subset is a subset of a DestinationRule. Endpoints is the number of those with its labels, -1 if not counted.
type Subset struct {
	Name      string            `json:"name"`
	Labels    map[string]string `json:"labels,omitempty"`
	Endpoints int               `json:"endpoints"`
}

// Outcome is what becomes of a resource.
type Outcome string

// The outcomes.
const (
	Applies       Outcome = "applies"
	United        Outcome = "united"         // with the one that applies
	EndpointsOnly Outcome = "endpoints only" // united, but for its ports
	Shadowed      Outcome = "shadowed"       // another upstream's copy is served
	NotUsed       Outcome = "not used"
	SomeClients   Outcome = "some clients" // those with certain labels get it
)

// Applied tells what becomes of a resource, and why.
type Applied struct {
	mirror.Key
	Upstream string `json:"upstream"`
	Cluster  string `json:"cluster,omitempty"`
	// Host is the host of the resource that covers the service.
	Host    string  `json:"host"`
	Outcome Outcome `json:"outcome"`
	Reason  string  `json:"reason"`
}

func applied(r *mirror.Resource, host string, o Outcome, format string, args ...any) Applied {
	return Applied{r.Key(), r.Source(), r.Cluster(), host, o, fmt.Sprintf(format, args...)}
}

// world has the indexes of an Input.
type world struct {
	mesh      *meshconfig.MeshConfig
	root      string
	query     Query
	entries   map[string][]*entry           // by host
	copies    map[mirror.Key][]*entry       // sorted
	resources map[string][]*mirror.Resource // WorkloadEntries by namespace
	workloads map[string]map[label][]*Endpoint
	rules     map[scope][]*rule // DestinationRules
	routes    []*mirror.Resource
	budget    int
	partial   bool // the budget is used up
}

// charge takes n steps from the budget, and reports whether it had them.
func (w *world) charge(n int) bool {
	if !w.partial {
		w.budget -= n
		w.partial = w.budget < 0
	}
	return !w.partial
}

// Find returns the services that a query selects, by host. An error is a mistake in the query.
func Find(in Input, q Query) (Answer, error) { return newWorld(in, q).answer() }

func (w *world) answer() (a Answer, err error) {
	q := w.query
	a.Services = []Service{}
	switch host, all := w.lookup(q.Host); {
	case q.Host == "":
		hosts := slices.DeleteFunc(slices.Sorted(maps.Keys(w.entries)), func(h string) bool { return h < q.From || !strings.Contains(h, q.Search) })
		a.More = len(hosts)
		for _, h := range hosts {
			if len(a.Services) == q.Limit || q.Findings && w.partial {
				break
			}
			a.More--
			s := w.describe(h, w.entries[h])
			w.forget(w.entries[h])
			s.Entries, s.Rules, s.Endpoints, s.LeftOut = nil, nil, nil, nil
			if s.clip(rowLimit); !q.Findings || len(s.Findings) > 0 {
				a.Services = append(a.Services, s)
			}
		}
	case all == nil:
		a.Similar = similar(q.Host, slices.Sorted(maps.Keys(w.entries)))
	default:
		s := w.describe(host, all)
		s.Routes = w.routesOf(&s)
		err = s.choose(q)
		s.clip(q.Limit)
		a.Services = append(a.Services, s)
	}
	a.Partial = w.partial
	return a, err
}

func newWorld(in Input, q Query) *world {
	q.Search = strings.ToLower(q.Search)
	q.Host, q.Limit = federation.NormalHost(q.Host), min(cmp.Or(max(q.Limit, 0), UsualLimit), MaxLimit)
	w := &world{
		mesh: &meshconfig.MeshConfig{}, query: q, entries: map[string][]*entry{}, copies: map[mirror.Key][]*entry{},
		resources: map[string][]*mirror.Resource{}, workloads: map[string]map[label][]*Endpoint{}, rules: map[scope][]*rule{}, routes: in.Routes, budget: maxSteps,
	}
	if in.Mesh != nil && proto.Unmarshal(in.Mesh.BodyValue(), w.mesh) != nil {
		w.mesh.Reset() // never: a mirror.Resource decodes
	}
	w.root = cmp.Or(w.mesh.GetRootNamespace(), filter.DefaultRoot)
	for _, r := range in.Entries {
		if e := w.newEntry(r); e != nil {
			for _, h := range federation.Claims(r, federation.DefaultDomain) {
				w.entries[h] = append(w.entries[h], e)
			}
		}
	}
	for _, c := range in.Copies {
		if e := w.newEntry(c.Resource); e != nil {
			e.united = c.United
			w.copies[e.Key()] = append(w.copies[e.Key()], e)
		}
	}
	for _, all := range w.copies {
		slices.SortFunc(all, compareEntries)
	}
	for _, r := range in.Workloads {
		w.resources[r.Namespace()] = append(w.resources[r.Namespace()], r)
	}
	w.indexRules(in.Rules)
	return w
}

// sees reports whether the client of the query sees a resource.
func (w *world) sees(v federation.Visibility) bool {
	return w.query.As == "" || v.Public || slices.Contains(v.Namespaces, w.query.As)
}

// visibility returns who sees a resource. defaults apply to one without exportTo.
func visibility(r *mirror.Resource, defaults []string) federation.Visibility {
	to := federation.ExportTo(r)
	if len(to) == 0 {
		to = defaults
	}
	return federation.VisibilityOf(to, r.Namespace())
}

// lookup returns the entries of a host, or of the most specific host with a * that covers it.
func (w *world) lookup(host string) (string, []*entry) {
	for _, h := range covering(host) {
		if all := w.entries[h]; all != nil {
			return h, all
		}
	}
	return host, nil
}

// similar returns hosts that begin with the asked one, have its first label, or a part of it, in this order.
func similar(asked string, hosts []string) (found []string) {
	label, _, _ := strings.Cut(asked, ".")
	for _, like := range []func(string) bool{
		func(h string) bool { return strings.HasPrefix(h, asked+".") },
		func(h string) bool { return strings.HasPrefix(h, label+".") },
		func(h string) bool { return strings.Contains(h, asked) },
		func(h string) bool { return len(label) > 3 && strings.HasPrefix(h, label[:len(label)-1]) },
	} {
		for _, h := range hosts {
			if like(h) && len(found) < maxSimilar && !slices.Contains(found, h) {
				found = append(found, h)
			}
		}
	}
	return found
}

// choose leaves the endpoints of the port and the subset of a query.
func (s *Service) choose(q Query) error {
	if q.Port != "" {
		i := slices.IndexFunc(s.Ports, func(p Port) bool { return q.Port == p.Name || q.Port == fmt.Sprint(p.Number) })
		if i < 0 {
			return fmt.Errorf("service %s has no port %q: \"relay services %s\" lists its ports", s.Host, text.Abbreviate(q.Port), s.Host)
		}
		other := func(p EndpointPort) bool { return p.Service != s.Ports[i].Number }
		for n := range s.Endpoints {
			s.Endpoints[n].Ports = slices.DeleteFunc(s.Endpoints[n].Ports, other)
		}
		s.Endpoints = slices.DeleteFunc(s.Endpoints, func(e Endpoint) bool { return len(e.Ports) == 0 })
	}
	if q.Subset != "" {
		i := slices.IndexFunc(s.Subsets, func(sub Subset) bool { return sub.Name == q.Subset })
		if i < 0 {
			return fmt.Errorf("service %s has no subset %q for this client: \"relay explain service %s\" lists its rules", s.Host, text.Abbreviate(q.Subset), s.Host)
		}
		s.Endpoints = slices.DeleteFunc(s.Endpoints, func(e Endpoint) bool { return !contains(e.Labels, s.Subsets[i].Labels) })
	}
	return nil
}

// clip cuts all lists.
func (s *Service) clip(most int) {
	s.More = map[string]int{}
	clip(s, "addresses", &s.Addresses, most)
	clip(s, "ports", &s.Ports, most)
	clip(s, "clusters", &s.Clusters, most)
	clip(s, "subsets", &s.Subsets, most)
	clip(s, "findings", &s.Findings, most)
	clip(s, "entries", &s.Entries, most)
	clip(s, "rules", &s.Rules, most)
	clip(s, "routes", &s.Routes, most)
	clip(s, "endpoints", &s.Endpoints, most)
	clip(s, "leftOut", &s.LeftOut, most)
}

func clip[T any](s *Service, name string, list *[]T, most int) {
	if more := len(*list) - most; more > 0 {
		s.More[name], *list = more, (*list)[:most:most]
	}
}
