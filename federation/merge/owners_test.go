package merge

import (
	"slices"
	"testing"

	networking "istio.io/api/networking/v1alpha3"
	selector "istio.io/api/type/v1beta1"

	"meshrelay/federation"
	"meshrelay/mirror"
)

func TestKindsThatReachAServiceClaimItsHosts(t *testing.T) {
	owners, err := OwnersByName("first")
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		item   item
		what   []string
		scopes []string
	}{
		"a ServiceEntry":              {item{kind: federation.ServiceEntry, body: &networking.ServiceEntry{Hosts: []string{"b.example", "A.example"}}}, []string{"a.example", "b.example"}, nil},
		"one of its namespace":        {item{kind: federation.ServiceEntry, body: &networking.ServiceEntry{Hosts: []string{"a"}, ExportTo: []string{".", "x"}}}, []string{"a"}, []string{"shop", "x"}},
		"one that nobody sees":        {item{kind: federation.ServiceEntry, body: &networking.ServiceEntry{Hosts: []string{"a"}, ExportTo: []string{"~"}}}, nil, nil},
		"a VirtualService":            {item{kind: federation.VirtualService, body: &networking.VirtualService{Hosts: []string{"web"}, Gateways: []string{"gw"}}}, []string{"web.shop.svc.cluster.local"}, nil},
		"a DestinationRule":           {item{kind: federation.DestinationRule, body: &networking.DestinationRule{Host: "*.example", ExportTo: []string{"*"}}}, []string{"*.example"}, nil},
		"a rule of workloads":         {item{kind: federation.DestinationRule, body: &networking.DestinationRule{Host: "a.b", ExportTo: []string{"~"}, WorkloadSelector: &selector.WorkloadSelector{}}}, []string{"a.b"}, []string{"shop"}},
		"a rule with ~ and others":    {item{kind: federation.DestinationRule, body: &networking.DestinationRule{Host: "a.b", ExportTo: []string{"~", "x"}}}, []string{"a.b"}, []string{"x"}},
		"a rule that nobody sees":     {item{kind: federation.DestinationRule, body: &networking.DestinationRule{Host: "a.b", ExportTo: []string{"~"}}}, nil, nil},
		"a delegate has none to give": {item{kind: federation.VirtualService, body: &networking.VirtualService{}}, nil, nil},
	} {
		tc.item.namespace, tc.item.name = "shop", "a"
		if got := owners.Claims(tc.item.build(t), nil); !slices.Equal(got.What, tc.what) || !slices.Equal(got.Scopes, tc.scopes) {
			t.Errorf("%s: %+v", name, got)
		}
	}
	if owners.Owns(mirror.Kind{Group: "networking.istio.io", Kind: "Gateway"}) || !owners.Owns(federation.DestinationRule) {
		t.Error("other kinds own hosts")
	}
	if _, err := OwnersByName("last"); err == nil {
		t.Error("an unknown value is taken")
	}
}
