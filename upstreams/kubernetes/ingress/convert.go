package ingress

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"

	"meshrelay/federation"
	"meshrelay/internal/text"
	"meshrelay/mirror"
)

// Output is a Gateway or a VirtualService, made of Ingresses.
type Output struct {
	Key         mirror.Key
	Annotations map[string]string
	// Body is a *networking.Gateway or a *networking.VirtualService, nil for a removed output, which has only the Key.
	Body proto.Message
	// Origins are its Ingresses, at least one, in their order.
	Origins []Name
}

// anyHost is the host of rules without a host.
const anyHost = "*"

var (
	gatewayKind = mirror.Kind{Group: "networking.istio.io", Kind: "Gateway"}
	serviceKind = federation.VirtualService
)

func (n Name) key(kind mirror.Kind) mirror.Key {
	return mirror.Key{Kind: kind, Namespace: n.Namespace, Name: n.Name}
}

// gatewayName returns the name of the Gateway of an Ingress.
func (o *Options) gatewayName(ing Name) Name {
	return Name{o.Namespace, ing.Name + "-" + generatedName + "-" + ing.Namespace}
}

// serviceName returns the name of a VirtualService. The Ingress is the one with the first rule for the host.
func (o *Options) serviceName(ing *Ingress, rule int) Name {
	host := ing.Spec.Rules[rule].Host
	if host == "" && !o.Older {
		host = anyHost
	}
	name := strings.ReplaceAll(host, ".", "-") + "-" + ing.Name.Name + "-" + generatedName
	return Name{ing.Namespace, name}
}

// gateway returns the Gateway of an Ingress.
func (o *Options) gateway(ing *Ingress) *Output {
	g := &networking.Gateway{Selector: o.selector()}
	for i, tls := range ing.Spec.TLS {
		if tls.Secret == "" {
			continue
		}
		hosts := tls.Hosts
		if len(hosts) == 0 {
			hosts = []string{anyHost}
		}
		g.Servers = append(g.Servers, &networking.Server{
			Port:  &networking.Port{Number: 443, Protocol: "HTTPS", Name: fmt.Sprintf("https-443-ingress-%s-%s-%d", ing.Name.Name, ing.Namespace, i)},
			Hosts: hosts,
			Tls:   &networking.ServerTLSSettings{Mode: networking.ServerTLSSettings_SIMPLE, CredentialName: tls.Secret},
		})
	}
	g.Servers = append(g.Servers, &networking.Server{
		Port:  &networking.Port{Number: 80, Protocol: "HTTP", Name: fmt.Sprintf("http-80-ingress-%s-%s", ing.Name.Name, ing.Namespace)},
		Hosts: []string{anyHost},
	})
	return &Output{Key: o.gatewayName(ing.Name).key(gatewayKind), Body: g, Origins: []Name{ing.Name}}
}

// part is the part of an Ingress that is about one host. rules are the indexes of its rules for the host, at
// least one.
type part struct {
	*Ingress
	rules []int
}

// virtualService returns the VirtualService of a host, made of at least one part.
func (o *Options) virtualService(name Name, host string, parts []part, port portOf) *Output {
	vs := &networking.VirtualService{Hosts: []string{host}}
	out := &Output{Key: name.key(serviceKind), Body: vs, Annotations: map[string]string{"internal.istio.io/route-semantics": "ingress"}}
	for i, p := range parts {
		out.Origins = append(out.Origins, p.Name)
		if i == 0 || p.secures(host) {
			vs.Gateways = append(vs.Gateways, o.gatewayName(p.Name).String())
		}
	}
	for _, r := range o.routes(parts, port, nil) {
		vs.Http = append(vs.Http, r.route)
	}
	return out
}

// secures reports whether the Gateway of the Ingress serves a host over HTTPS, or a host that it includes.
func (i *Ingress) secures(host string) bool {
	return slices.ContainsFunc(i.Spec.TLS, func(t TLS) bool {
		return t.Secret != "" && (len(t.Hosts) == 0 || slices.ContainsFunc(t.Hosts, func(h string) bool { return covers(h, host) || covers(host, h) }))
	})
}

