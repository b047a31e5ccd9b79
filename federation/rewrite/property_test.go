package rewrite

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	networking "istio.io/api/networking/v1alpha3"
	security "istio.io/api/security/v1beta1"
	"pgregory.net/rapid"

	"meshrelay/mirror"
)

// The names that istiod makes, written down a second time: from
// model.ResolveShortnameToFQDN and model.resolveGatewayName.

// istiodHost is the host that an istiod makes of h. domain is empty for resources over MCP.
func istiodHost(h, ns, domain string) string {
	if h == "" || h == "*" || strings.Contains(h, ".") {
		return h
	}
	if domain == "" {
		return h + "." + ns
	}
	return h + "." + ns + ".svc." + domain
}

func istiodGateway(g, ns string) string {
	if n, name, ok := strings.Cut(g, "/"); ok {
		if n == "." {
			n = ns
		}
		return n + "/" + name
	}
	parts := strings.SplitN(g, ".", 3)
	if len(parts) == 1 {
		return ns + "/" + g
	}
	return parts[1] + "/" + parts[0]
}

func istiodHostMatches(pattern, h string) bool {
	if rest, ok := strings.CutPrefix(pattern, "*"); ok {
		return strings.HasSuffix(h, rest)
	}
	return pattern == h
}

// edges are the references that resolve among configs, for an istiod that gives them a
// domain: "i -what-> j", by index.
func edges(configs []*mirror.Resource, domain string) map[string]bool {
	out := map[string]bool{}
	body := make([]proto.Message, len(configs))
	for i, r := range configs {
		info, _ := mirror.LookupKind(r.Kind())
		body[i] = info.NewBody()
		if err := proto.Unmarshal(r.Body().GetValue(), body[i]); err != nil {
			panic(err)
		}
	}
	each := func(f func(j int, k mirror.Key, b proto.Message) bool, format string, args ...any) {
		for j, r := range configs {
			if f(j, r.Key(), body[j]) {
				out[fmt.Sprintf(format, args...)+fmt.Sprintf(" -> %d", j)] = true
			}
		}
	}
	host := func(i int, what, h string) {
		each(func(_ int, _ mirror.Key, b proto.Message) bool {
			se, ok := b.(*networking.ServiceEntry)
			if !ok {
				return false
			}
			for _, sh := range se.Hosts {
				if istiodHostMatches(sh, h) {
					return true
				}
			}
			return false
		}, "%d %s", i, what)
	}
	gateway := func(i int, what, g string) {
		each(func(_ int, k mirror.Key, b proto.Message) bool {
			_, ok := b.(*networking.Gateway)
			return ok && k.Namespace+"/"+k.Name == g
		}, "%d %s", i, what)
	}
	for i, r := range configs {
		ns := r.Namespace()
		switch b := body[i].(type) {
		case *networking.VirtualService:
			for _, h := range b.Hosts {
				host(i, "vs.hosts", istiodHost(h, ns, domain))
			}
			for _, g := range b.Gateways {
				gateway(i, "vs.gateways", istiodGateway(g, ns))
			}
			for n, h := range b.Http {
				for _, d := range h.Route {
					host(i, fmt.Sprintf("vs.http[%d].route", n), istiodHost(d.Destination.Host, ns, domain))
				}
				for _, m := range h.Match {
					for _, g := range m.Gateways {
						gateway(i, "vs.match", istiodGateway(g, ns))
					}
				}
				if h.Delegate != nil {
					dns := h.Delegate.Namespace
					if dns == "" {
						dns = ns
					}
					each(func(_ int, k mirror.Key, b proto.Message) bool {
						_, ok := b.(*networking.VirtualService)
						return ok && k.Namespace == dns && k.Name == h.Delegate.Name
					}, "%d delegate", i)
				}
			}
			for _, e := range b.ExportTo {
				if e == "." {
					e = ns
				}
				for j, other := range configs {
					if e == "*" || e == other.Namespace() {
						out[fmt.Sprintf("%d visible to %d", i, j)] = true
					}
				}
			}
		case *networking.Gateway:
			for j, other := range configs {
				vs, ok := body[j].(*networking.VirtualService)
				if !ok {
					continue
				}
				for _, server := range b.Servers[0].Hosts {
					from, pattern, _ := strings.Cut(server, "/")
					if from == "." {
						from = ns
					}
					for _, h := range vs.Hosts {
						if (from == "*" || from == other.Namespace()) && istiodHostMatches(pattern, istiodHost(h, other.Namespace(), domain)) {
							out[fmt.Sprintf("%d binds a host of %d", i, j)] = true
						}
					}
				}
			}
		case *networking.DestinationRule:
			host(i, "dr.host", istiodHost(b.Host, ns, domain))
		case *networking.Sidecar:
			for _, e := range b.Egress {
				for _, h := range e.Hosts {
					from, pattern, _ := strings.Cut(h, "/")
					if from == "." {
						from = ns
					}
					for j, r := range configs {
						se, ok := body[j].(*networking.ServiceEntry)
						if !ok || from != "*" && from != r.Namespace() {
							continue
						}
						for _, sh := range se.Hosts {
							if istiodHostMatches(pattern, sh) {
								out[fmt.Sprintf("%d imports %d", i, j)] = true
							}
						}
					}
				}
			}
		case *security.AuthorizationPolicy:
			for _, rule := range b.Rules {
				for _, from := range rule.From {
					for _, p := range from.Source.Namespaces {
						for j, other := range configs {
							if globMatches(p, other.Namespace()) {
								out[fmt.Sprintf("%d admits namespace of %d", i, j)] = true
							}
						}
					}
					for _, p := range from.Source.Principals {
						for j, other := range configs {
							if globMatches(p, "td/ns/"+other.Namespace()+"/sa/x") {
								out[fmt.Sprintf("%d admits %d", i, j)] = true
							}
						}
					}
				}
			}
		}
	}
	return out
}

