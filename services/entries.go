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
	"meshrelay/federation/services"
	"meshrelay/internal/text"
	"meshrelay/mirror"
)

// entry is a ServiceEntry that the client sees.
type entry struct {
	*mirror.Resource
	made       bool // of a Kubernetes service
	created    time.Time
	labels     map[string]string
	visibility federation.Visibility
	united     bool                        // of a copy
	decoded    *networking.ServiceEntry    // use body
	from       map[string]*mirror.Resource // use origins
}

// newEntry returns nil for a ServiceEntry that the client does not see.
func (w *world) newEntry(r *mirror.Resource) *entry {
	v := visibility(r, w.mesh.GetDefaultServiceExportTo())
	if !w.sees(v) {
		return nil
	}
	md := r.Metadata()
	return &entry{Resource: r, made: services.IsMade(r), created: md.CreateTime, labels: md.Labels, visibility: v}
}

func (e *entry) body() *networking.ServiceEntry {
	if e.decoded == nil {
		e.decoded = &networking.ServiceEntry{}
		if proto.Unmarshal(e.BodyValue(), e.decoded) != nil {
			e.decoded.Reset() // never: a mirror.Resource decodes
		}
	}
	return e.decoded
}

// forget drops what is decoded of entries of one host: nobody needs it again.
func (w *world) forget(all []*entry) {
	for _, e := range all {
		if len(e.body().GetHosts()) > 1 {
			continue
		}
		e.decoded = nil
		for _, c := range w.copies[e.Key()] {
			c.decoded = nil
		}
	}
}

// compareEntries orders entries by precedence: Kubernetes services first, then by age, then by name.
func compareEntries(a, b *entry) int {
	return cmp.Or(first(a.made, b.made), a.created.Compare(b.created), compareResources(a.Resource, b.Resource))
}

func compareResources(a, b *mirror.Resource) int {
	return cmp.Or(strings.Compare(a.Namespace(), b.Namespace()), strings.Compare(a.FullName(), b.FullName()),
		strings.Compare(a.Source(), b.Source()), strings.Compare(a.Version(), b.Version()))
}

// first orders what has a property before what has not.
func first(a, b bool) int { return flag(b) - flag(a) }

func flag(b bool) int {
	if b {
		return 1
	}
	return 0
}

// precedence sorts the entries of a host, and returns how many are in the namespace whose service the client gets: its
// own, else that of the first entry. They come first. Without a namespace of the client, those that everybody sees come
// before others.
func (w *world) precedence(all []*entry) (mine int, reason string) {
	as := w.query.As
	preferred := func(e *entry) bool { return as == "" && e.visibility.Public || as != "" && e.Namespace() == as }
	lead := slices.MinFunc(all, func(a, b *entry) int { return cmp.Or(first(preferred(a), preferred(b)), compareEntries(a, b)) })
	slices.SortFunc(all, func(a, b *entry) int {
		return cmp.Or(first(a.Namespace() == lead.Namespace(), b.Namespace() == lead.Namespace()), compareEntries(a, b))
	})
	for mine < len(all) && all[mine].Namespace() == lead.Namespace() {
		mine++
	}
	switch {
	case lead.Namespace() == as:
		return mine, "it is in the client's own namespace"
	case mine == len(all):
		return mine, "no other namespace has the host"
	case preferred(lead) && !preferred(all[mine]):
		return mine, "everybody sees it"
	case lead.made && !all[mine].made:
		return mine, "Kubernetes services come before ServiceEntries"
	case lead.created.Before(all[mine].created):
		return mine, "it is the oldest"
	}
	return mine, "it is the first by name of those of the same age"
}

// link joins the number of a port of a service and a port of an entry.
type link struct {
	number uint32
	own    *networking.ServicePort
}

