package services

import (
	"testing"

	meshconfig "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"
	selectorpb "istio.io/api/type/v1beta1"
)

// dr returns a DestinationRule with a subset of its name.
func dr(namespace, name, host string, age int, change func(*networking.DestinationRule)) one {
	body := &networking.DestinationRule{Host: host, Subsets: []*networking.Subset{{Name: name, Labels: labelsOf("v=" + name)}}}
	if change != nil {
		change(body)
	}
	return one{namespace: namespace, name: name, age: age, body: body}
}

func vs(namespace, name, host string, age int, change func(*networking.VirtualService)) one {
	body := &networking.VirtualService{Hosts: []string{host}}
	if change != nil {
		change(body)
	}
	return one{namespace: namespace, name: name, age: age, body: body}
}

// TestTheDestinationRuleOfAService is that of the client's namespace, else of the service's, else of the root namespace.
// In each, the most specific host counts, and a rule that the client does not see hides less specific ones there.
func TestTheDestinationRuleOfAService(t *testing.T) {
	to := func(to ...string) func(*networking.DestinationRule) {
		return func(r *networking.DestinationRule) { r.ExportTo = to }
	}
	selector := func(r *networking.DestinationRule) {
		r.WorkloadSelector = &selectorpb.WorkloadSelector{MatchLabels: labelsOf("a=b")}
	}
	for name, tc := range map[string]struct {
		as    string
		rules []one
		mesh  *meshconfig.MeshConfig
		want  []string
	}{
		"of the client":                         {"web", []one{dr("web", "a", host, 0, nil), dr("shop", "b", host, 9, nil), dr("istio-system", "c", host, 9, nil)}, nil, []string{"istio-system/c not used", "shop/b not used", "web/a applies"}},
		"private, of the client":                {"web", []one{dr("web", "a", host, 0, to(".")), dr("shop", "b", host, 9, nil)}, nil, []string{"shop/b not used", "web/a applies"}},
		"of the client, for others only":        {"web", []one{dr("web", "a", host, 0, to("x")), dr("shop", "b", host, 9, nil)}, nil, []string{"shop/b applies"}},
		"of the service":                        {"web", []one{dr("shop", "b", host, 0, nil), dr("istio-system", "c", host, 9, nil)}, nil, []string{"istio-system/c not used", "shop/b applies"}},
		"of the service, to the client":         {"web", []one{dr("shop", "b", host, 0, to("web"))}, nil, []string{"shop/b applies"}},
		"of the service, not to the client":     {"web", []one{dr("shop", "b", host, 0, to("x")), dr("istio-system", "c", host, 9, nil)}, nil, []string{"istio-system/c applies"}},
		"private, of the service":               {"web", []one{dr("shop", "b", host, 0, to(".")), dr("shop", "d", "*.cluster.local", 9, nil)}, nil, []string{"shop/d applies"}},
		"hidden, of the service":                {"web", []one{dr("shop", "b", host, 0, to("x")), dr("shop", "d", "*.cluster.local", 9, nil)}, nil, nil},
		"of the root":                           {"web", []one{dr("istio-system", "c", "*.cluster.local", 0, nil)}, nil, []string{"istio-system/c applies"}},
		"of another root":                       {"web", []one{dr("istio-system", "c", host, 0, nil), dr("root", "d", host, 0, nil)}, &meshconfig.MeshConfig{RootNamespace: "root"}, []string{"root/d applies"}},
		"of others":                             {"web", []one{dr("x", "c", host, 0, nil)}, nil, nil},
		"of the service before the client root": {"istio-system", []one{dr("istio-system", "c", host, 0, nil), dr("shop", "b", host, 0, nil)}, nil, []string{"istio-system/c not used", "shop/b applies"}},
		"private of the client root":            {"istio-system", []one{dr("istio-system", "c", host, 0, to(".")), dr("shop", "b", host, 0, nil)}, nil, []string{"istio-system/c applies", "shop/b not used"}},
		"a short host is of its namespace":      {"web", []one{dr("shop", "b", "db", 0, nil), dr("web", "a", "db", 9, nil)}, nil, []string{"shop/b applies"}},
		"the longest host":                      {"web", []one{dr("shop", "a", "*.shop.svc.cluster.local", 0, nil), dr("shop", "b", "*.cluster.local", 9, nil), dr("shop", "c", "*", 9, nil)}, nil, []string{"shop/a applies", "shop/b not used", "shop/c not used"}},
		"the default of the mesh":               {"web", []one{dr("shop", "b", host, 0, nil)}, &meshconfig.MeshConfig{DefaultDestinationRuleExportTo: []string{"."}}, nil},
		"without a client":                      {"", []one{dr("shop", "b", host, 0, to(".")), dr("istio-system", "c", host, 9, nil)}, nil, []string{"istio-system/c not used", "shop/b applies"}},
		"several":                               {"web", []one{dr("shop", "a", host, 1, nil), dr("shop", "b", host, 9, nil)}, nil, []string{"shop/a united", "shop/b applies"}},
		"with a selector":                       {"shop", []one{dr("shop", "a", host, 1, nil), dr("shop", "b", host, 9, selector)}, nil, []string{"shop/a applies", "shop/b some clients"}},
		"with a selector, elsewhere":            {"web", []one{dr("shop", "b", host, 9, selector)}, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			all := append(tc.rules, one{namespace: "shop", name: "db", body: se(nil, "10.0.0.1")})
			if tc.mesh != nil {
				all = append(all, one{body: tc.mesh})
			}
			equal(t, "rules", outcomes(find(t, input(t, all...), Query{Host: host, As: tc.as}).Rules), tc.want...)
		})
	}
}

