package merge

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"

	"meshrelay/federation"
	"meshrelay/federation/services"
	"meshrelay/internal/text"
	"meshrelay/internal/wire"
	"meshrelay/mirror"
)

// maxRefusals bounds the copies that a reason names because they are not united.
const maxRefusals = 4

// entryHosts is the number of the field hosts of a ServiceEntry.
const entryHosts = 1

// Union serves one ServiceEntry with the endpoints and addresses of all copies, in order, but allocated addresses of the
// first copy only. All other fields, labels, annotations and versions are the first copy's.
//
// Union unites a copy only if it describes the same service: hosts, visibility, ports, resolution, location,
// workloadSelector and subjectAltNames must agree with those of the first copy, and istiod's validation must
// accept the result. Other copies are shadowed, and the Reason says why.
//
// Union is a mirror.Grouper. It merges kinds other than ServiceEntry as mirror.First does.
type Union struct {
	// SameHost also unites resources of different names in one namespace, if they have the same hosts and the
	// same namespaces see them. Never those of two namespaces: everybody who may write a ServiceEntry in one
	// could add endpoints to those of the other.
	SameHost bool
}

// Group implements mirror.Grouper.
func (u Union) Group(r *mirror.Resource) string {
	if !u.SameHost || r.Kind() != federation.ServiceEntry {
		return ""
	}
	hosts := wire.Texts(r.BodyValue(), entryHosts)
	if len(hosts) == 0 {
		return ""
	}
	seen := federation.Everyone
	if v := federation.VisibilityOf(federation.ExportTo(r), r.Namespace()); !v.Public {
		seen = strings.Join(v.Namespaces, ",")
	}
	return r.Namespace() + " " + hostSet(hosts) + " " + seen
}

// hostSet returns the same text for equal sets of hosts.
func hostSet(hosts []string) string {
	set := make([]string, len(hosts))
	for i, h := range hosts {
		set[i] = strings.ToLower(h)
	}
	return strings.Join(sortedSet(set), ",")
}

// sortedSet returns texts sorted and each once.
func sortedSet(texts []string) []string {
	return slices.Compact(slices.Sorted(slices.Values(texts)))
}

// Merge implements mirror.Policy.
func (u Union) Merge(copies []mirror.Copy) mirror.Decision {
	first := copies[0].Resource
	if len(copies) == 1 {
		return mirror.Decision{Served: first}
	}
	if first.Kind() != federation.ServiceEntry {
		return mirror.First{}.Merge(copies)
	}
	v := mirror.Decision{Served: first}
	body := first.BodyValue()
	var sum *entry
	var refused []string
	for i, c := range copies[1:] {
		other := c.Resource.BodyValue()
		if first.Namespace() == c.Resource.Namespace() && bytes.Equal(body, other) {
			v.United = append(v.United, i+1)
			continue
		}
		if sum == nil {
			sum = newEntry(body, first.Namespace())
			sum.bare = services.Told(first)
		}
		next := newEntry(other, c.Resource.Namespace())
		if a := c.Resource.Allocated(); len(a) > 0 { // another cluster may have them for another host
			next.Addresses = slices.DeleteFunc(next.Addresses, func(s string) bool { return slices.Contains(a, s) })
		}
		if why := sum.add(next); why != "" {
			refused = append(refused, nameOf(c, first)+" "+why)
			continue
		}
		v.United = append(v.United, i+1)
	}
	if sum != nil && sum.grown {
		served, err := first.WithBody(sum.ServiceEntry)
		if err == nil && len(sum.Endpoints) > 0 {
			served, err = services.Untold(served)
		}
		if err != nil {
			return mirror.Decision{Served: first, Reason: "first in order: the union can not be built: " + text.Abbreviate(err.Error())}
		}
		v.Served = served
	}
	v.Reason = unionReason(len(v.United), refused)
	return v
}

// nameOf names a copy in a reason, with its name if that is not the name of first.
func nameOf(c mirror.Copy, first *mirror.Resource) string {
	if c.Resource.FullName() == first.FullName() {
		return c.Source
	}
	return c.Source + " " + c.Resource.FullName()
}

func unionReason(united int, refused []string) string {
	if len(refused) == 0 {
		return "united"
	}
	if more := len(refused) - maxRefusals; more > 0 {
		refused = append(refused[:maxRefusals:maxRefusals], fmt.Sprintf("%d more", more))
	}
	start := "united, but "
	if united == 0 {
		start = "first in order: "
	}
	return start + strings.Join(refused, "; ")
}

// entry is a ServiceEntry that other ones are added to.
type entry struct {
	*networking.ServiceEntry
	namespace  string
	visibility federation.Visibility
	hosts      string
	broken     bool
	// grown is set when an endpoint or address was added. bare is set while the service has no endpoints
	// (services.Told): the first ones bring their resolution and ports.
	grown, bare bool

	endpoints, addresses map[string]struct{} // of the ServiceEntry, as keys; nil: not known
}

func newEntry(body []byte, namespace string) *entry {
	e := &entry{ServiceEntry: &networking.ServiceEntry{}, namespace: namespace}
	if err := proto.Unmarshal(body, e.ServiceEntry); err != nil {
		e.broken = true // can not happen: a mirror.Resource decodes
		return e
	}
	e.visibility = federation.VisibilityOf(e.ExportTo, namespace)
	e.hosts = hostSet(e.Hosts)
	return e
}

