package services

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	networking "istio.io/api/networking/v1alpha3"

	"meshrelay/federation"
	"meshrelay/mirror"
)

// synthetic returns what an istiod's api generator makes of a Kubernetes service.
func synthetic(tb testing.TB, change func(*networking.ServiceEntry)) *mirror.Resource {
	tb.Helper()
	se := &networking.ServiceEntry{
		Hosts: []string{"db.shop.svc.cluster.local"}, Addresses: []string{"10.96.0.7"},
		Location: networking.ServiceEntry_MESH_INTERNAL, Resolution: networking.ServiceEntry_STATIC,
		Ports: []*networking.ServicePort{
			{Number: 80, Name: "http", Protocol: "HTTP"},
			{Number: 9090, Name: "admin", Protocol: "TCP"},
		},
		WorkloadSelector: &networking.WorkloadSelector{Labels: map[string]string{"app": "db"}},
		SubjectAltNames:  []string{"spiffe://east.example/ns/shop/sa/db"},
	}
	if change != nil {
		change(se)
	}
	return serviceNamed(tb, "synthetic-db", se)
}

func serviceNamed(tb testing.TB, name string, se *networking.ServiceEntry) *mirror.Resource {
	tb.Helper()
	body, err := anypb.New(se)
	if err != nil {
		tb.Fatal(err)
	}
	r, err := mirror.New(mirror.Spec{
		Key: mirror.Key{Kind: federation.ServiceEntry, Namespace: "shop", Name: name}, Labels: map[string]string{"team": "a"},
		Source: "east", Cluster: "east", SourceVersion: "7", Body: body,
	})
	if err != nil {
		tb.Fatal(err)
	}
	return r
}

// sound returns the service of r, after it has passed the rules of ValidateServiceEntry
// (istio pkg/config/validation/validation.go).
func sound(tb testing.TB, r *mirror.Resource) *networking.ServiceEntry {
	tb.Helper()
	se := &networking.ServiceEntry{}
	if err := proto.Unmarshal(r.Body().GetValue(), se); err != nil {
		tb.Fatal(err)
	}
	if err := accepts(r.Namespace(), se); err != nil {
		tb.Fatalf("validation refuses %s: %v", se, err)
	}
	return se
}

var (
	dnsLabel   = regexp.MustCompile(`^[a-zA-Z0-9](?:[-a-zA-Z0-9]*[a-zA-Z0-9])?$`)
	labelValue = regexp.MustCompile(`^((?:[A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$`)
)

func accepts(namespace string, se *networking.ServiceEntry) error {
	var errs []error
	refuse := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	label := func(s string) bool { return len(s) <= 63 && dnsLabel.MatchString(s) }
	fqdn := func(s string) bool {
		return s != "" && len(s) <= 255 && !slices.ContainsFunc(strings.Split(strings.TrimSuffix(s, "."), "."), func(l string) bool { return !label(l) })
	}
	if se.WorkloadSelector != nil && se.Endpoints != nil {
		refuse("only one of WorkloadSelector or Endpoints is allowed")
	}
	if len(se.Hosts) == 0 || slices.ContainsFunc(se.Hosts, func(h string) bool { return !fqdn(h) }) {
		refuse("hosts %q", se.Hosts)
	}
	for _, a := range se.Addresses {
		_, err := netip.ParseAddr(a)
		if strings.Count(a, "/") == 1 {
			_, err = netip.ParsePrefix(a)
			if se.Resolution != networking.ServiceEntry_NONE && se.Resolution != networking.ServiceEntry_STATIC {
				refuse("CIDR addresses are allowed only for NONE/STATIC")
			}
		}
		if err != nil {
			refuse("address %q", a)
		}
	}
	names, numbers := map[string]bool{}, map[uint32]bool{}
	for _, p := range se.Ports {
		if names[p.Name] || numbers[p.Number] || !label(p.Name) || p.Number == 0 || p.Number > 65535 || p.TargetPort > 65535 {
			refuse("port %v", p)
		}
		if p.Protocol != "" && !protocols[strings.ToLower(p.Protocol)] {
			refuse("unsupported protocol %q", p.Protocol)
		}
		names[p.Name], numbers[p.Number] = true, true
	}
	if se.Resolution == networking.ServiceEntry_NONE && len(se.Endpoints) > 0 {
		refuse("no endpoints should be provided for resolution type none")
	}
	for _, e := range se.Endpoints {
		behind := e.Address == "" && e.Network != "" && se.Resolution == networking.ServiceEntry_STATIC
		if _, err := netip.ParseAddr(e.Address); err != nil && !behind && (se.Resolution == networking.ServiceEntry_STATIC || !fqdn(e.Address)) {
			refuse("endpoint address %q", e.Address)
		}
		for name, port := range e.Ports {
			if !names[name] || port == 0 || port > 65535 {
				refuse("endpoint port %s %d", name, port)
			}
		}
		if len(e.Ports) != len(se.Ports) {
			refuse("endpoint %s has the ports %v of %d", e.Address, e.Ports, len(se.Ports))
		}
		for k, v := range e.Labels {
			if !labelValue.MatchString(v) || len(v) > 63 {
				refuse("label %s=%q", k, v)
			}
		}
	}
	seen := map[string]bool{}
	for _, to := range se.ExportTo {
		if to == "." {
			to = namespace
		}
		if seen[to] || to != "*" && to != "~" && !label(to) || (to == "*" || to == "~") && len(se.ExportTo) > 1 {
			refuse("exportTo %q", se.ExportTo)
		}
		seen[to] = true
	}
	return errors.Join(errs...)
}

