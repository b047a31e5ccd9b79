package services

import (
	"testing"

	meshconfig "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"
)

// leftOut returns the endpoints that clients do not get as "address: reason".
func leftOut(s Service) (out []string) {
	for _, e := range s.LeftOut {
		out = append(out, e.Address+": "+e.Reason)
	}
	return out
}

// TestThePortOfAnEndpoint is that by the name of the service's port, else the targetPort, else the number; a Unix socket
// has none.
func TestThePortOfAnEndpoint(t *testing.T) {
	target := func(s *networking.ServiceEntry) {
		s.Ports[0].TargetPort = 8080
		s.Ports = append(s.Ports, tcp(81, "admin"))
		s.Endpoints[0].Ports = map[string]uint32{"http": 9000}
		s.Endpoints[1].Ports = map[string]uint32{"other": 9000}
	}
	s := find(t, input(t, one{namespace: "shop", name: "db", body: se(target, "10.0.0.1", "10.0.0.2", "unix:///db")}), Query{Host: host})
	equal(t, "endpoints", endpointsOf(s), "10.0.0.1 80:9000 81:81", "10.0.0.2 80:8080 81:81", "unix:///db 80:0 81:0")
}

// TestResolutionDecidesWhichEndpointsThereAre.
func TestResolutionDecidesWhichEndpointsThereAre(t *testing.T) {
	as := func(r networking.ServiceEntry_Resolution) func(*networking.ServiceEntry) {
		return func(s *networking.ServiceEntry) { s.Resolution = r }
	}
	for name, tc := range map[string]struct {
		body      *networking.ServiceEntry
		endpoints []string
		out       []string
	}{
		"STATIC has addresses":                 {se(nil, "10.0.0.1", "a.example"), []string{"10.0.0.1 80:80"}, []string{"a.example: its address is a name, which the resolution STATIC does not resolve"}},
		"DNS has names, too":                   {se(as(networking.ServiceEntry_DNS), "10.0.0.1", "a.example"), []string{"10.0.0.1 80:80", "a.example 80:80"}, nil},
		"DNS without endpoints has its host":   {se(as(networking.ServiceEntry_DNS)), []string{host + " 80:80"}, nil},
		"DNS_ROUND_ROBIN has the first":        {se(as(networking.ServiceEntry_DNS_ROUND_ROBIN), "b.example", "a.example"), []string{"b.example 80:80"}, []string{"a.example: the resolution DNS_ROUND_ROBIN uses one endpoint"}},
		"NONE has none":                        {se(as(networking.ServiceEntry_NONE), "10.0.0.1"), nil, []string{"10.0.0.1: the resolution is NONE: traffic goes where the client sent it"}},
		"a selector comes before endpoints":    {se(selecting("app=db"), "10.0.0.1"), nil, []string{"10.0.0.1: the workloadSelector comes before endpoints"}},
		"a network stands for an address":      {se(func(s *networking.ServiceEntry) { s.Endpoints = []*networking.WorkloadEntry{{Network: "n"}} }), []string{" 80:80"}, nil},
		"without either there is no endpoint":  {se(nil, ""), nil, []string{": it has neither an address nor a network"}},
		"IPv6 is an address, a zone likewise":  {se(nil, "fd00::1", "fe80::1%eth0"), []string{"fd00::1 80:80", "fe80::1%eth0 80:80"}, nil},
		"an entry without ports has endpoints": {se(func(s *networking.ServiceEntry) { s.Ports = nil }, "10.0.0.1"), nil, []string{"10.0.0.1: the service has none of the ports of its entry"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := find(t, input(t, one{namespace: "shop", name: "db", body: tc.body}), Query{Host: host})
			equal(t, "endpoints", endpointsOf(s), tc.endpoints...)
			equal(t, "left out", leftOut(s), tc.out...)
		})
	}
}

// TestASelectorSelectsWorkloadsOfItsNamespace whose labels, those of the metadata before those of the spec, and those of
// the topology contain it.
func TestASelectorSelectsWorkloadsOfItsNamespace(t *testing.T) {
	workload := func(namespace, name, address string, metadata, spec []string) one {
		return one{namespace: namespace, name: name, labels: labelsOf(metadata...), body: &networking.WorkloadEntry{Address: address, Labels: labelsOf(spec...), Locality: "r/z"}}
	}
	all := []one{
		workload("shop", "a", "10.0.0.1", nil, []string{"app=db", "v=1"}),
		workload("shop", "b", "10.0.0.2", []string{"app=web"}, []string{"app=db"}),
		workload("shop", "c", "10.0.0.3", []string{"app=db"}, []string{"app=web"}),
		workload("team", "d", "10.0.0.4", nil, []string{"app=db"}),
		workload("shop", "e", "10.0.0.1", nil, []string{"app=db"}), // the same address is another workload
		workload("shop", "f", "f.example", nil, []string{"app=db"}),
	}
	for name, tc := range map[string]struct {
		entry one
		want  []string
	}{
		"one label":             {one{name: "db", body: se(selecting("app=db"))}, []string{"10.0.0.1 80:80", "10.0.0.1 80:80", "10.0.0.3 80:80"}},
		"two labels":            {one{name: "db", body: se(selecting("app=db", "v=1"))}, []string{"10.0.0.1 80:80"}},
		"a topology":            {one{name: "db", body: se(selecting("app=web", "topology.kubernetes.io/zone=z", "topology.istio.io/cluster=east"))}, []string{"10.0.0.2 80:80"}},
		"no label":              {one{name: "db", body: se(selecting())}, []string{"10.0.0.1 80:80", "10.0.0.1 80:80", "10.0.0.2 80:80", "10.0.0.3 80:80"}},
		"no label, Kubernetes":  {one{name: "synthetic-db", body: se(selecting())}, nil},
		"a label, Kubernetes":   {one{name: "synthetic-db", body: se(selecting("app=web"))}, []string{"10.0.0.2 80:80"}},
		"a label of nobody":     {one{name: "db", body: se(selecting("app=x"))}, nil},
		"another value":         {one{name: "db", body: se(selecting("app=db", "v=2"))}, nil},
		"names that it can not": {one{name: "db", body: se(func(s *networking.ServiceEntry) { selecting("app=db")(s); s.Resolution = networking.ServiceEntry_NONE })}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			tc.entry.namespace = "shop"
			equal(t, "endpoints", endpointsOf(find(t, input(t, append(all, tc.entry)...), Query{Host: host})), tc.want...)
		})
	}
	twice := input(t, append(all, one{namespace: "shop", name: "x", body: se(selecting("app=db"))}, one{namespace: "shop", name: "y", body: se(selecting("v=1"))})...)
	equal(t, "of two entries", endpointsOf(find(t, twice, Query{Host: host})), "10.0.0.1 80:80", "10.0.0.1 80:80", "10.0.0.3 80:80")
}

