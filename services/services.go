// Package services lists hosts with their ports and endpoints, as the ServiceEntries and WorkloadEntries of all upstreams
// have them, and tells from where each comes. What an istiod makes of several entries of one host is its decision.
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
	"time"

	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"

	"meshrelay/federation"
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
)

// Input is what a view has, in any order.
type Input struct {
	// Entries are ServiceEntries, Workloads WorkloadEntries.
	Entries, Workloads []*mirror.Resource
	// Copies are the copies of ServiceEntries that several upstreams have, and that are united.
	Copies []*mirror.Resource
	// ContactLost returns since when the source of a resource is out of contact, zero for in contact.
	ContactLost func(*mirror.Resource) time.Time
}

// Query selects services.
type Query struct {
	// Host selects one host, with its endpoints; empty selects all.
	Host string
	// Port, a number or a name, selects endpoints of the Host.
	Port string
	// Search selects hosts that contain it, From those from this one on.
	Search, From string
	// Limit bounds the number of services, and each list of one; 0 is UsualLimit.
	Limit int
}

// Answer is the result of Find.
type Answer struct {
	Services []Service `json:"services"`
	// More is the number of hosts that were not looked at, because of the limit.
	More int `json:"more,omitempty"`
	// Partial is set if the work was too much: counts and endpoints are incomplete. Ask for one host then.
	Partial bool `json:"partial,omitempty"`
}

// Service is a host.
type Service struct {
	Host string `json:"host"`
	// Ports, Addresses and Clusters are those of all its entries, and of their endpoints.
	Ports     []Port   `json:"ports"`
	Addresses []string `json:"addresses,omitempty"`
	Clusters  []string `json:"clusters"`
	// ContactLost has, by cluster, since when a source of entries or endpoints there is out of contact.
	ContactLost map[string]time.Time `json:"contactLost,omitempty"`
	// All is the number of endpoints.
	All int `json:"all"`
	// Entries are its ServiceEntries. They and Endpoints are in answers about one host.
	Entries   []Entry    `json:"entries,omitempty"`
	Endpoints []Endpoint `json:"endpoints,omitempty"`
	// More has the number of elements beyond the limit, by list.
	More map[string]int `json:"more,omitempty"`
}

// Port is a port of a service.
type Port struct {
	Number   uint32 `json:"number"`
	Name     string `json:"name"`
	Protocol string `json:"protocol"`
}

// Entry is a ServiceEntry of a host.
type Entry struct {
	mirror.Key
	Upstream    string    `json:"upstream"`
	Cluster     string    `json:"cluster,omitempty"`
	Resolution  string    `json:"resolution"`
	ExportTo    []string  `json:"exportTo,omitempty"`
	Endpoints   int       `json:"endpoints"`
	ContactLost time.Time `json:"contactLost,omitzero"`
}

// world has the indexes of an Input.
type world struct {
	query       Query
	entries     map[string][]*mirror.Resource // by host, sorted
	copies      map[mirror.Key][]*mirror.Resource
	resources   map[string][]*mirror.Resource // WorkloadEntries by namespace
	workloads   map[string]map[label][]*workload
	budget      int
	partial     bool // the budget is used up
	contactLost func(*mirror.Resource) time.Time
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
		for _, h := range hosts[:min(len(hosts), q.Limit)] {
			s := w.describe(h, w.entries[h])
			s.Entries, s.Endpoints = nil, nil
			s.clip(rowLimit)
			a.Services = append(a.Services, s)
		}
		a.More = len(hosts) - len(a.Services)
	case all != nil:
		s := w.describe(host, all)
		err = s.choose(q.Port)
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
		query: q, entries: map[string][]*mirror.Resource{}, copies: map[mirror.Key][]*mirror.Resource{}, resources: map[string][]*mirror.Resource{},
		workloads: map[string]map[label][]*workload{}, budget: maxSteps, contactLost: in.ContactLost,
	}
	if w.contactLost == nil {
		w.contactLost = func(*mirror.Resource) (never time.Time) { return never }
	}
	for _, r := range slices.SortedFunc(slices.Values(in.Entries), compareResources) {
		for _, h := range federation.Claims(r, federation.DefaultDomain) {
			w.entries[h] = append(w.entries[h], r)
		}
	}
	for _, c := range slices.SortedFunc(slices.Values(in.Copies), compareResources) {
		w.copies[c.Key()] = append(w.copies[c.Key()], c)
	}
	for _, r := range slices.SortedFunc(slices.Values(in.Workloads), compareResources) {
		w.resources[r.Namespace()] = append(w.resources[r.Namespace()], r)
	}
	return w
}

