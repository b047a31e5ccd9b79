package services

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"

	"meshrelay/federation"
	"meshrelay/internal/text"
	"meshrelay/internal/wire"
	"meshrelay/mirror"
)

// rule is a DestinationRule.
type rule struct {
	*mirror.Resource
	created  time.Time
	selector bool // only some clients get it
	decoded  *networking.DestinationRule
}

// scope is where DestinationRules for a host are: among those for clients of a namespace in it, or among those that it
// exports.
type scope struct {
	namespace string
	exported  bool
	host      string
}

// covering returns the hosts that cover a host, the most specific one first: itself, and * with each of its ends.
func covering(host string) []string {
	all, end := []string{host}, strings.TrimPrefix(host, federation.AnyHost)
	for i := len(host) - len(end); i <= len(end); i++ {
		all = append(all, federation.AnyHost+end[i:])
	}
	return all
}

// indexRules indexes DestinationRules.
func (w *world) indexRules(all []*mirror.Resource) {
	const selector = 5
	for _, r := range all {
		v, ns := visibility(r, w.mesh.GetDefaultDestinationRuleExportTo()), r.Namespace()
		own := v.Public || slices.Contains(v.Namespaces, ns)
		one := &rule{Resource: r, created: r.Metadata().CreateTime, selector: wire.Last(r.BodyValue(), selector) != nil}
		for _, h := range federation.Claims(r, federation.DefaultDomain) {
			// Clients in the root namespace get its exported rules last.
			if at := (scope{ns, false, h}); own && (ns != w.root || len(v.Namespaces) == 1) {
				w.rules[at] = append(w.rules[at], one)
			}
			if own && len(v.Namespaces) == 1 {
				continue
			}
			// A rule that the client does not see hides less specific ones, as in an istiod.
			at := scope{ns, true, h}
			w.rules[at] = slices.Grow(w.rules[at], 1)
			if v.Public || w.query.As != "" && w.sees(v) {
				w.rules[at] = append(w.rules[at], one)
			}
		}
	}
	for _, some := range w.rules {
		slices.SortFunc(some, func(a, b *rule) int {
			return cmp.Or(first(b.selector, a.selector), a.created.Compare(b.created), strings.Compare(a.Key().Name, b.Key().Name), compareResources(a.Resource, b.Resource))
		})
	}
}

// addSubsets adds the subsets of the DestinationRules that apply to a service, and tells what becomes of each rule. The
// client's own namespace comes first, then that of the service, then the root namespace.
func (w *world) addSubsets(s *Service) {
	client, before, told := cmp.Or(w.query.As, s.Namespace), "", map[mirror.Key]bool{}
	for _, level := range []scope{{namespace: client}, {namespace: s.Namespace, exported: true}, {namespace: w.root, exported: true}} {
		for _, level.host = range covering(s.Host) {
			some, known := w.rules[level]
			if known && before == "" && len(some) == 0 {
				break
			}
			for _, r := range some {
				switch {
				case !w.charge(1):
					return
				case told[r.Key()]:
					continue
				case before != "":
					s.Rules = append(s.Rules, applied(r.Resource, level.host, NotUsed, "%s", before))
				default:
					w.unite(s, level.host, r)
				}
				told[r.Key()] = true
			}
			if before == "" && len(some) > 0 {
				before = "rules for host " + level.host + " in namespace " + level.namespace + " come first"
				if w.query.Host == "" {
					return
				}
			}
		}
	}
}

// unite adds the subsets of a DestinationRule to those of rules of the same host and namespace. The first of a name counts.
func (w *world) unite(s *Service, host string, r *rule) {
	if r.decoded == nil {
		if r.decoded = (&networking.DestinationRule{}); proto.Unmarshal(r.BodyValue(), r.decoded) != nil {
			r.decoded.Reset() // never: a mirror.Resource decodes
		}
	}
	switch {
	case r.selector:
		s.Rules = append(s.Rules, applied(r.Resource, host, SomeClients, "clients of its namespace with the labels of its workloadSelector get it instead"))
		return
	case len(s.Rules) == 0:
		s.Rules = append(s.Rules, applied(r.Resource, host, Applies, "it is the first for host %s in namespace %s", host, r.Namespace()))
	default:
		s.Rules = append(s.Rules, applied(r.Resource, host, United, "its subsets are added; the trafficPolicy of the first rule that has one counts"))
	}
	for _, sub := range r.decoded.GetSubsets() {
		same := func(o Subset) bool { return o.Name == sub.GetName() }
		if w.charge(len(s.Subsets)+1) && !slices.ContainsFunc(s.Subsets, same) {
			s.Subsets = append(s.Subsets, Subset{sub.GetName(), sub.GetLabels(), w.count(s, sub.GetLabels())})
		}
	}
}