// describe returns the service of a host that all are the entries of.
func (w *world) describe(host string, all []*entry) Service {
	mine, reason := w.precedence(all)
	lead := all[0]
	se := lead.body()
	s := Service{
		Host: host, Namespace: lead.Namespace(), Kubernetes: lead.made, Resolution: se.GetResolution().String(),
		Location: se.GetLocation().String(), Addresses: se.GetAddresses(), Ports: []Port{}, Clusters: []string{},
	}
	names, numbers := map[string]uint32{}, map[uint32]bool{} // the ports of the service
	for _, e := range all[:mine] {
		if e == lead || apart(lead, e) == "" {
			for _, p := range w.ports(e) {
				if !numbers[p.GetNumber()] {
					numbers[p.GetNumber()], names[p.GetName()] = true, p.GetNumber()
					s.Ports = append(s.Ports, Port{p.GetNumber(), p.GetName(), p.GetProtocol()})
				}
			}
		}
	}
	add := func(e *entry, o Outcome, why string) {
		s.Entries = append(s.Entries, applied(e.Resource, host, o, "%s", why))
		for _, c := range w.copies[e.Key()] {
			if c.united && c.Source() != e.Source() {
				s.Entries = append(s.Entries, applied(c.Resource, host, United, "its endpoints are added to those of %s", e.Source()))
			} else if c.Source() != e.Source() {
				s.Entries = append(s.Entries, applied(c.Resource, host, Shadowed, "the copy of %s is served", e.Source()))
			}
		}
	}
	seen := map[mirror.Key]bool{}
	for i, e := range all[:mine] {
		var links []link
		for _, p := range w.ports(e) {
			if number, ok := names[p.GetName()]; ok && !resolves(se) {
				links = append(links, link{number, p})
			} else if resolves(se) && numbers[p.GetNumber()] {
				links = append(links, link{p.GetNumber(), p})
			}
		}
		switch why := apart(lead, e); {
		case i == 0:
			add(e, Applies, reason)
		case why == "":
			add(e, United, "ports and endpoints are added to those of "+text.Name(lead.FullName()))
		case len(links) > 0:
			add(e, EndpointsOnly, fmt.Sprintf("its ports are not added to those of %s: %s", text.Name(lead.FullName()), why))
		default:
			add(e, NotUsed, fmt.Sprintf("%s has none of its ports, and they are not added: %s", text.Name(lead.FullName()), why))
		}
		w.addEndpoints(&s, e, links, seen)
	}
	for _, e := range all[mine:] {
		add(e, NotUsed, "the service of namespace "+text.Name(lead.Namespace())+" applies: "+reason)
	}
	for _, e := range s.Endpoints {
		s.Ready += flag(e.Health == Healthy)
		s.Clusters = append(s.Clusters, e.Cluster)
	}
	s.All, s.Clusters = len(s.Endpoints), append(s.Clusters, lead.Cluster())
	slices.Sort(s.Clusters)
	s.Clusters = slices.DeleteFunc(slices.Compact(s.Clusters), func(c string) bool { return c == "" })
	w.addSubsets(&s)
	w.addFindings(&s, all, mine)
	return s
}

// ports returns the ports of an entry, or none if the budget is used up.
func (w *world) ports(e *entry) []*networking.ServicePort {
	if !w.charge(len(e.body().GetPorts())) {
		return nil
	}
	return e.body().GetPorts()
}

// apart returns the reason why an istiod does not unite the ports of two entries of one namespace (canMergeServices), ""
// if it does.
func apart(lead, e *entry) string {
	a, b := lead.body(), e.body()
	switch {
	case lead.made != e.made:
		return "one is a Kubernetes service"
	case a.GetResolution() != b.GetResolution():
		return fmt.Sprintf("its resolution is %s, not %s", b.GetResolution(), a.GetResolution())
	case !maps.Equal(lead.labels, e.labels):
		return "its labels differ"
	case !maps.Equal(a.GetWorkloadSelector().GetLabels(), b.GetWorkloadSelector().GetLabels()):
		return "its workloadSelector differs"
	case !lead.visibility.Equal(e.visibility):
		return "its exportTo differs"
	}
	return ""
}

func resolves(se *networking.ServiceEntry) bool {
	return se.GetResolution() == networking.ServiceEntry_DNS || se.GetResolution() == networking.ServiceEntry_DNS_ROUND_ROBIN
}

// passes reports whether traffic goes where the client sent it.
func passes(se *networking.ServiceEntry) bool {
	return !resolves(se) && se.GetResolution() != networking.ServiceEntry_STATIC
}
