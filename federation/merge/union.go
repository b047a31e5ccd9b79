package merge

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	networking "istio.io/api/networking/v1alpha3"

	"meshrelay/federation"
	"meshrelay/internal/text"
	"meshrelay/mirror"
)

// maxRefusals bounds the copies of which a verdict says why they are not united.
const maxRefusals = 4

// Union serves one ServiceEntry with the endpoints and addresses of all copies: those of the
// first copy, then what each other copy adds to them, in order. Everything else, labels,
// annotations and versions too, is the first copy's.
//
// A copy is united only when it is about the same service: hosts, visibility, ports,
// resolution, location, workloadSelector and subjectAltNames must agree with the first
// copy's, and the result must be one that istiod's validation accepts. A copy that is not
// united stays shadowed, and the verdict tells why.
//
// It is a mirror.Policy. Kinds other than ServiceEntry are merged as by First.
type Union struct {
	// SameHost unites resources of different keys too, when they have the same hosts and
	// are visible to the same namespaces.
	SameHost bool
	// AcrossNamespaces makes SameHost unite resources of different namespaces: whoever may
	// write a ServiceEntry in one of them adds endpoints to those of the others.
	AcrossNamespaces bool
}

// Group implements mirror.Policy.
func (u Union) Group(r *mirror.Resource) string {
	if !u.SameHost || r.Kind() != federation.ServiceEntry {
		return ""
	}
	c := federation.EntryHosts.Parse(r.BodyValue())
	if len(c.Hosts) == 0 {
		return ""
	}
	key := hostSet(c.Hosts) + " " + group(federation.VisibilityOf(c.ExportTo, r.Namespace()), r.Namespace())
	if !u.AcrossNamespaces {
		key = r.Namespace() + " " + key
	}
	return key
}

// group returns an equal text for resources that may be united: those that everyone sees, or
// that the same namespaces see from one namespace.
func group(v federation.Visibility, namespace string) string {
	if v.Public {
		return federation.Everyone
	}
	return namespace + "/" + strings.Join(v.Namespaces, ",")
}

// hostSet returns hosts in a form in which equal sets are equal.
func hostSet(hosts []string) string {
	set := make([]string, len(hosts))
	for i, h := range hosts {
		set[i] = strings.ToLower(h)
	}
	return strings.Join(sortedSet(set), ",")
}

// sortedSet returns texts sorted, each once.
func sortedSet(texts []string) []string {
	return slices.Compact(slices.Sorted(slices.Values(texts)))
}

// Merge implements mirror.Policy.
func (u Union) Merge(copies []mirror.Provider) mirror.Verdict {
	first := copies[0].Resource
	if len(copies) == 1 {
		return mirror.Verdict{Served: first}
	}
	if first.Kind() != federation.ServiceEntry {
		return First{}.Merge(copies)
	}
	v := mirror.Verdict{Served: first}
	body := first.Body()
	var sum *entry
	var refused []string
	for i, c := range copies[1:] {
		other := c.Resource.Body().GetValue()
		if first.Namespace() == c.Resource.Namespace() && bytes.Equal(body.GetValue(), other) {
			v.United = append(v.United, i+1)
			continue
		}
		if sum == nil {
			sum = newEntry(body.GetValue(), first.Namespace())
		}
		why := ""
		if c.Resource.Namespace() != first.Namespace() && !u.AcrossNamespaces {
			why = "is of another namespace, and merge[].acrossNamespaces is not set"
		} else {
			why = sum.add(newEntry(other, c.Resource.Namespace()))
		}
		if why != "" {
			refused = append(refused, nameOf(c, first)+" "+why)
			continue
		}
		v.United = append(v.United, i+1)
	}
	if sum != nil && sum.grown {
		served, err := sum.resource(first, body.GetTypeUrl())
		if err != nil {
			return mirror.Verdict{Served: first, Reason: "first in order: the union can not be built: " + text.Abbreviate(err.Error())}
		}
		v.Served = served
	}
	v.Reason = unionReason(len(v.United), refused)
	return v
}