// lb returns an endpoint as istiods describe one.
func lb(address string, port uint32, change ...func(*endpointv3.LbEndpoint)) *endpointv3.LbEndpoint {
	text := func(key, value string) *structpb.Struct {
		return &structpb.Struct{Fields: map[string]*structpb.Value{key: structpb.NewStringValue(value)}}
	}
	e := &endpointv3.LbEndpoint{
		HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{Address: &corev3.Address{Address: &corev3.Address_SocketAddress{
			SocketAddress: &corev3.SocketAddress{Address: address, PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: port}},
		}}}},
		LoadBalancingWeight: wrapperspb.UInt32(1),
		Metadata: &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{
			transportSocketMatch: text("tlsMode", "istio"),
			istioMetadata:        text("workload", "db-v1;shop;db;v1;east"),
		}},
	}
	for _, f := range change {
		f(e)
	}
	return e
}

func in(region, zone, subzone string, endpoints ...*endpointv3.LbEndpoint) *endpointv3.LocalityLbEndpoints {
	return &endpointv3.LocalityLbEndpoints{Locality: &corev3.Locality{Region: region, Zone: zone, SubZone: subzone}, LbEndpoints: endpoints}
}

func assignment(localities ...*endpointv3.LocalityLbEndpoints) *endpointv3.ClusterLoadAssignment {
	return &endpointv3.ClusterLoadAssignment{Endpoints: localities}
}

type byPort map[uint32]*endpointv3.ClusterLoadAssignment

// assignments returns what the clusters tell.
func (all byPort) assignments() Assignments {
	out := Assignments{}
	for port, cla := range all {
		out[port] = FromAssignment(cla)
	}
	return out
}

// folded returns the endpoints of WithEndpoints in a line each, and the ports.
func folded(tb testing.TB, r *mirror.Resource, all byPort) (endpoints []string, ports string) {
	tb.Helper()
	out, _, err := WithEndpoints(r, all.assignments(), "net-west")
	if err != nil {
		tb.Fatal(err)
	}
	se := sound(tb, out)
	if se.Resolution != networking.ServiceEntry_STATIC || se.Location != networking.ServiceEntry_MESH_INTERNAL || se.WorkloadSelector != nil {
		tb.Errorf("the service is %v", se)
	}
	for _, p := range se.Ports {
		ports += fmt.Sprintf(" %s:%d", p.Name, p.Number)
	}
	for _, e := range se.Endpoints {
		var parts []string
		for _, p := range se.Ports {
			parts = append(parts, fmt.Sprintf("%s=%d", p.Name, e.Ports[p.Name]))
		}
		line := e.Address + " " + strings.Join(parts, ",") + " " + e.Locality
		if e.Weight != 0 {
			line += fmt.Sprintf(" weight %d", e.Weight)
		}
		if e.Labels[federation.TLSModeLabel] != "istio" {
			line += " plaintext"
		}
		if e.Network != "net-west" {
			tb.Errorf("network %q", e.Network)
		}
		endpoints = append(endpoints, line)
	}
	return endpoints, strings.TrimSpace(ports)
}