// TestSubsetsOfUnitedRules: the first of a name counts, rules with a selector add none, labels of the topology count.
func TestSubsetsOfUnitedRules(t *testing.T) {
	also := func(subsets ...*networking.Subset) func(*networking.DestinationRule) {
		return func(r *networking.DestinationRule) { r.Subsets = append(r.Subsets, subsets...) }
	}
	body := se(func(s *networking.ServiceEntry) {
		s.Endpoints[0].Labels, s.Endpoints[0].Locality = labelsOf("v=a"), "r/z"
		s.Endpoints[1].Labels = labelsOf("v=b")
	}, "10.0.0.1", "10.0.0.2")
	in := input(t, one{namespace: "shop", name: "db", body: body},
		dr("shop", "a", host, 9, also(&networking.Subset{Name: "both", Labels: labelsOf("v=a")})),
		dr("shop", "b", host, 1, also(&networking.Subset{Name: "both"}, &networking.Subset{Name: "zone", Labels: labelsOf("topology.kubernetes.io/zone=z")}, &networking.Subset{Name: "all"})),
		dr("shop", "c", host, 99, func(r *networking.DestinationRule) {
			r.WorkloadSelector = &selectorpb.WorkloadSelector{MatchLabels: labelsOf("x=y")}
		}))
	got := map[string]int{}
	for _, s := range find(t, in, Query{Host: host}).Subsets {
		got[s.Name] = s.Endpoints
	}
	if len(got) != 5 || got["a"] != 1 || got["both"] != 1 || got["b"] != 1 || got["zone"] != 1 || got["all"] != 2 {
		t.Errorf("subsets %v", got)
	}
	equal(t, "both", endpointsOf(find(t, in, Query{Host: host, Subset: "both"})), "10.0.0.1 80:80")
}

