package services

import (
	"testing"

	meshconfig "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"meshrelay/mirror"
)

// TestTheServiceOfAHostIsThatOfOneNamespace: the client's own, else that of a Kubernetes service, else that of the oldest
// entry that it sees; never one of two namespaces.
func TestTheServiceOfAHostIsThatOfOneNamespace(t *testing.T) {
	young := one{namespace: "shop", name: "db", age: 1, body: se(nil, "10.0.0.1")}
	old := one{namespace: "team", name: "db", age: 9, body: se(nil, "10.0.0.2")}
	made := one{namespace: "zoo", name: "synthetic-db", age: 2, body: se(nil, "10.0.0.3")}
	hidden := one{namespace: "aside", name: "db", age: 99, body: se(exported("."), "10.0.0.4")}
	for name, tc := range map[string]struct {
		all    []one
		as     string
		want   string
		reason string
	}{
		"its own":                   {[]one{young, old, made}, "shop", "shop", "it is in the client's own namespace"},
		"the oldest":                {[]one{young, old}, "web", "team", "it is the oldest"},
		"of Kubernetes":             {[]one{young, old, made}, "web", "zoo", "Kubernetes services come before ServiceEntries"},
		"that it sees":              {[]one{young, hidden}, "web", "shop", "no other namespace has the host"},
		"its own, of nobody else":   {[]one{young, hidden}, "aside", "aside", "it is in the client's own namespace"},
		"of everybody":              {[]one{young, hidden}, "", "shop", "everybody sees it"},
		"the only one":              {[]one{hidden}, "", "aside", "no other namespace has the host"},
		"by name, at the same age":  {[]one{{namespace: "b", name: "db", body: se(nil)}, {namespace: "a", name: "db", body: se(nil)}}, "web", "a", "it is the first by name of those of the same age"},
		"of its own, even if young": {[]one{old, {namespace: "web", name: "x", body: se(nil)}}, "web", "web", "it is in the client's own namespace"},
	} {
		t.Run(name, func(t *testing.T) {
			s := find(t, input(t, tc.all...), Query{Host: host, As: tc.as})
			if s.Namespace != tc.want || s.Entries[0].Reason != tc.reason || s.Entries[0].Outcome != Applies {
				t.Errorf("namespace %s, %+v", s.Namespace, s.Entries[0])
			}
			for _, e := range s.Entries[1:] {
				if e.Outcome != NotUsed {
					t.Errorf("%+v", e)
				}
			}
		})
	}
}