func TestSyntheticIsWhatHasTheNameAndNoEndpoints_C9(t *testing.T) {
	plain := &networking.ServiceEntry{Hosts: []string{"db.example"}}
	reached := &networking.ServiceEntry{Hosts: []string{"db.example"}, Endpoints: []*networking.WorkloadEntry{{Address: "10.0.0.1"}}}
	vs, err := anypb.New(&networking.VirtualService{Hosts: []string{"db.example"}})
	if err != nil {
		t.Fatal(err)
	}
	other, err := mirror.New(mirror.Spec{Key: mirror.Key{Kind: mirror.Kind{Group: "networking.istio.io", Kind: "VirtualService"}, Namespace: "shop", Name: "synthetic-db"}, Body: vs})
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name string
		r    *mirror.Resource
		want bool
	}{
		{"as an istiod makes it", synthetic(t, nil), true},
		{"with endpoints", serviceNamed(t, "synthetic-db", reached), false},
		{"by another name", serviceNamed(t, "db", plain), false},
		{"of another kind", other, false},
	} {
		if got := IsSynthetic(tc.r); got != tc.want {
			t.Errorf("%s: %v", tc.name, got)
		}
	}
}

func TestGatewaysStandForTheEndpoints(t *testing.T) {
	g := Gateways{Addresses: []string{"34.0.0.2", "34.0.0.1:31443", "34.0.0.2:15443"}, Network: "net-east"}
	r := synthetic(t, nil)
	out, err := WithGateways(r, g)
	if err != nil {
		t.Fatal(err)
	}
	got := sound(t, out)
	want := &networking.ServiceEntry{}
	if err := protojson.Unmarshal([]byte(`{
		"hosts": ["db.shop.svc.cluster.local"], "addresses": ["10.96.0.7"], "location": "MESH_INTERNAL", "resolution": "STATIC",
		"ports": [{"number": 80, "name": "http", "protocol": "HTTP"}, {"number": 9090, "name": "admin", "protocol": "TCP"}],
		"subjectAltNames": ["spiffe://east.example/ns/shop/sa/db"],
		"endpoints": [
			{"address": "34.0.0.1", "ports": {"http": 31443, "admin": 31443}, "labels": {"security.istio.io/tlsMode": "istio"}, "network": "net-east"},
			{"address": "34.0.0.2", "ports": {"http": 15443, "admin": 15443}, "labels": {"security.istio.io/tlsMode": "istio"}, "network": "net-east"}
		]}`), want); err != nil {
		t.Fatal(err)
	}
	if !proto.Equal(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
	if out.Key() != r.Key() || out.Source() != "east" || out.Cluster() != "east" || out.Metadata().Labels["team"] != "a" || IsSynthetic(out) {
		t.Errorf("it is %s of %s in %s with %v", out.Key(), out.Source(), out.Cluster(), out.Metadata())
	}
	again, err := WithGateways(r, Gateways{Addresses: []string{"34.0.0.1:31443", "34.0.0.2"}, Network: "net-east"})
	if err != nil || !again.Equal(out) {
		t.Errorf("the same gateways in another order give another resource: %v", err)
	}
}

func TestGatewaysMayBeDNSNames(t *testing.T) {
	r := synthetic(t, func(se *networking.ServiceEntry) { se.Addresses = []string{"10.96.0.7", "10.97.0.0/24"} })
	out, err := WithGateways(r, Gateways{Addresses: []string{"gw.east.example", "[2001:db8::1]:15443", "2001:db8::2"}})
	if err != nil {
		t.Fatal(err)
	}
	se := sound(t, out)
	var addresses []string
	for _, e := range se.Endpoints {
		addresses = append(addresses, fmt.Sprint(e.Address, " ", e.Ports["http"]))
	}
	if got := strings.Join(addresses, ", "); se.Resolution != networking.ServiceEntry_DNS || got != "2001:db8::1 15443, 2001:db8::2 15443, gw.east.example 15443" {
		t.Errorf("%s: %s", se.Resolution, got)
	}
}

func TestGatewaysThatAreNoneAreErrors(t *testing.T) {
	for _, tc := range []struct {
		g    Gateways
		want string
	}{
		{Gateways{}, "no gateways"},
		{Gateways{Addresses: []string{"10.0.0.1:0"}}, `gateway "10.0.0.1:0"`},
		{Gateways{Addresses: []string{"10.0.0.1:70000"}}, "want an IP address or a DNS name"},
		{Gateways{Addresses: []string{"0.0.0.0"}}, `gateway "0.0.0.0"`},
		{Gateways{Addresses: []string{"fe80::1%eth0"}}, "gateway"},
		{Gateways{Addresses: []string{"10.0.0"}}, "gateway"},
		{Gateways{Addresses: []string{"*.example"}}, "gateway"},
		{Gateways{Addresses: []string{""}}, "gateway"},
	} {
		if err := tc.g.Check(); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%v: error %v, want %q", tc.g, err, tc.want)
		}
	}
}