// covers reports whether a host is equal to another or includes it. A host may be "*" or begin with "*.".
func covers(host, other string) bool {
	rest, wild := strings.CutPrefix(host, "*")
	return host == other || wild && strings.HasSuffix(other, rest)
}

// portOf returns the number of a port of a Service.
type portOf func(service Name, port string) (number int32, ok bool)

// route is a route of a VirtualService, with its path.
type route struct {
	route *networking.HTTPRoute
	match *networking.StringMatch // nil matches everything
	from  Name
	field string
}

// routes returns the routes of a host in the order of matching. It calls report, unless nil, for each path
// that it leaves out.
func (o *Options) routes(parts []part, port portOf, report func(ing Name, field, reason string)) (all []route) {
	for _, p := range parts {
		for _, i := range p.rules {
			for j, path := range p.Spec.Rules[i].HTTP.Paths {
				d, err := o.destination(p.Namespace, path.Backend.Service, port)
				if err == nil {
					match := match(path)
					all = append(all, route{routeTo(d, match), match, p.Name, pathField(report, i, j)})
				} else if report != nil {
					report(p.Name, pathField(report, i, j)+".backend", err.Error())
				}
			}
		}
	}
	slices.SortStableFunc(all, func(a, b route) int {
		aLen, aExact := rank(a.match)
		bLen, bExact := rank(b.match)
		return cmp.Or(bLen-aLen, bExact-aExact)
	})
	return all
}

// pathField returns the name of a path's field, for reports.
func pathField(report func(Name, string, string), rule, path int) string {
	if report == nil {
		return ""
	}
	return fmt.Sprintf("spec.rules[%d].http.paths[%d]", rule, path)
}

func routeTo(d *networking.Destination, match *networking.StringMatch) *networking.HTTPRoute {
	r := &networking.HTTPRoute{Route: []*networking.HTTPRouteDestination{{Destination: d, Weight: 100}}}
	if match != nil {
		r.Match = []*networking.HTTPMatchRequest{{Uri: match}}
	}
	return r
}

// destination returns the destination for a backend of an Ingress in a namespace.
func (o *Options) destination(namespace string, b *ServiceBackend, port portOf) (*networking.Destination, error) {
	if b == nil {
		return nil, errors.New("not converted: it is not a Service")
	}
	number := b.Port.Number
	if number <= 0 {
		var ok bool
		if number, ok = port(Name{namespace, b.Name}, b.Port.Name); !ok {
			return nil, fmt.Errorf("not converted: there is no Service %s with a port %q", Name{namespace, text.Abbreviate(b.Name)}, text.Abbreviate(b.Port.Name))
		}
	}
	return &networking.Destination{
		Host: b.Name + "." + namespace + ".svc." + o.Domain,
		Port: &networking.PortSelector{Number: uint32(number)},
	}, nil
}

// match returns the match for a path, nil if it matches everything.
func match(p Path) *networking.StringMatch {
	exact := func(s string) *networking.StringMatch {
		return &networking.StringMatch{MatchType: &networking.StringMatch_Exact{Exact: s}}
	}
	prefix := func(s string) *networking.StringMatch {
		return &networking.StringMatch{MatchType: &networking.StringMatch_Prefix{Prefix: s}}
	}
	switch p.Type {
	case "Exact":
		return exact(p.Path)
	case "Prefix":
		return prefix(p.Path)
	}
	switch p.Path {
	case "", "*", "/*", ".*":
		return nil
	}
	for _, end := range []string{".*", "/*"} {
		if before, ok := strings.CutSuffix(p.Path, end); ok {
			return prefix(before)
		}
	}
	return exact(p.Path)
}

// rank returns the length of a match, and 1 if the match is exact.
func rank(m *networking.StringMatch) (length, exact int) {
	if e, ok := m.GetMatchType().(*networking.StringMatch_Exact); ok {
		return len(e.Exact), 1
	}
	return len(m.GetPrefix()), 0
}
