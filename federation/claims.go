package federation

import (
	"net/netip"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"meshrelay/internal/wire"
	"meshrelay/mirror"
)

const (
	networkingIO = "networking.istio.io"
	gatewayAPI   = "gateway.networking.k8s.io"
	gatewayX     = "gateway.networking.x-k8s.io"

	// routeSemantics is the annotation of a VirtualService that an istiod made of routes of
	// the Gateway API. Their hosts are not completed (model.UseGatewaySemantics).
	routeSemantics  = "internal.istio.io/route-semantics"
	gatewaySemantic = "gateway"
)

// AnyHost is the host that covers all hosts.
const AnyHost = "*"

// IsShort reports whether istiod completes a host (model.ResolveShortnameToFQDN).
func IsShort(h string) bool {
	if h == "" || h == AnyHost || strings.IndexByte(h, '.') >= 0 {
		return false
	}
	if strings.IndexByte(h, ':') < 0 {
		return true
	}
	_, err := netip.ParseAddr(h)
	return err != nil
}

// CompletesHosts reports whether istiod completes the short hosts of a VirtualService or DestinationRule. It reads the
// annotation of VirtualServices only.
func CompletesHosts(r *mirror.Resource) bool {
	return r.Kind() != VirtualService || !r.HasAnnotation(routeSemantics) || r.Metadata().Annotations[routeSemantics] != gatewaySemantic
}

// claimed tells where the body of a kind has the hosts that it claims: in the field texts of the body, or in the
// field texts of the messages in the field inner.
type claimed struct {
	inner, texts protowire.Number
	short        bool // istiod completes short hosts
	scoped       bool // each text may begin with "namespace/"
	closes       bool // the namespace ~ and no text claim nothing; else a message without texts claims all hosts
}

var claims = map[mirror.Kind]claimed{
	ServiceEntry:                             {texts: 1},
	VirtualService:                           {texts: 1, short: true},
	{Group: networkingIO, Kind: "Gateway"}:   {inner: 1, texts: 2, scoped: true},
	{Group: networkingIO, Kind: "Sidecar"}:   {inner: 3, texts: 4, scoped: true, closes: true},
	DestinationRule:                          {texts: 1, short: true},
	{Group: gatewayAPI, Kind: "HTTPRoute"}:   {},
	{Group: gatewayAPI, Kind: "GRPCRoute"}:   {},
	{Group: gatewayAPI, Kind: "TLSRoute"}:    {},
	{Group: gatewayAPI, Kind: "TCPRoute"}:    {},
	{Group: gatewayAPI, Kind: "UDPRoute"}:    {},
	{Group: gatewayAPI, Kind: "Gateway"}:     {},
	{Group: gatewayAPI, Kind: "ListenerSet"}: {},
	{Group: gatewayX, Kind: "XListenerSet"}:  {},
}

// Routing are the kinds that decide where the traffic of a host goes: VirtualServices, and the routes of the Gateway API.
var Routing = []mirror.Kind{
	VirtualService, {Group: gatewayAPI, Kind: "HTTPRoute"}, {Group: gatewayAPI, Kind: "GRPCRoute"},
	{Group: gatewayAPI, Kind: "TLSRoute"}, {Group: gatewayAPI, Kind: "TCPRoute"}, {Group: gatewayAPI, Kind: "UDPRoute"},
}

// Owned are the kinds whose hosts belong to one resource or upstream.
var Owned = append([]mirror.Kind{ServiceEntry, DestinationRule}, Routing...)

// Claims returns the hosts that a resource claims, in lower case, sorted and each once. Each is a DNS name, *, or *
// and the end of the names that it means. domain is the cluster domain that completes short hosts.
//
// A Sidecar claims what its egress lets in: its namespace loses other hosts. A VirtualService without hosts is a
// delegate and claims nothing. A route claims what its parents stand for: its hostnames where one is a gateway, the host
// of a Service, and *, because nothing is known, where another parent is named or a gateway has the hosts.
func Claims(r *mirror.Resource, domain string) (hosts []string) {
	return ClaimsUnder(r, domain, []string{AnyHost}, nil)
}

// ClaimsUnder is Claims where entries, unless it is nil, returns the hosts of a ServiceEntry that is a parent of a route, and
// unknown are those of other parents, and those that a gateway gives a route without hostnames.
func ClaimsUnder(r *mirror.Resource, domain string, unknown []string, entries func(mirror.Key) []string) (hosts []string) {
	where, ok := claims[r.Kind()]
	switch {
	case !ok:
		return nil
	case where.texts == 0:
		hosts = claimsOfStruct(r, domain, unknown, entries)
	default:
		hosts = where.read(r.BodyValue())
	}
	complete := where.short && CompletesHosts(r)
	for i, h := range hosts {
		if complete && IsShort(h) {
			h += "." + r.Namespace() + ".svc." + domain
		}
		hosts[i] = NormalHost(h)
	}
	slices.Sort(hosts)
	return slices.Compact(hosts)
}