func TestGeneratedServicesAreNormalizedToValidate_S12(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(*networking.ServiceEntry)
		check  func(*networking.ServiceEntry) bool
	}{
		{"a headless service", func(se *networking.ServiceEntry) {
			se.Resolution, se.Addresses = networking.ServiceEntry_NONE, []string{"0.0.0.0"}
		}, func(se *networking.ServiceEntry) bool {
			return se.Resolution == networking.ServiceEntry_STATIC && len(se.Addresses) == 0
		}},
		{"an address that is none", func(se *networking.ServiceEntry) { se.Addresses = []string{"", "10.96.0.7"} },
			func(se *networking.ServiceEntry) bool { return slices.Equal(se.Addresses, []string{"10.96.0.7"}) }},
		{"a port without a name", func(se *networking.ServiceEntry) { se.Ports = se.Ports[:1]; se.Ports[0].Name = "" },
			func(se *networking.ServiceEntry) bool {
				return se.Ports[0].Name == "port-80" && se.Endpoints[0].Ports["port-80"] != 0
			}},
		{"a protocol to be found out", func(se *networking.ServiceEntry) { se.Ports[0].Protocol = "UnsupportedProtocol" },
			func(se *networking.ServiceEntry) bool { return se.Ports[0].Protocol == "" }},
		{"a number that is of TCP and UDP", func(se *networking.ServiceEntry) {
			se.Ports = []*networking.ServicePort{{Number: 53, Name: "dns", Protocol: "UDP"}, {Number: 53, Name: "dns-tcp", Protocol: "TCP"}}
		}, func(se *networking.ServiceEntry) bool { return len(se.Ports) == 1 && se.Ports[0].Name == "dns-tcp" }},
		{"namespaces in random order", func(se *networking.ServiceEntry) { se.ExportTo = []string{" b", "a", "shop", ".", "~"} },
			func(se *networking.ServiceEntry) bool { return slices.Equal(se.ExportTo, []string{".", "a", "b"}) }},
		{"all namespaces, and one", func(se *networking.ServiceEntry) { se.ExportTo = []string{"a", "*"} },
			func(se *networking.ServiceEntry) bool { return slices.Equal(se.ExportTo, []string{"*"}) }},
		{"no namespace", func(se *networking.ServiceEntry) { se.ExportTo = []string{"~"} },
			func(se *networking.ServiceEntry) bool { return slices.Equal(se.ExportTo, []string{"~"}) }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := synthetic(t, tc.change)
			out, err := WithGateways(r, Gateways{Addresses: []string{"34.0.0.1"}})
			if err != nil {
				t.Fatal(err)
			}
			if se := sound(t, out); !tc.check(se) {
				t.Errorf("by gateway: %v", se)
			}
			all := byPort{}
			clusters, err := Clusters(r)
			if err != nil {
				t.Fatal(err)
			}
			for _, c := range clusters {
				all[c.Port] = assignment(in("eu", "", "", lb("10.1.0.1", 8080)))
			}
			if out, _, err = WithEndpoints(r, all.assignments(), ""); err != nil {
				t.Fatal(err)
			}
			if se := sound(t, out); !tc.check(se) {
				t.Errorf("by endpoints: %v", se)
			}
		})
	}
}