// TestEntriesOfOneNamespaceAreUnited: endpoints by the name of their port, by its number where names are resolved; ports
// if resolution, labels, selector and exportTo are equal, and both or none are of Kubernetes.
func TestEntriesOfOneNamespaceAreUnited(t *testing.T) {
	lead := one{namespace: "shop", name: "a", age: 9, body: se(nil, "10.0.0.1")}
	more := func(out *networking.ServiceEntry) { out.Ports = append(out.Ports, tcp(81, "admin")) }
	other := func(change func(*networking.ServiceEntry)) one {
		return one{namespace: "shop", name: "b", body: se(func(out *networking.ServiceEntry) { more(out); change(out) }, "10.0.0.2")}
	}
	labelled := other(func(*networking.ServiceEntry) {})
	labelled.labels = labelsOf("a=b")
	made := other(func(*networking.ServiceEntry) {})
	made.name = "synthetic-b"
	dns := func(out *networking.ServiceEntry) { out.Resolution = networking.ServiceEntry_DNS }
	for name, tc := range map[string]struct {
		all       []one
		outcomes  []string
		ports     int
		endpoints []string
	}{
		"equal":              {[]one{lead, other(func(*networking.ServiceEntry) {})}, []string{"shop/a applies", "shop/b united"}, 2, []string{"10.0.0.1 80:80", "10.0.0.2 80:80 81:81"}},
		"another resolution": {[]one{lead, other(dns)}, []string{"shop/a applies", "shop/b endpoints only"}, 1, []string{"10.0.0.1 80:80", "10.0.0.2 80:80"}},
		"other labels":       {[]one{lead, labelled}, []string{"shop/a applies", "shop/b endpoints only"}, 1, []string{"10.0.0.1 80:80", "10.0.0.2 80:80"}},
		"another exportTo":   {[]one{lead, other(exported("web"))}, []string{"shop/a applies", "shop/b endpoints only"}, 1, []string{"10.0.0.1 80:80", "10.0.0.2 80:80"}},
		"another selector":   {[]one{lead, other(selecting("a=b"))}, []string{"shop/a applies", "shop/b endpoints only"}, 1, []string{"10.0.0.1 80:80"}},
		"one of Kubernetes":  {[]one{lead, made}, []string{"shop/a endpoints only", "shop/synthetic-b applies"}, 2, []string{"10.0.0.1 80:80", "10.0.0.2 80:80 81:81"}},
		"both of Kubernetes": {[]one{{namespace: "shop", name: "synthetic-a", age: 9, body: se(nil, "10.0.0.1")}, made}, []string{"shop/synthetic-a applies", "shop/synthetic-b united"}, 2, []string{"10.0.0.1 80:80", "10.0.0.2 80:80 81:81"}},
		"ports of other names": {[]one{lead, other(func(out *networking.ServiceEntry) {
			out.Ports = []*networking.ServicePort{tcp(80, "web")}
			out.ExportTo = []string{"."}
		})},
			[]string{"shop/a applies", "shop/b not used"}, 1, []string{"10.0.0.1 80:80"}},
		"ports of another number and the same name": {[]one{lead, other(func(out *networking.ServiceEntry) {
			out.Ports = []*networking.ServicePort{tcp(8080, "http")}
			out.ExportTo = []string{"."}
		})},
			[]string{"shop/a applies", "shop/b endpoints only"}, 1, []string{"10.0.0.1 80:80", "10.0.0.2 80:8080"}},
		"ports by number where names are resolved": {[]one{{namespace: "shop", name: "a", age: 9, body: se(dns, "a.example")}, other(func(out *networking.ServiceEntry) {
			dns(out)
			out.Ports = []*networking.ServicePort{tcp(80, "web"), tcp(8080, "http")}
			out.ExportTo = []string{"."}
		})},
			[]string{"shop/a applies", "shop/b endpoints only"}, 1, []string{"10.0.0.2 80:80", "a.example 80:80"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := find(t, input(t, tc.all...), Query{Host: host})
			equal(t, "entries", outcomes(s.Entries), tc.outcomes...)
			equal(t, "endpoints", endpointsOf(s), tc.endpoints...)
			if len(s.Ports) != tc.ports || s.All != len(tc.endpoints) {
				t.Errorf("ports %v, %d endpoints", s.Ports, s.All)
			}
		})
	}
}

// TestExportToDecidesWhoSeesAnEntry, with the default of the MeshConfig; endpoints of hidden entries are not united.
func TestExportToDecidesWhoSeesAnEntry(t *testing.T) {
	for name, tc := range map[string]struct {
		to   []string
		mesh []string
		as   map[string]bool
	}{
		"no exportTo":              {nil, nil, map[string]bool{"shop": true, "web": true, "": true}},
		"everybody and others":     {[]string{"*", "web"}, nil, map[string]bool{"shop": true, "x": true}},
		"its own namespace":        {[]string{"."}, nil, map[string]bool{"shop": true, "web": false, "": true}},
		"a namespace":              {[]string{"web"}, nil, map[string]bool{"shop": false, "web": true}},
		"nobody":                   {[]string{"~"}, nil, map[string]bool{"shop": false, "web": false, "": true}},
		"the default of the mesh":  {nil, []string{"."}, map[string]bool{"shop": true, "web": false}},
		"its own, not the default": {[]string{"*"}, []string{"."}, map[string]bool{"web": true}},
	} {
		in := input(t, one{namespace: "shop", name: "a", body: se(exported(tc.to...), "10.0.0.1")}, one{body: &meshconfig.MeshConfig{DefaultServiceExportTo: tc.mesh}})
		for as, want := range tc.as {
			a, err := Find(in, Query{Host: host, As: as})
			if err != nil || (len(a.Services) == 1) != want {
				t.Errorf("%s, as %q: %v, %v", name, as, a, err)
			}
		}
	}
	in := input(t, one{namespace: "shop", name: "a", body: se(nil, "10.0.0.1")}, one{namespace: "shop", name: "b", body: se(exported("."), "10.0.0.2")})
	equal(t, "for others", endpointsOf(find(t, in, Query{Host: host, As: "web"})), "10.0.0.1 80:80")
	equal(t, "for itself", endpointsOf(find(t, in, Query{Host: host, As: "shop"})), "10.0.0.1 80:80", "10.0.0.2 80:80")
}