// add unites e with another entry, or returns why it can not.
func (e *entry) add(other *entry) (why string) {
	if e.namespace != other.namespace {
		return "is of another namespace"
	}
	if e.bare && len(other.Endpoints) > 0 && e.describes(other) {
		ports, resolution := e.Ports, e.Resolution
		e.Ports, e.Resolution, e.Endpoints = other.Ports, other.Resolution, other.Endpoints
		if why := e.differs(other); why != "" {
			e.Ports, e.Resolution, e.Endpoints = ports, resolution, nil
			return why
		}
		e.bare, e.endpoints, e.grown = false, nil, true
	}
	if why := e.differs(other); why != "" {
		return why
	}
	if e.endpoints == nil {
		e.endpoints, e.addresses = map[string]struct{}{}, map[string]struct{}{}
		for _, ep := range e.Endpoints {
			e.endpoints[endpointKey(ep)] = struct{}{}
		}
		for _, a := range e.Addresses {
			e.addresses[a] = struct{}{}
		}
	}
	var added []*networking.WorkloadEntry
	for _, ep := range other.Endpoints {
		key := endpointKey(ep)
		if _, ok := e.endpoints[key]; !ok || ep.GetAddress() == "" {
			e.endpoints[key] = struct{}{}
			added = append(added, ep)
		}
	}
	if why := e.forbids(added); why != "" {
		e.endpoints = nil // it contains added; build it again
		return why
	}
	e.Endpoints = append(e.Endpoints, added...)
	e.grown = e.grown || len(added) > 0
	for _, a := range other.Addresses {
		if _, ok := e.addresses[a]; !ok {
			e.addresses[a] = struct{}{}
			e.Addresses, e.grown = append(e.Addresses, a), true
		}
	}
	return ""
}

// forbids returns why the entry would be invalid with added endpoints, empty when it is valid.
func (e *entry) forbids(added []*networking.WorkloadEntry) string {
	switch {
	case len(added) == 0:
		return ""
	case e.WorkloadSelector != nil:
		return "has endpoints, which a workloadSelector excludes"
	case e.Resolution == networking.ServiceEntry_NONE || e.Resolution == networking.ServiceEntry_DYNAMIC_DNS:
		return fmt.Sprintf("has endpoints, which %s does not allow", e.Resolution)
	case e.Resolution == networking.ServiceEntry_DNS_ROUND_ROBIN && len(e.Endpoints)+len(added) > 1:
		return "has another endpoint, and DNS_ROUND_ROBIN allows one"
	}
	return ""
}

// differs returns the first difference between two entries that forbids to unite them. It does not compare
// fields that add changes, except whether there are any endpoints.
func (e *entry) differs(other *entry) string {
	switch {
	case e.broken || other.broken:
		return "does not decode"
	case e.hosts != other.hosts:
		return "has other hosts"
	case !e.visibility.Equal(other.visibility):
		return fmt.Sprintf("is visible to %s, not to %s", other.visibility, e.visibility)
	case e.Resolution != other.Resolution:
		return fmt.Sprintf("has resolution %s, not %s", other.Resolution, e.Resolution)
	case e.Location != other.Location:
		return fmt.Sprintf("has location %s, not %s", other.Location, e.Location)
	case !slices.Equal(sortedSet(e.SubjectAltNames), sortedSet(other.SubjectAltNames)):
		// With an added name, an added endpoint could pose as the service.
		return "has other subjectAltNames"
	}
	if why := portsDiffer(e.Ports, other.Ports); why != "" {
		return why
	}
	dns := e.Resolution == networking.ServiceEntry_DNS || e.Resolution == networking.ServiceEntry_DNS_ROUND_ROBIN
	switch {
	case !proto.Equal(e.WorkloadSelector, other.WorkloadSelector):
		return "has another workloadSelector"
	case dns && (len(e.Endpoints) == 0) != (len(other.Endpoints) == 0):
		// Clients resolve the host itself only if there are no endpoints.
		return "does not agree on whether the host itself is resolved"
	}
	return ""
}

// portsDiffer returns the first port in which two entries differ, empty for none. The order does not matter.
func portsDiffer(a, b []*networking.ServicePort) string {
	byNumber := make(map[uint32]*networking.ServicePort, len(a))
	for _, p := range a {
		byNumber[p.GetNumber()] = p
	}
	seen := make(map[uint32]struct{}, len(b))
	for _, p := range b {
		n := p.GetNumber()
		q := byNumber[n]
		switch {
		case q == nil:
			return fmt.Sprintf("has a port %d more", n)
		case q.GetName() != p.GetName():
			return fmt.Sprintf("names port %d %q, not %q", n, text.Abbreviate(p.GetName()), text.Abbreviate(q.GetName()))
		case !strings.EqualFold(q.GetProtocol(), p.GetProtocol()):
			return fmt.Sprintf("has port %d as %q, not %q", n, text.Abbreviate(p.GetProtocol()), text.Abbreviate(q.GetProtocol()))
		case targetPort(q) != targetPort(p):
			return fmt.Sprintf("has port %d with targetPort %d, not %d", n, targetPort(p), targetPort(q))
		}
		seen[n] = struct{}{}
	}
	for _, p := range a {
		if _, ok := seen[p.GetNumber()]; !ok {
			return fmt.Sprintf("has no port %d", p.GetNumber())
		}
	}
	return ""
}

func targetPort(p *networking.ServicePort) uint32 {
	return cmp.Or(p.GetTargetPort(), p.GetNumber())
}

// endpointKey returns the same text for equal endpoints.
func endpointKey(ep *networking.WorkloadEntry) string {
	b := make([]byte, 0, len(ep.GetAddress())+len(ep.GetNetwork())+16*len(ep.GetPorts())+2)
	b = append(b, ep.GetAddress()...)
	b = append(b, 0)
	b = append(b, ep.GetNetwork()...)
	for _, name := range slices.Sorted(maps.Keys(ep.GetPorts())) {
		b = append(b, 0)
		b = append(b, name...)
		b = strconv.AppendUint(append(b, '='), uint64(ep.GetPorts()[name]), 10)
	}
	return string(b)
}