// exports has the number of the field exportTo of a body.
var exports = map[mirror.Kind]protowire.Number{ServiceEntry: 7, VirtualService: 6, DestinationRule: 4}

// The numbers of workloadSelector of a DestinationRule, and of gateways of a VirtualService.
const (
	ruleSelector    = 5
	serviceGateways = 2
)

// ExportTo returns the field exportTo of a ServiceEntry, VirtualService or DestinationRule, as istiod reads it: that of a
// DestinationRule with a workloadSelector is ".", and beside other namespaces "~" means nothing there.
func ExportTo(r *mirror.Resource) []string {
	to := wire.Texts(r.BodyValue(), exports[r.Kind()])
	if r.Kind() != DestinationRule {
		return to
	}
	if wire.Last(r.BodyValue(), ruleSelector) != nil {
		return []string{"."}
	}
	if others := slices.DeleteFunc(slices.Clone(to), func(t string) bool { return t == "~" }); len(others) > 0 {
		return others
	}
	return to
}

// OfMesh reports whether sidecars get a VirtualService: it has no gateways, or "mesh" is one.
func OfMesh(r *mirror.Resource) bool {
	gateways := wire.Texts(r.BodyValue(), serviceGateways)
	return len(gateways) == 0 || slices.Contains(gateways, MeshGateway)
}

// NormalHost returns a host as DNS compares it: in lower case, without a dot at the end.
func NormalHost(h string) string { return strings.TrimSuffix(strings.ToLower(h), ".") }

// read reads the hosts of a body without decoding it.
func (w claimed) read(body []byte) (hosts []string) {
	c := wire.Fields(body)
	for c.Next() {
		switch {
		case w.inner != 0 && c.Bytes(w.inner):
			of := claimed{texts: w.texts, scoped: w.scoped, closes: w.closes}.read(c.Value())
			if len(of) == 0 && !w.closes {
				of = []string{AnyHost}
			}
			hosts = append(hosts, of...)
		case w.inner == 0 && c.Bytes(w.texts):
			host := string(c.Value())
			if namespace, name, ok := strings.Cut(host, "/"); ok && w.scoped {
				if host = name; namespace == "~" && w.closes {
					continue
				}
			}
			hosts = append(hosts, host)
		}
	}
	return hosts
}

// maxParents is how many parents a route may have, as in the Gateway API. Others are not known.
const maxParents = 32

// gateways are the kinds of parents that give a route its hostnames.
var gateways = []mirror.Kind{{Group: gatewayAPI, Kind: "Gateway"}, {Group: gatewayAPI, Kind: "ListenerSet"}, {Group: gatewayX, Kind: "XListenerSet"}}

// claimsOfStruct returns the hosts of a kind of the Gateway API.
func claimsOfStruct(r *mirror.Resource, domain string, unknown []string, entries func(mirror.Key) []string) (hosts []string) {
	var spec structpb.Struct
	if proto.Unmarshal(r.BodyValue(), &spec) != nil {
		return []string{AnyHost} // never: a mirror.Resource decodes
	}
	if !strings.HasSuffix(r.Kind().Kind, "Route") {
		for _, l := range spec.GetFields()["listeners"].GetListValue().GetValues() {
			hosts = append(hosts, textOr(l.GetStructValue(), "hostname", AnyHost))
		}
		return hosts
	}
	refs := spec.GetFields()["parentRefs"].GetListValue().GetValues()
	ofGateway := len(refs) == 0
	for _, p := range refs[:min(len(refs), maxParents)] {
		ref := p.GetStructValue()
		key := mirror.Key{
			Kind:      mirror.Kind{Group: textOr(ref, "group", gatewayAPI), Kind: textOr(ref, "kind", "Gateway")},
			Namespace: textOr(ref, "namespace", r.Namespace()), Name: textOr(ref, "name", ""),
		}
		switch {
		case slices.Contains(gateways, key.Kind):
			ofGateway = true
		case key.Kind == mirror.Kind{Kind: "Service"}:
			hosts = append(hosts, key.Name+"."+key.Namespace+".svc."+domain)
		case key.Kind == ServiceEntry && entries != nil:
			hosts = append(hosts, entries(key)...)
		default:
			hosts = append(hosts, unknown...)
		}
	}
	names := spec.GetFields()["hostnames"].GetListValue().GetValues()
	for _, h := range names {
		if ofGateway {
			hosts = append(hosts, h.GetStringValue())
		}
	}
	if ofGateway && len(names) == 0 || len(refs) > maxParents {
		hosts = append(hosts, unknown...)
	}
	return hosts
}

// textOr returns a text in a Struct, or another where the Struct does not have it.
func textOr(s *structpb.Struct, field, other string) string {
	if v, ok := s.GetFields()[field].GetKind().(*structpb.Value_StringValue); ok && (v.StringValue != "" || field == "group") {
		return v.StringValue
	}
	return other
}