func TestUnreachableServicesAreErrors(t *testing.T) {
	for _, tc := range []struct {
		name        string
		change      func(*networking.ServiceEntry)
		unreachable bool
		want        string
	}{
		{"UDP only", func(se *networking.ServiceEntry) {
			se.Ports = []*networking.ServicePort{{Number: 53, Name: "dns", Protocol: "UDP"}}
		}, true, "no port that is proxied"},
		{"another name", func(se *networking.ServiceEntry) { se.Location = networking.ServiceEntry_MESH_EXTERNAL }, true, "ExternalName"},
		{"two hosts", func(se *networking.ServiceEntry) { se.Hosts = []string{"a.b", "c.d"} }, false, "2 hosts"},
		{"no host", func(se *networking.ServiceEntry) { se.Hosts = []string{"a b"} }, false, "not a domain name"},
		{"a port out of range", func(se *networking.ServiceEntry) { se.Ports[0].Number = 70000 }, false, "70000"},
		{"a name that is taken", func(se *networking.ServiceEntry) { se.Ports[0].Name, se.Ports[1].Name = "port-9090", "" }, false, "two ports"},
		{"an exportTo that would become public", func(se *networking.ServiceEntry) { se.ExportTo = []string{"a b"} }, false, "exportTo"},
		{"endpoints", func(se *networking.ServiceEntry) { se.Endpoints = []*networking.WorkloadEntry{{Address: "10.0.0.1"}} }, false, "not made of a Kubernetes service"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := synthetic(t, tc.change)
			check := func(err error) {
				t.Helper()
				if err == nil || !strings.Contains(err.Error(), tc.want) || errors.Is(err, ErrUnreachable) != tc.unreachable || !strings.Contains(err.Error(), r.Key().String()) {
					t.Errorf("error %v, want %q", err, tc.want)
				}
			}
			_, err := WithGateways(r, Gateways{Addresses: []string{"34.0.0.1"}})
			check(err)
			_, _, err = WithEndpoints(r, nil, "")
			check(err)
			_, err = Clusters(r)
			check(err)
		})
	}
}

func TestEachPortHasACluster(t *testing.T) {
	got, err := Clusters(synthetic(t, func(se *networking.ServiceEntry) {
		se.Ports = append(se.Ports, &networking.ServicePort{Number: 53, Name: "dns", Protocol: "UDP"})
	}))
	want := []Cluster{{80, "outbound|80||db.shop.svc.cluster.local"}, {9090, "outbound|9090||db.shop.svc.cluster.local"}}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("got %v, %v", got, err)
	}
}