func compareResources(a, b *mirror.Resource) int {
	return cmp.Or(mirror.CompareKeys(a.Key(), b.Key()), strings.Compare(a.Source(), b.Source()), strings.Compare(a.Version(), b.Version()))
}

// lookup returns the entries of a host, or of the most specific host with a * that covers it.
func (w *world) lookup(host string) (string, []*mirror.Resource) {
	if all := w.entries[host]; all != nil {
		return host, all
	}
	for i := range len(host) + 1 {
		if covering := federation.AnyHost + host[i:]; w.entries[covering] != nil {
			return covering, w.entries[covering]
		}
	}
	return host, nil
}

// describe returns the service of a host that all are the entries of.
func (w *world) describe(host string, all []*mirror.Resource) Service {
	s := Service{Host: host, Ports: []Port{}, ContactLost: map[string]time.Time{}}
	clusters, seen := map[string]bool{}, map[Port]bool{}
	add := func(cluster string, lost time.Time) {
		clusters[cluster] = true
		if !lost.IsZero() {
			s.ContactLost[cluster] = lost
		}
	}
	for _, r := range all {
		if w.partial {
			break
		}
		se := decode(r)
		w.charge(1 + len(se.GetHosts()) + len(se.GetPorts()) + len(se.GetAddresses()))
		for _, p := range se.GetPorts() {
			if one := (Port{p.GetNumber(), p.GetName(), p.GetProtocol()}); !seen[one] {
				seen[one] = true
				s.Ports = append(s.Ports, one)
			}
		}
		s.Addresses = append(s.Addresses, se.GetAddresses()...)
		endpoints := w.endpointsOf(r, se)
		for _, e := range endpoints {
			add(e.Cluster, e.ContactLost)
		}
		lost := w.contactLost(r)
		add(r.Cluster(), lost)
		s.Endpoints = append(s.Endpoints, endpoints...)
		s.Entries = append(s.Entries, Entry{r.Key(), r.Source(), r.Cluster(), se.GetResolution().String(), se.GetExportTo(), len(endpoints), lost})
	}
	delete(clusters, "")
	delete(s.ContactLost, "")
	s.All, s.Clusters = len(s.Endpoints), slices.AppendSeq([]string{}, maps.Keys(clusters))
	slices.Sort(s.Clusters)
	return s
}

func decode(r *mirror.Resource) *networking.ServiceEntry {
	se := &networking.ServiceEntry{}
	if proto.Unmarshal(r.BodyValue(), se) != nil {
		se.Reset() // never: a mirror.Resource decodes
	}
	return se
}

// choose leaves the endpoints of a port, unless that is empty.
func (s *Service) choose(port string) error {
	if port == "" {
		return nil
	}
	numbers := map[uint32]bool{}
	for _, p := range s.Ports {
		if port == p.Name || port == fmt.Sprint(p.Number) {
			numbers[p.Number] = true
		}
	}
	if len(numbers) == 0 {
		return fmt.Errorf("service %s has no port %q: \"relay services %s\" lists its ports", s.Host, text.Abbreviate(port), s.Host)
	}
	for n := range s.Endpoints {
		s.Endpoints[n].Ports = slices.DeleteFunc(s.Endpoints[n].Ports, func(p EndpointPort) bool { return !numbers[p.Service] })
	}
	s.Endpoints = slices.DeleteFunc(s.Endpoints, func(e Endpoint) bool { return len(e.Ports) == 0 })
	return nil
}

// clip cuts all lists.
func (s *Service) clip(most int) {
	s.More = map[string]int{}
	clip(s, "addresses", &s.Addresses, most)
	clip(s, "ports", &s.Ports, most)
	clip(s, "clusters", &s.Clusters, most)
	clip(s, "entries", &s.Entries, most)
	clip(s, "endpoints", &s.Endpoints, most)
}

func clip[T any](s *Service, name string, list *[]T, most int) {
	if more := len(*list) - most; more > 0 {
		s.More[name], *list = more, (*list)[:most:most]
	}
}