// count returns the number of endpoints that have all labels, or -1.
func (w *world) count(s *Service, labels map[string]string) (n int) {
	if !w.charge(len(s.Endpoints)) {
		return -1
	}
	for _, e := range s.Endpoints {
		n += flag(contains(e.Labels, labels))
	}
	return n
}

// routesOf tells what becomes of the VirtualServices that cover a service. The most specific host comes first, then those
// that only the client's namespace sees, those that some see, and those that everybody sees; then the oldest.
func (w *world) routesOf(s *Service) (told []Applied) {
	type route struct {
		*mirror.Resource
		host        string
		place, rank int
		created     time.Time
	}
	var all []route
	places := map[string]int{}
	for i, h := range covering(s.Host) {
		places[h] = i
	}
	client := cmp.Or(w.query.As, s.Namespace)
	for _, r := range w.routes {
		v := visibility(r, w.mesh.GetDefaultVirtualServiceExportTo())
		if !v.Public && !slices.Contains(v.Namespaces, client) {
			continue
		}
		best := route{Resource: r, place: len(places), rank: 1, created: r.Metadata().CreateTime}
		switch {
		case v.Public:
			best.rank = 2
		case len(v.Namespaces) == 1 && r.Namespace() == client:
			best.rank = 0
		}
		for _, h := range federation.Claims(r, federation.DefaultDomain) {
			if p, ok := places[h]; ok && p < best.place {
				best.place, best.host = p, h
			}
		}
		if best.host != "" {
			all = append(all, best)
		}
	}
	slices.SortFunc(all, func(a, b route) int {
		return cmp.Or(a.place-b.place, a.rank-b.rank, a.created.Compare(b.created), strings.Compare(a.Key().Name, b.Key().Name), compareResources(a.Resource, b.Resource))
	})
	before := ""
	for _, r := range all {
		switch {
		case !federation.OfMesh(r.Resource):
			told = append(told, applied(r.Resource, r.host, NotUsed, "it is for gateways, and mesh is none of them"))
		case before != "":
			told = append(told, applied(r.Resource, r.host, NotUsed, "%s comes first", before))
		default:
			before = text.Name(r.FullName())
			told = append(told, applied(r.Resource, r.host, Applies, "it is the first for host %s%s", r.host, w.reach(r.Resource)))
		}
	}
	return told
}

// reach tells if routes of a VirtualService are not for the client.
func (w *world) reach(r *mirror.Resource) string {
	var vs networking.VirtualService
	if proto.Unmarshal(r.BodyValue(), &vs) != nil {
		return "" // never: a mirror.Resource decodes
	}
	as, routes := w.query.As, len(vs.GetHttp())+len(vs.GetTls())+len(vs.GetTcp())
	if routes == 0 || slices.ContainsFunc(vs.GetHttp(), func(one *networking.HTTPRoute) bool { return reaches(one.GetMatch(), as) }) ||
		slices.ContainsFunc(vs.GetTls(), func(one *networking.TLSRoute) bool { return reaches(one.GetMatch(), as) }) ||
		slices.ContainsFunc(vs.GetTcp(), func(one *networking.TCPRoute) bool { return reaches(one.GetMatch(), as) }) {
		return ""
	}
	return "; none of its routes is for this client, which gets the default route"
}

// reaches reports whether a match of a route may fit clients in a namespace, by gateways and sourceNamespace. Their labels
// are not known.
func reaches[M interface {
	GetGateways() []string
	GetSourceNamespace() string
}](matches []M, client string) bool {
	return len(matches) == 0 || slices.ContainsFunc(matches, func(m M) bool {
		return (len(m.GetGateways()) == 0 || slices.Contains(m.GetGateways(), federation.MeshGateway)) &&
			(client == "" || m.GetSourceNamespace() == "" || m.GetSourceNamespace() == client)
	})
}