// globMatches is the match of AuthorizationPolicies: exact, prefix or suffix.
func globMatches(p, v string) bool {
	switch {
	case p == "*":
		return true
	case strings.HasPrefix(p, "*"):
		return strings.HasSuffix(v, p[1:])
	case strings.HasSuffix(p, "*"):
		return strings.HasPrefix(v, p[:len(p)-1])
	}
	return p == v
}

func drawRules(t *rapid.T) Rules {
	var r Rules
	ns := rapid.SampledFrom([]string{"a", "b", "c", "ab", "x", "y"})
	r.Namespaces = rapid.MapOfN(ns, ns, 0, 3).Draw(t, "namespaces")
	r.NamespacePrefix = rapid.SampledFrom([]string{"", "east-", "a"}).Draw(t, "prefix")
	r.NamePrefix = rapid.SampledFrom([]string{"", "e-"}).Draw(t, "before")
	r.Hosts = rapid.MapOfN(rapid.SampledFrom([]string{"cluster.local", "corp", "x.corp", "svc.cluster.local", "b.svc.cluster.local"}),
		rapid.SampledFrom([]string{"east.example", "e", "corp.e", "cluster.local"}), 0, 3).Draw(t, "hosts")
	return r
}

func drawConfigs(t *rapid.T) []*mirror.Resource {
	ns := rapid.SampledFrom([]string{"a", "b", "c", "ab"})
	name := rapid.SampledFrom([]string{"r", "s"})
	fqdn := rapid.Custom(func(t *rapid.T) string {
		switch rapid.IntRange(0, 3).Draw(t, "form") {
		case 0:
			return name.Draw(t, "name") + ".x.corp"
		case 1:
			return name.Draw(t, "name") + ".corp"
		}
		return name.Draw(t, "name") + "." + ns.Draw(t, "ns") + ".svc.cluster.local"
	})
	anyHost := rapid.OneOf(fqdn, name)
	gateway := rapid.Custom(func(t *rapid.T) string {
		n := name.Draw(t, "name")
		switch rapid.IntRange(0, 5).Draw(t, "form") {
		case 0:
			return n
		case 1:
			return "./" + n
		case 2:
			return n + "." + ns.Draw(t, "ns")
		case 3:
			return n + "." + ns.Draw(t, "ns") + ".svc.cluster.local"
		case 4:
			return "mesh"
		}
		return ns.Draw(t, "ns") + "/" + n
	})
	var out []*mirror.Resource
	seen := map[mirror.Key]bool{}
	for range rapid.IntRange(2, 10).Draw(t, "configs") {
		var body proto.Message
		var kind string
		switch rapid.IntRange(0, 5).Draw(t, "kind") {
		case 0:
			kind, body = "ServiceEntry", &networking.ServiceEntry{Hosts: rapid.SliceOfN(fqdn, 1, 2).Draw(t, "hosts")}
		case 1:
			kind, body = "Gateway", &networking.Gateway{Servers: []*networking.Server{{Hosts: []string{
				rapid.OneOf(ns, rapid.SampledFrom([]string{".", "*"})).Draw(t, "server ns") + "/" +
					rapid.OneOf(fqdn, rapid.SampledFrom([]string{"*", "*.corp", "*.b.svc.cluster.local", "*.cluster.local", "*.local"})).Draw(t, "server"),
			}}}}
		case 2:
			vs := &networking.VirtualService{
				Hosts:    rapid.SliceOfN(anyHost, 1, 2).Draw(t, "hosts"),
				Gateways: rapid.SliceOfN(gateway, 0, 2).Draw(t, "gateways"),
				ExportTo: rapid.SliceOfN(rapid.OneOf(ns, rapid.Just(".")), 0, 2).Draw(t, "exportTo"),
				Http: []*networking.HTTPRoute{
					{
						Route: []*networking.HTTPRouteDestination{{Destination: &networking.Destination{Host: anyHost.Draw(t, "destination")}}},
						Match: []*networking.HTTPMatchRequest{{Gateways: rapid.SliceOfN(gateway, 0, 2).Draw(t, "match")}},
					},
					{Delegate: &networking.Delegate{Name: name.Draw(t, "delegate"), Namespace: rapid.OneOf(ns, rapid.Just("")).Draw(t, "delegate ns")}},
				},
			}
			kind, body = "VirtualService", vs
		case 3:
			kind, body = "DestinationRule", &networking.DestinationRule{Host: anyHost.Draw(t, "host")}
		case 4:
			h := rapid.OneOf(fqdn, rapid.SampledFrom([]string{"*", "*.corp", "*.b.svc.cluster.local", "*.cluster.local"})).Draw(t, "egress")
			kind, body = "Sidecar", &networking.Sidecar{Egress: []*networking.IstioEgressListener{{Hosts: []string{rapid.OneOf(ns, rapid.SampledFrom([]string{".", "*", "~"})).Draw(t, "from") + "/" + h}}}}
		case 5:
			n := rapid.OneOf(ns, rapid.SampledFrom([]string{"*", "a*", "*b"})).Draw(t, "namespace")
			p := rapid.SampledFrom([]string{"td/ns/a/sa/x", "*/ns/b/sa/x", "td/ns/a*", "td/ns/c/*", "td/*", "*ns/a/sa/x"}).Draw(t, "principal")
			kind, body = "AuthorizationPolicy", &security.AuthorizationPolicy{Rules: []*security.Rule{{From: []*security.Rule_From{{Source: &security.Source{Namespaces: []string{n}, Principals: []string{p}}}}}}}
		}
		group := "networking.istio.io"
		if kind == "AuthorizationPolicy" {
			group = "security.istio.io"
		}
		key := mirror.Key{Kind: mirror.Kind{Group: group, Kind: kind}, Namespace: ns.Draw(t, "config ns"), Name: name.Draw(t, "config name")}
		if seen[key] {
			continue
		}
		seen[key] = true
		b, err := anypb.New(body)
		if err != nil {
			t.Fatal(err)
		}
		r, err := mirror.New(mirror.Spec{Key: key, Source: "east", Body: b})
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, r)
	}
	return out
}

