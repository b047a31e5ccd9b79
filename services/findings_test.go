package services

import (
	"testing"

	networking "istio.io/api/networking/v1alpha3"

	"meshrelay/mirror"
)

// TestFindings: what an operator should look at, and what not.
func TestFindings(t *testing.T) {
	ports := func(all ...*networking.ServicePort) *networking.ServiceEntry {
		return se(func(s *networking.ServiceEntry) { s.Ports = all }, "10.0.0.1")
	}
	west := func(body *networking.ServiceEntry) one {
		return one{namespace: "shop", name: "west", upstream: "west", body: body}
	}
	east := func(body *networking.ServiceEntry) one {
		return one{namespace: "shop", name: "east", age: 9, body: body}
	}
	subset := func(labels ...string) one {
		return one{namespace: "shop", name: "dr", body: &networking.DestinationRule{Host: host, Subsets: []*networking.Subset{{Name: "v1", Labels: labelsOf(labels...)}}}}
	}
	for name, tc := range map[string]struct {
		all  []one
		want []string
	}{
		"equal ports":            {[]one{east(ports(tcp(80, "http"))), west(ports(&networking.ServicePort{Number: 80, Name: "http", Protocol: "tcp"}))}, nil},
		"another name":           {[]one{east(ports(tcp(80, "http"))), west(ports(tcp(80, "web")))}, []string{`ports: port 80: its name is "http" in cluster east, and "web" in cluster west: istiods do not unite the endpoints`}},
		"no name":                {[]one{east(ports(tcp(80, "http"))), west(ports(tcp(80, "")))}, []string{`ports: port 80: its name is "http" in cluster east, and "" in cluster west: istiods do not unite the endpoints`}},
		"another protocol":       {[]one{east(ports(tcp(80, "http"))), west(ports(&networking.ServicePort{Number: 80, Name: "http", Protocol: "HTTP"}))}, []string{"ports: port 80: its protocol is TCP in cluster east, and HTTP in cluster west"}},
		"a port more":            {[]one{east(ports(tcp(80, "http"))), west(ports(tcp(80, "http"), tcp(81, "x")))}, []string{"ports: port 81: cluster west has it, cluster east has not"}},
		"a port less":            {[]one{east(ports(tcp(80, "http"), tcp(81, "x"))), west(ports(tcp(80, "http")))}, []string{"ports: port 81: cluster east has it, cluster west has not"}},
		"a sibling":              {[]one{east(ports(tcp(80, "http"))), {namespace: "shop", name: "west", upstream: "west", annotations: labelsOf(mirror.SiblingAnnotation + "=x"), body: ports(tcp(81, "x"))}}, nil},
		"of one cluster":         {[]one{east(ports(tcp(80, "http"))), {namespace: "shop", name: "b", body: ports(tcp(80, "web"))}}, nil},
		"no endpoints":           {[]one{east(se(nil))}, []string{"endpoints: none of 0 endpoints is ready"}},
		"no endpoints, selector": {[]one{east(se(selecting("app=db")))}, nil},
		"no endpoints, NONE":     {[]one{east(se(func(s *networking.ServiceEntry) { s.Resolution = networking.ServiceEntry_NONE }))}, nil},
		"none ready": {[]one{east(se(selecting("app=db"))), {namespace: "shop", name: "a", labels: labelsOf("app=db"), annotations: labelsOf("proxy.istio.io/health-checks-enabled=true"), body: &networking.WorkloadEntry{Address: "10.0.0.1"}}},
			[]string{"endpoints: none of 1 endpoints is ready"}},
		"an empty subset":             {[]one{east(se(nil, "10.0.0.1")), subset("v=1")}, []string{"subset: subset v1 has none of 1 endpoints"}},
		"a subset":                    {[]one{east(se(func(s *networking.ServiceEntry) { s.Endpoints[0].Labels = labelsOf("v=1") }, "10.0.0.1")), subset("v=1")}, nil},
		"a subset without a service":  {[]one{east(se(nil)), subset("v=1")}, []string{"endpoints: none of 0 endpoints is ready"}},
		"a selector without labels":   {[]one{east(se(selecting())), {namespace: "shop", name: "a", body: &networking.WorkloadEntry{Address: "10.0.0.1"}}}, []string{"selector: the workloadSelector of shop/east has no labels: it selects every workload of its namespace"}},
		"of Kubernetes, no selector":  {[]one{{namespace: "shop", name: "synthetic-db", body: se(nil)}}, []string{"endpoints: none of 0 endpoints is ready"}},
		"of Kubernetes, with another": {[]one{{namespace: "shop", name: "synthetic-db", body: se(selecting("app=db"))}}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			in := input(t, tc.all...)
			equal(t, "findings", findings(find(t, in, Query{Host: host})), tc.want...)
			a, err := Find(in, Query{})
			if err != nil || len(a.Services) != 1 {
				t.Fatal(a, err)
			}
			equal(t, "findings of all", findings(a.Services[0]), tc.want...)
		})
	}
	in := input(t, east(ports(tcp(80, "http"))))
	in.Copies = []Copy{{one{namespace: "shop", name: "east", upstream: "west", body: ports(tcp(80, "web"))}.resource(t), false}}
	equal(t, "a shadowed copy", findings(find(t, in, Query{Host: host})), `ports: port 80: its name is "http" in cluster east, and "web" in cluster west: istiods do not unite the endpoints`)
}

// TestHostsAreSelected by text, from one on, and by findings; the rest is counted.
func TestHostsAreSelected(t *testing.T) {
	entry := func(name string, addresses ...string) one {
		body := se(nil, addresses...)
		body.Hosts = []string{name + ".example"}
		return one{namespace: "shop", name: name, body: body}
	}
	in := input(t, entry("a", "10.0.0.1"), entry("b"), entry("bb", "10.0.0.1"), entry("c"))
	for name, tc := range map[string]struct {
		q    Query
		want []string
		more int
	}{
		"all":            {Query{}, []string{"a.example", "b.example", "bb.example", "c.example"}, 0},
		"search":         {Query{Search: "B."}, []string{"b.example", "bb.example"}, 0},
		"from":           {Query{From: "b.example"}, []string{"b.example", "bb.example", "c.example"}, 0},
		"limit":          {Query{From: "b", Limit: 1}, []string{"b.example"}, 2},
		"findings":       {Query{Findings: true}, []string{"b.example", "c.example"}, 0},
		"first findings": {Query{Findings: true, Limit: 1}, []string{"b.example"}, 2},
	} {
		a, err := Find(in, tc.q)
		var got []string
		for _, s := range a.Services {
			got = append(got, s.Host)
		}
		if err != nil || a.More != tc.more {
			t.Errorf("%s: %d more, %v", name, a.More, err)
		}
		equal(t, name, got, tc.want...)
	}
}