// TestAHostIsFoundByItsMostSpecificName, whatever its case; if there is none, similar ones are told.
func TestAHostIsFoundByItsMostSpecificName(t *testing.T) {
	named := func(name string) one {
		return one{namespace: "shop", name: "a" + name[:1], body: &networking.ServiceEntry{Hosts: []string{name}, Resolution: networking.ServiceEntry_NONE}}
	}
	in := input(t, named("*.example"), named("*.b.example"), named("c.b.example"), named("db.shop.svc.cluster.local"), named("db.team.svc.cluster.local"))
	in.Entries = append(in.Entries, one{namespace: "x", name: "hidden", body: se(func(s *networking.ServiceEntry) {
		s.Hosts, s.ExportTo = []string{"db.hidden.example.com"}, []string{"."}
	})}.resource(t))
	for asked, want := range map[string]string{
		"C.b.example": "c.b.example", "c.b.example.": "c.b.example", "d.b.example": "*.b.example", "x.d.example": "*.example", "*.b.example": "*.b.example",
	} {
		if s := find(t, in, Query{Host: asked}); s.Host != want {
			t.Errorf("%s is %s, not %s", asked, s.Host, want)
		}
	}
	a, err := Find(in, Query{Host: "db", As: "web"})
	if err != nil || len(a.Services) > 0 {
		t.Fatal(a, err)
	}
	equal(t, "similar", a.Similar, "db.shop.svc.cluster.local", "db.team.svc.cluster.local")
	a, _ = Find(in, Query{Host: "db.shop"})
	equal(t, "the nearest first", a.Similar, "db.shop.svc.cluster.local", "db.hidden.example.com", "db.team.svc.cluster.local")
}

// TestListsHaveALimitAndTheNumberOfTheRest, in both kinds of answers.
func TestListsHaveALimitAndTheNumberOfTheRest(t *testing.T) {
	var all []one
	for _, name := range []string{"a", "b", "c"} {
		all = append(all, one{namespace: name, name: "db", body: se(func(s *networking.ServiceEntry) { s.Hosts = append(s.Hosts, name+".example") }, "10.0.0.1", "10.0.0.2", "10.0.0.3")})
	}
	a, err := Find(input(t, all...), Query{Limit: 1})
	if err != nil || len(a.Services) != 1 || a.More != 3 || a.Services[0].Endpoints != nil || a.Services[0].All != 3 {
		t.Errorf("%+v, %v", a, err)
	}
	s := find(t, input(t, all...), Query{Host: host, Limit: 2})
	if len(s.Entries) != 2 || s.More["entries"] != 1 || len(s.Endpoints) != 2 || s.More["endpoints"] != 1 || s.All != 3 {
		t.Errorf("%+v", s)
	}
}

// TestCopiesOfOtherUpstreamsAreTold: which copy is served, and from which one an endpoint of a union comes.
func TestCopiesOfOtherUpstreamsAreTold(t *testing.T) {
	east, west := one{namespace: "shop", name: "db", body: se(nil, "10.0.0.1")}, one{namespace: "shop", name: "db", upstream: "west", body: se(nil, "10.0.0.2")}
	in := input(t, one{namespace: "shop", name: "db", body: se(nil, "10.0.0.1", "10.0.0.2")})
	in.Copies = []Copy{{west.resource(t), true}, {east.resource(t), true}}
	s := find(t, in, Query{Host: host})
	equal(t, "entries", outcomes(s.Entries), "shop/db applies", "shop/db united")
	equal(t, "clusters", s.Clusters, "east", "west")
	for _, e := range s.Endpoints {
		if want := map[string]string{"10.0.0.1": "east", "10.0.0.2": "west"}[e.Address]; e.Upstream != want || e.Cluster != want || e.Labels["topology.istio.io/cluster"] != want {
			t.Errorf("%+v", e)
		}
	}
	in = input(t, east)
	in.Copies = []Copy{{east.resource(t), false}, {west.resource(t), false}}
	s = find(t, in, Query{Host: host})
	equal(t, "entries", outcomes(s.Entries), "shop/db applies", "shop/db shadowed")
	if s.Entries[1].Upstream != "west" || s.Entries[1].Key != (mirror.Key{Kind: kindOf(east.body), Namespace: "shop", Name: "db"}) {
		t.Errorf("%+v", s.Entries[1])
	}
}