func TestEndpointsOfAllPortsAreFoldedByAddress(t *testing.T) {
	plain := func(e *endpointv3.LbEndpoint) { e.Metadata = nil }
	weight := func(n uint32) func(*endpointv3.LbEndpoint) {
		return func(e *endpointv3.LbEndpoint) { e.LoadBalancingWeight = wrapperspb.UInt32(n) }
	}
	health := func(s corev3.HealthStatus) func(*endpointv3.LbEndpoint) {
		return func(e *endpointv3.LbEndpoint) { e.HealthStatus = s }
	}
	pipe := func(e *endpointv3.LbEndpoint) {
		e.GetEndpoint().Address = &corev3.Address{Address: &corev3.Address_Pipe{Pipe: &corev3.Pipe{Path: "/x"}}}
	}
	internal := func(e *endpointv3.LbEndpoint) {
		e.GetEndpoint().Address = &corev3.Address{Address: &corev3.Address_EnvoyInternalAddress{EnvoyInternalAddress: &corev3.EnvoyInternalAddress{EndpointId: "10.1.0.1:80"}}}
	}
	for _, tc := range []struct {
		name  string
		all   byPort
		want  []string
		ports string
	}{
		{"one address, two ports", byPort{
			80:   assignment(in("eu", "eu-1", "a", lb("10.1.0.2", 8080), lb("10.1.0.1", 8080, weight(3)))),
			9090: assignment(in("eu", "eu-1", "a", lb("10.1.0.1", 9191, weight(2)), lb("10.1.0.2", 9191, plain))),
		}, []string{"10.1.0.1 http=8080,admin=9191 eu/eu-1/a weight 3", "10.1.0.2 http=8080,admin=9191 eu/eu-1/a"}, "http:80 admin:9090"},
		{"no endpoints", byPort{80: assignment(), 9090: nil}, nil, "http:80 admin:9090"},
		{"unhealthy ones", byPort{
			80: assignment(in("eu", "", "", lb("10.1.0.1", 80, health(corev3.HealthStatus_UNHEALTHY)), lb("10.1.0.2", 80, health(corev3.HealthStatus_DRAINING)),
				lb("10.1.0.3", 80, health(corev3.HealthStatus_TIMEOUT)), lb("10.1.0.4", 80, health(corev3.HealthStatus_DEGRADED)), lb("10.1.0.5", 80, health(corev3.HealthStatus_HEALTHY)))),
			9090: assignment(in("eu", "", "", lb("10.1.0.4", 90), lb("10.1.0.5", 90))),
		}, []string{"10.1.0.4 http=80,admin=90 eu", "10.1.0.5 http=80,admin=90 eu"}, "http:80 admin:9090"},
		{"sockets, internal addresses and names", byPort{
			80:   assignment(in("", "", "", lb("10.1.0.1", 80, pipe), lb("10.1.0.1", 80, internal), lb("gw.example", 80), lb("0.0.0.0", 80), lb("10.1.0.9", 0), lb("::1", 80))),
			9090: assignment(in("", "", "", lb("::1", 90))),
		}, []string{"::1 http=80,admin=90 "}, "http:80 admin:9090"},
		{"gateways, in two localities", byPort{
			80:   assignment(in("eu", "", "", lb("34.0.0.1", 15443, weight(4))), in("us", "", "", lb("34.0.0.1", 15443, weight(2)))),
			9090: assignment(in("us", "", "", lb("34.0.0.1", 15443, weight(2))), in("eu", "", "", lb("34.0.0.1", 15443, weight(4)))),
		}, []string{"34.0.0.1 http=15443,admin=15443 eu weight 4", "34.0.0.1 http=15443,admin=15443 us weight 2"}, "http:80 admin:9090"},
		{"pods on one host's network", byPort{
			80:   assignment(in("", "", "", lb("10.1.0.1", 8081), lb("10.1.0.1", 8080), lb("10.1.0.1", 8080))),
			9090: assignment(in("", "", "", lb("10.1.0.1", 9091), lb("10.1.0.1", 9090))),
		}, []string{"10.1.0.1 http=8080,admin=9090 ", "10.1.0.1 http=8081,admin=9091 "}, "http:80 admin:9090"},
		{"plaintext", byPort{80: assignment(in("", "", "", lb("10.1.0.1", 80, plain))), 9090: assignment(in("", "", "", lb("10.1.0.1", 90, plain)))},
			[]string{"10.1.0.1 http=80,admin=90  plaintext"}, "http:80 admin:9090"},
		{"a port that nobody serves", byPort{80: assignment(in("", "", "", lb("10.1.0.1", 80))), 9090: assignment()},
			[]string{"10.1.0.1 http=80 "}, "http:80"},
		{"an address that serves less than another", byPort{
			80:   assignment(in("", "", "", lb("10.1.0.1", 80), lb("10.1.0.2", 80))),
			9090: assignment(in("", "", "", lb("10.1.0.2", 90))),
		}, []string{"10.1.0.2 http=80,admin=90 "}, "http:80 admin:9090"},
		{"no address serves all ports", byPort{
			80:   assignment(in("", "", "", lb("10.1.0.1", 80))),
			9090: assignment(in("", "", "", lb("10.1.0.2", 90), lb("10.1.0.3", 90))),
		}, []string{"10.1.0.2 admin=90 ", "10.1.0.3 admin=90 "}, "admin:9090"},
		{"a locality that can not be spelled", byPort{
			80:   assignment(in("", "zone", "", lb("10.1.0.1", 80)), in("a/b", "", "", lb("10.1.0.2", 80))),
			9090: assignment(in("", "", "", lb("10.1.0.1", 90), lb("10.1.0.2", 90))),
		}, []string{"10.1.0.1 http=80,admin=90 ", "10.1.0.2 http=80,admin=90 "}, "http:80 admin:9090"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, ports := folded(t, synthetic(t, nil), tc.all)
			if !slices.Equal(got, tc.want) || ports != tc.ports {
				t.Errorf("got  %q, ports %s\nwant %q, ports %s", got, ports, tc.want, tc.ports)
			}
		})
	}
}

