package services

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	networking "istio.io/api/networking/v1alpha3"

	"meshrelay/federation"
	"meshrelay/mirror"
)

// selecting returns a ServiceEntry shop/db that selects workloads.
func selecting(t *testing.T, change func(*networking.ServiceEntry)) *mirror.Resource {
	se := &networking.ServiceEntry{
		Hosts: []string{"db.example"}, Resolution: networking.ServiceEntry_STATIC, Location: networking.ServiceEntry_MESH_INTERNAL,
		Ports:            []*networking.ServicePort{{Number: 80, Name: "http", Protocol: "HTTP", TargetPort: 8080}, {Number: 9090, Name: "tcp", Protocol: "TCP"}},
		WorkloadSelector: &networking.WorkloadSelector{Labels: map[string]string{"tier": "1", "app": "db", "none": ""}},
	}
	if change != nil {
		change(se)
	}
	return serviceNamed(t, "db", se)
}

func TestAServiceEntryThatSelectsWorkloadsNamesThemForEachPort(t *testing.T) {
	all, err := Clusters(selecting(t, nil))
	if err != nil || len(all) != 2 || all[0] != (Cluster{80, "workloads|shop|app=db,none=,tier=1|http|8080"}) || all[1] != (Cluster{9090, "workloads|shop|app=db,none=,tier=1|tcp|9090"}) {
		t.Errorf("%v, %v", all, err)
	}
	for want, change := range map[string]func(*networking.ServiceEntry){
		"has no host":          func(se *networking.ServiceEntry) { se.Hosts = nil },
		"a label that is none": func(se *networking.ServiceEntry) { se.WorkloadSelector.Labels["a|b"] = "c" },
		"has a |":              func(se *networking.ServiceEntry) { se.Ports[0].Name = "a|b" },
	} {
		if _, err := Clusters(selecting(t, change)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}

// A selector means the workloads of the cluster that wrote it. With resolution NONE clients connect to any address.
func TestWhatSelectsWorkloads(t *testing.T) {
	none := func(se *networking.ServiceEntry) { se.Resolution = networking.ServiceEntry_NONE }
	made := synthetic(t, func(se *networking.ServiceEntry) { se.WorkloadSelector = &networking.WorkloadSelector{} })
	if !Selects(selecting(t, nil)) || Selects(selecting(t, none)) || Selects(made) || Selects(serviceNamed(t, "db", &networking.ServiceEntry{Resolution: networking.ServiceEntry_STATIC})) {
		t.Error("another ServiceEntry selects, or this one does not")
	}
}

func TestSelectedWorkloadsTakeThePlaceOfTheSelector(t *testing.T) {
	pod := func(address string, port uint32) Endpoint {
		return Endpoint{Addr: netip.MustParseAddr(address), Port: port, Network: "west", Account: "db", TLS: true, Labels: EncodeLabels(map[string]string{"version": "v1", "bad label": "x"})}
	}
	vm := Endpoint{Host: "vm.example", Port: 81, Weight: 3}
	for resolution, want := range map[networking.ServiceEntry_Resolution][]string{
		networking.ServiceEntry_STATIC:          {"10.0.0.1"},
		networking.ServiceEntry_DNS:             {"vm.example", "10.0.0.1"},
		networking.ServiceEntry_DNS_ROUND_ROBIN: {"vm.example"},
	} {
		r := selecting(t, func(se *networking.ServiceEntry) { se.Resolution = resolution })
		out, _, err := WithEndpoints(r, Assignments{80: {pod("10.0.0.1", 8080), vm}, 9090: {vm, pod("10.0.0.1", 9090)}}, "net")
		if err != nil {
			t.Fatal(err)
		}
		se := sound(t, out)
		var got []string
		for _, e := range se.Endpoints {
			got = append(got, e.Address)
		}
		if strings.Join(got, " ") != strings.Join(want, " ") || se.WorkloadSelector != nil || se.Resolution != resolution || len(se.Ports) != 2 {
			t.Errorf("%v: endpoints %v, want %v", resolution, got, want)
		}
		if e := se.Endpoints[len(se.Endpoints)-1]; resolution != networking.ServiceEntry_DNS_ROUND_ROBIN &&
			(e.Network != "west" || e.ServiceAccount != "db" || len(e.Labels) != 2 || e.Labels["version"] != "v1" || e.Labels[federation.TLSModeLabel] != "istio" || e.Ports["tcp"] != 9090) {
			t.Errorf("%v: %v", resolution, e)
		}
		// Without workloads, clients must not resolve the host.
		out, _, err = WithEndpoints(r, Assignments{}, "")
		if err != nil || sound(t, out).Resolution != networking.ServiceEntry_STATIC || federation.HasEndpoints(out.BodyValue()) || sound(t, out).WorkloadSelector != nil {
			t.Errorf("%v without workloads: %v, %v", resolution, out, err)
		}
	}
}

// An istiod puts the gateways of a network in the place of endpoints that tell the network alone. Two that are alike are two.
func TestEndpointsThatTellTheirNetworkAloneStay(t *testing.T) {
	far := Endpoint{Network: "far", Port: 81, Locality: "us-1", Account: "db", Labels: EncodeLabels(map[string]string{"version": "v1"})}
	next, near := far, Endpoint{Addr: netip.MustParseAddr("10.0.0.1"), Port: 80}
	next.Labels, next.Weight = EncodeLabels(map[string]string{"version": "v2"}), 3
	nowhere := Endpoint{Port: 80}
	all := []Endpoint{far, next, near, nowhere, far}
	out, _, err := WithEndpoints(selecting(t, nil), Assignments{80: all, 9090: {far, near, far, next}}, "net")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range sound(t, out).Endpoints {
		got = append(got, fmt.Sprintf("%s%s %s %s %s x%d %d %d", e.Address, e.Network, e.Locality, e.ServiceAccount, e.Labels["version"], e.Weight, e.Ports["http"], e.Ports["tcp"]))
	}
	want := []string{"far us-1 db v1 x0 81 81", "far us-1 db v1 x0 81 81", "far us-1 db v2 x3 81 81", "10.0.0.1net    x0 80 80"}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	dns := selecting(t, func(se *networking.ServiceEntry) { se.Resolution = networking.ServiceEntry_DNS })
	if out, _, err = WithEndpoints(dns, Assignments{80: all, 9090: all}, ""); err != nil || len(sound(t, out).Endpoints) != 1 {
		t.Errorf("names are resolved: %v, %v", out, err)
	}
}