// nameOf names a copy in a reason, by its key too when that is another one.
func nameOf(c mirror.Provider, first *mirror.Resource) string {
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

// entry is a ServiceEntry to which others are added.
type entry struct {
	*networking.ServiceEntry
	namespace  string
	visibility federation.Visibility
	hosts      string
	broken     bool
	// grown says that something was added.
	grown bool

	endpoints, addresses map[string]struct{} // what is there; nil until something is added
}

func newEntry(body []byte, namespace string) *entry {
	e := &entry{ServiceEntry: &networking.ServiceEntry{}, namespace: namespace}
	if err := proto.Unmarshal(body, e.ServiceEntry); err != nil {
		e.broken = true // it does not get into a mirror.Resource
		return e
	}
	e.visibility = federation.VisibilityOf(e.ExportTo, namespace)
	e.hosts = hostSet(e.Hosts)
	return e
}

// add unites e with another entry, or says why it can not.
func (e *entry) add(other *entry) (why string) {
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
		if _, ok := e.endpoints[key]; !ok {
			e.endpoints[key] = struct{}{}
			added = append(added, ep)
		}
	}
	if why := e.forbids(added); why != "" {
		for _, ep := range added {
			delete(e.endpoints, endpointKey(ep))
		}
		return why
	}
	e.Endpoints = append(e.Endpoints, added...)
	e.grown = e.grown || len(added) > 0
	e.Addresses = e.addTexts(e.Addresses, other.Addresses, e.addresses)
	return ""
}

// forbids says why the entry would not be valid with some more endpoints.
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

func (e *entry) addTexts(have, more []string, seen map[string]struct{}) []string {
	for _, s := range more {
		if _, ok := seen[s]; !ok {
			seen[s] = struct{}{}
			have, e.grown = append(have, s), true
		}
	}
	return have
}

// differs says in what the other entry is about something else, so that uniting the two
// would change what either means. It looks at nothing that add changes, but for whether
// there are endpoints, which add changes for STATIC only.
func (e *entry) differs(other *entry) string {
	across := e.namespace != other.namespace
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
		// Whoever adds a name and an endpoint would pass for the service.
		return "has other subjectAltNames"
	}
	if why := portsDiffer(e.Ports, other.Ports); why != "" {
		return why
	}
	if e.WorkloadSelector != nil || other.WorkloadSelector != nil {
		switch {
		case !proto.Equal(e.WorkloadSelector, other.WorkloadSelector):
			return "has another workloadSelector"
		case across:
			return "selects workloads of another namespace"
		}
	}
	if e.Resolution == networking.ServiceEntry_DNS || e.Resolution == networking.ServiceEntry_DNS_ROUND_ROBIN {
		// Without endpoints the host itself is resolved; with some it no longer is.
		if (len(e.Endpoints) == 0) != (len(other.Endpoints) == 0) {
			return "does not agree on whether the host itself is resolved"
		}
	}
	// A service account is one of the ServiceEntry's namespace: moved to another one, it
	// would be another identity.
	if across && slices.ContainsFunc(other.Endpoints, func(ep *networking.WorkloadEntry) bool { return ep.GetServiceAccount() != "" }) {
		return "has endpoints with service accounts of another namespace"
	}
	return ""
}

// portsDiffer says in which port two entries differ, whatever the order.
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
	if t := p.GetTargetPort(); t != 0 {
		return t
	}
	return p.GetNumber()
}

// endpointKey is equal for endpoints that are the same one.
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

// resource builds the union as a resource in the place of the first copy.
func (e *entry) resource(first *mirror.Resource, typeURL string) (*mirror.Resource, error) {
	value, err := proto.MarshalOptions{Deterministic: true}.Marshal(e.ServiceEntry)
	if err != nil {
		return nil, err
	}
	spec := first.Spec()
	spec.Body = &anypb.Any{TypeUrl: typeURL, Value: value}
	return mirror.New(spec)
}