// TestTheAttributesOfAnEndpoint are those that an istiod gives it.
func TestTheAttributesOfAnEndpoint(t *testing.T) {
	with := func(change func(*networking.WorkloadEntry)) Endpoint {
		s := find(t, input(t, one{namespace: "shop", name: "db", body: se(func(s *networking.ServiceEntry) { change(s.Endpoints[0]) }, "10.0.0.1")}, one{body: &meshconfig.MeshConfig{TrustDomain: "td"}}), Query{Host: host})
		return s.Endpoints[0]
	}
	bare := with(func(*networking.WorkloadEntry) {})
	if bare.Weight != 1 || bare.TLSMode != "disabled" || bare.Cluster != "east" || bare.Health != Healthy || bare.Locality != "" || bare.Identity != "" || bare.Upstream != "east" {
		t.Errorf("%+v", bare)
	}
	full := with(func(e *networking.WorkloadEntry) {
		e.Weight, e.ServiceAccount, e.Network, e.Locality, e.Labels = 7, "db", "net", "r/z/s", labelsOf("topology.istio.io/cluster=west", "istio-locality=x.y")
	})
	if full.Weight != 7 || full.TLSMode != "istio" || full.Identity != "spiffe://td/ns/shop/sa/db" || full.Cluster != "west" || full.Network != "net" || full.Locality != "r/z/s" {
		t.Errorf("%+v", full)
	}
	for key, want := range labelsOf("topology.kubernetes.io/region=r", "topology.kubernetes.io/zone=z", "topology.istio.io/subzone=s", "topology.istio.io/network=net", "topology.istio.io/cluster=west") {
		if full.Labels[key] != want {
			t.Errorf("label %s is %q", key, full.Labels[key])
		}
	}
	marked := with(func(e *networking.WorkloadEntry) {
		e.ServiceAccount, e.Labels = "db", labelsOf("security.istio.io/tlsMode=disabled", "istio-locality=r.z.s")
	})
	if marked.TLSMode != "disabled" || marked.Locality != "r/z/s" {
		t.Errorf("%+v", marked)
	}
}

// TestTheHealthOfAWorkloadWithHealthChecksIsUnknown: an istiod that gets no status sends it no traffic.
func TestTheHealthOfAWorkloadWithHealthChecksIsUnknown(t *testing.T) {
	s := find(t, input(t, one{namespace: "shop", name: "db", body: se(selecting("app=db"))},
		one{namespace: "shop", name: "a", annotations: labelsOf("proxy.istio.io/health-checks-enabled=true"), labels: labelsOf("app=db"), body: &networking.WorkloadEntry{Address: "10.0.0.1"}},
		one{namespace: "shop", name: "b", labels: labelsOf("app=db"), body: &networking.WorkloadEntry{Address: "10.0.0.2"}}), Query{Host: host})
	if s.Ready != 1 || s.All != 2 || s.Endpoints[0].Health != Unknown || s.Endpoints[1].Health != Healthy {
		t.Errorf("%+v", s)
	}
}

// TestPortAndSubsetSelectEndpoints, and unknown ones are mistakes.
func TestPortAndSubsetSelectEndpoints(t *testing.T) {
	in := input(t, one{namespace: "shop", name: "db", body: se(func(s *networking.ServiceEntry) {
		s.Ports = append(s.Ports, tcp(81, "admin"))
		s.Endpoints[0].Labels = labelsOf("v=1")
	}, "10.0.0.1", "10.0.0.2")}, one{namespace: "shop", name: "dr", body: &networking.DestinationRule{Host: "db", Subsets: []*networking.Subset{{Name: "v1", Labels: labelsOf("v=1")}}}})
	equal(t, "port", endpointsOf(find(t, in, Query{Host: host, Port: "81"})), "10.0.0.1 81:81", "10.0.0.2 81:81")
	equal(t, "name", endpointsOf(find(t, in, Query{Host: host, Port: "admin", Subset: "v1"})), "10.0.0.1 81:81")
	for _, q := range []Query{{Host: host, Port: "82"}, {Host: host, Subset: "v2"}} {
		if _, err := Find(in, q); err == nil {
			t.Errorf("%+v is no mistake", q)
		}
	}
}