// TestTheVirtualServiceOfAService is that of the most specific host; then those that only the client's namespace sees come
// before others, and the oldest comes before younger ones.
func TestTheVirtualServiceOfAService(t *testing.T) {
	to := func(to ...string) func(*networking.VirtualService) {
		return func(v *networking.VirtualService) { v.ExportTo = to }
	}
	through := func(gateways ...string) func(*networking.VirtualService) {
		return func(v *networking.VirtualService) { v.Gateways = gateways }
	}
	for name, tc := range map[string]struct {
		as     string
		routes []one
		mesh   *meshconfig.MeshConfig
		want   []string
	}{
		"the oldest":                {"web", []one{vs("shop", "a", host, 1, nil), vs("team", "b", host, 9, nil)}, nil, []string{"shop/a not used", "team/b applies"}},
		"its own before named ones": {"web", []one{vs("web", "a", host, 1, to(".")), vs("shop", "b", host, 5, to("web")), vs("team", "c", host, 9, nil)}, nil, []string{"shop/b not used", "team/c not used", "web/a applies"}},
		"named before public":       {"web", []one{vs("shop", "b", host, 1, to("web", "x")), vs("team", "c", host, 9, nil)}, nil, []string{"shop/b applies", "team/c not used"}},
		"the most specific":         {"web", []one{vs("shop", "a", "*.cluster.local", 9, nil), vs("shop", "b", "*.shop.svc.cluster.local", 1, nil), vs("shop", "c", "*", 9, to("web"))}, nil, []string{"shop/a not used", "shop/b applies", "shop/c not used"}},
		"a short host":              {"web", []one{vs("shop", "a", "db", 1, nil), vs("web", "b", "db", 9, nil)}, nil, []string{"shop/a applies"}},
		"hidden":                    {"web", []one{vs("shop", "a", host, 1, to(".")), vs("shop", "b", host, 1, to("x"))}, nil, nil},
		"for gateways":              {"web", []one{vs("shop", "a", host, 9, through("edge/gw")), vs("shop", "b", host, 1, through("edge/gw", "mesh"))}, nil, []string{"shop/a not used", "shop/b applies"}},
		"the default of the mesh":   {"web", []one{vs("shop", "a", host, 1, nil)}, &meshconfig.MeshConfig{DefaultVirtualServiceExportTo: []string{"."}}, nil},
		"without a client":          {"", []one{vs("shop", "a", host, 1, to(".")), vs("web", "b", host, 9, to("."))}, nil, []string{"shop/a applies"}},
		"a delegate":                {"web", []one{vs("shop", "a", "x", 1, func(v *networking.VirtualService) { v.Hosts = nil })}, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			all := append(tc.routes, one{namespace: "shop", name: "db", body: se(nil, "10.0.0.1")})
			if tc.mesh != nil {
				all = append(all, one{body: tc.mesh})
			}
			equal(t, "routes", outcomes(find(t, input(t, all...), Query{Host: host, As: tc.as}).Routes), tc.want...)
		})
	}
}

// TestAVirtualServiceWithoutARouteForTheClientGivesTheDefaultRoute: by sourceNamespace and by gateways of its matches.
func TestAVirtualServiceWithoutARouteForTheClientGivesTheDefaultRoute(t *testing.T) {
	http := func(matches ...*networking.HTTPMatchRequest) func(*networking.VirtualService) {
		return func(v *networking.VirtualService) { v.Http = []*networking.HTTPRoute{{Match: matches}} }
	}
	for name, tc := range map[string]struct {
		change func(*networking.VirtualService)
		none   bool
	}{
		"no match":           {http(), false},
		"another namespace":  {http(&networking.HTTPMatchRequest{SourceNamespace: "x"}), true},
		"its namespace, too": {http(&networking.HTTPMatchRequest{SourceNamespace: "x"}, &networking.HTTPMatchRequest{SourceNamespace: "web"}), false},
		"a gateway":          {http(&networking.HTTPMatchRequest{Gateways: []string{"gw"}}), true},
		"labels":             {http(&networking.HTTPMatchRequest{SourceLabels: labelsOf("a=b")}), false},
		"tcp": {func(v *networking.VirtualService) {
			v.Tcp = []*networking.TCPRoute{{Match: []*networking.L4MatchAttributes{{SourceNamespace: "x"}}}}
		}, true},
		"tls": {func(v *networking.VirtualService) {
			v.Tls = []*networking.TLSRoute{{Match: []*networking.TLSMatchAttributes{{SourceNamespace: "x"}}}}
		}, true},
	} {
		s := find(t, input(t, one{namespace: "shop", name: "db", body: se(nil)}, vs("shop", "a", host, 1, tc.change)), Query{Host: host, As: "web"})
		want := "it is the first for host " + host
		if tc.none {
			want += "; none of its routes is for this client, which gets the default route"
		}
		if len(s.Routes) != 1 || s.Routes[0].Reason != want {
			t.Errorf("%s: %+v", name, s.Routes)
		}
	}
}