// References that resolve among the configs of a source resolve after the rewrite, and a second
// rewrite of the same gives the same. Where short hosts are completed, they do so also for an
// istiod that has no domain for the configs that it receives.
func TestReferencesThatResolveStillDoAfterRewriting_C23(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rules := drawRules(t)
		domain := "cluster.local"
		if rapid.Bool().Draw(t, "complete") {
			rules.ShortHosts = ShortHostsComplete
			domain = rapid.SampledFrom([]string{"", "cluster.local"}).Draw(t, "domain of the reader")
		}
		w, err := New(rules)
		if err != nil {
			t.Fatal(err)
		}
		before := drawConfigs(t)
		after := make([]*mirror.Resource, len(before))
		for i, r := range before {
			if after[i], err = w.Rewrite(r); err != nil {
				t.Fatal(err)
			}
			if again, _ := w.Rewrite(r); !again.Equal(after[i]) {
				t.Fatalf("%s: two results", r.Key())
			}
			if after[i].Key() != w.Key(r.Key()) {
				t.Fatalf("%s landed at %s, Key returns %s", r.Key(), after[i].Key(), w.Key(r.Key()))
			}
		}
		have := edges(after, domain)
		for e := range edges(before, "cluster.local") {
			if !have[e] {
				for i := range before {
					t.Logf("%d %s %v\n   %s %v", i, before[i].Key(), before[i].Body(), after[i].Key(), after[i].Body())
				}
				t.Fatalf("%s does not resolve any more", e)
			}
		}
	})
}