func TestLabelsAreThoseOfTheEndpointsMetadata(t *testing.T) {
	for workload, want := range map[string]string{
		"db-v1;shop;db;v1;east":      "canonical-name=db canonical-revision=v1 cluster=east",
		";;;;":                       "",
		";;db;;":                     "canonical-name=db",
		"db;shop;db":                 "",
		"db;shop;db;v1;east;more":    "",
		"db;shop;d b;-v1;" + "e\x00": "",
		"a;b;" + strings.Repeat("x", 64) + ";v1;": "canonical-revision=v1",
	} {
		var got []string
		labels := decodeLabels(labelsOf(workload))
		for _, k := range slices.Sorted(maps.Keys(labels)) {
			_, short, _ := strings.Cut(k, "/")
			got = append(got, short+"="+labels[k])
		}
		if s := strings.Join(got, " "); s != want {
			t.Errorf("%q: %s, want %s", workload, s, want)
		}
	}
}

func TestTheOrderOfEndpointsDoesNotMatter_S10(t *testing.T) {
	r := synthetic(t, nil)
	all := tenEndpoints()
	first, _, err := WithEndpoints(r, all.assignments(), "net-west")
	if err != nil {
		t.Fatal(err)
	}
	for _, cla := range all {
		slices.Reverse(cla.Endpoints)
		for _, l := range cla.Endpoints {
			slices.Reverse(l.LbEndpoints)
		}
	}
	for range 10 {
		again, _, err := WithEndpoints(r, all.assignments(), "net-west")
		if err != nil || !again.Equal(first) {
			t.Fatalf("another resource, %v", err)
		}
	}
}

// tenEndpoints returns the clusters of a service with two ports and ten endpoints.
func tenEndpoints() byPort {
	all := byPort{}
	for _, port := range []uint32{80, 9090} {
		east, west := in("eu", "eu-1", ""), in("eu", "eu-2", "")
		for i := range 5 {
			east.LbEndpoints = append(east.LbEndpoints, lb(fmt.Sprintf("10.1.0.%d", i+1), port+8000))
			west.LbEndpoints = append(west.LbEndpoints, lb(fmt.Sprintf("10.1.1.%d", i+1), port+8000))
		}
		all[port] = assignment(east, west)
	}
	return all
}

func BenchmarkWithEndpoints(b *testing.B) {
	r, all := synthetic(b, nil), tenEndpoints()
	b.ReportAllocs()
	for b.Loop() {
		if _, _, err := WithEndpoints(r, all.assignments(), "net-west"); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkIsSynthetic(b *testing.B) {
	r := synthetic(b, nil)
	b.ReportAllocs()
	for b.Loop() {
		if !IsSynthetic(r) {
			b.Fatal("it is")
		}
	}
}

func FuzzWithEndpoints(f *testing.F) {
	marshal := func(m proto.Message) []byte {
		b, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		return b
	}
	ten := tenEndpoints()
	f.Add(marshal(ten[80]), marshal(ten[9090]), marshal(&networking.ServiceEntry{}))
	f.Add(marshal(assignment(in("a/b", "", "c", lb("::ffff:1.2.3.4", 1)))), []byte{}, marshal(&networking.ServiceEntry{
		Hosts: []string{"a.b"}, ExportTo: []string{"."}, Ports: []*networking.ServicePort{{Number: 80}, {Number: 9090, Name: "x"}},
	}))
	f.Fuzz(func(t *testing.T, http, admin, service []byte) {
		all := byPort{}
		for port, data := range map[uint32][]byte{80: http, 9090: admin} {
			cla := &endpointv3.ClusterLoadAssignment{}
			if proto.Unmarshal(data, cla) == nil {
				all[port] = cla
			}
		}
		se := &networking.ServiceEntry{}
		if proto.Unmarshal(service, se) != nil {
			return
		}
		for _, r := range []*mirror.Resource{synthetic(t, nil), serviceNamed(t, "synthetic-x", se)} {
			if out, _, err := WithEndpoints(r, all.assignments(), "net"); err == nil {
				sound(t, out)
			}
			if out, err := WithGateways(r, Gateways{Addresses: []string{"34.0.0.1", "gw.example"}}); err == nil {
				sound(t, out)
			}
		}
	})
}
