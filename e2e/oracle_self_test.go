package e2e

import (
	"os"
	"slices"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	wasmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/wasm/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"
)

// These are the oracle's own tests. They start nothing.

func packed(t *testing.T, m proto.Message) *anypb.Any {
	t.Helper()
	a, err := anypb.New(m)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestOracleComparesAllButOrderAndWhatRemains(t *testing.T) {
	t.Parallel()
	route := func(cluster string) *routev3.Route {
		return &routev3.Route{Action: &routev3.Route_Route{Route: &routev3.RouteAction{ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: cluster}}}}
	}
	host := func(name string, domains []string, clusters ...string) *routev3.VirtualHost {
		h := &routev3.VirtualHost{Name: name, Domains: domains}
		for _, c := range clusters {
			h.Routes = append(h.Routes, route(c))
		}
		return h
	}
	routes := func(hosts ...*routev3.VirtualHost) proto.Message {
		return &routev3.RouteConfiguration{Name: "80", VirtualHosts: hosts}
	}
	inline := func(hosts ...*routev3.VirtualHost) proto.Message {
		manager := &hcmv3.HttpConnectionManager{RouteSpecifier: &hcmv3.HttpConnectionManager_RouteConfig{RouteConfig: routes(hosts...).(*routev3.RouteConfiguration)}}
		return &listenerv3.Listener{FilterChains: []*listenerv3.FilterChain{{Filters: []*listenerv3.Filter{{ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: packed(t, manager)}}}}}}
	}
	endpoints := func(addresses ...string) proto.Message {
		l := &endpointv3.LocalityLbEndpoints{}
		for _, a := range addresses {
			l.LbEndpoints = append(l.LbEndpoints, &endpointv3.LbEndpoint{HostIdentifier: &endpointv3.LbEndpoint_EndpointName{EndpointName: a}})
		}
		return &endpointv3.ClusterLoadAssignment{ClusterName: "c", Endpoints: []*endpointv3.LocalityLbEndpoints{l}}
	}
	chains := func(config string, names ...string) proto.Message {
		l := &listenerv3.Listener{}
		for _, n := range names {
			l.FilterChains = append(l.FilterChains, &listenerv3.FilterChain{
				FilterChainMatch: &listenerv3.FilterChainMatch{ServerNames: []string{n}},
				Metadata: &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{"istio": {Fields: map[string]*structpb.Value{
					"config": structpb.NewStringValue(config),
				}}}},
			})
		}
		return l
	}
	wasm := func(url, version string) proto.Message {
		return &corev3.TypedExtensionConfig{TypedConfig: packed(t, &wasmv3.PluginConfig{Name: url, Vm: &wasmv3.PluginConfig_VmConfig{
			VmConfig: &wasmv3.VmConfig{EnvironmentVariables: &wasmv3.EnvironmentVariables{KeyValues: map[string]string{wasmVersion: version}}},
		}})}
	}
	const vs = "/apis/networking.istio.io/v1alpha3/namespaces/shop/virtual-service/db"
	a, b := host("a", []string{"a", "a.shop"}, "x", "y"), host("b", []string{"b"}, "x")

	for _, tc := range []struct {
		name        string
		direct, fed proto.Message
		same        bool
	}{
		{"virtual hosts in another order", routes(a, b), routes(b, a), true},
		{"domains in another order", routes(a), routes(host("a", []string{"a.shop", "a"}, "x", "y")), true},
		{"routes in another order", routes(a), routes(host("a", []string{"a", "a.shop"}, "y", "x")), false},
		{"a virtual host less", routes(a, b), routes(a), false},
		{"a domain less", routes(a), routes(host("a", []string{"a"}, "x", "y")), false},
		{"another cluster", routes(b), routes(host("b", []string{"b"}, "z")), false},
		{"in a listener, in another order", inline(a, b), inline(b, a), true},
		{"in a listener, another cluster", inline(b), inline(host("b", []string{"b"}, "z")), false},
		{"endpoints in another order", endpoints("1", "2"), endpoints("2", "1"), true},
		{"an endpoint twice", endpoints("1", "2"), endpoints("1", "2", "2"), false},
		{"filter chains in another order", chains(vs, "a.example", "b.example"), chains(vs, "b.example", "a.example"), true},
		{"a filter chain less", chains(vs, "a.example", "b.example"), chains(vs, "b.example"), false},
		{"a server name that is complete", chains(vs, "db"), chains(vs, "db.shop.svc.cluster.local"), true},
		{"a server name of another namespace", chains(vs, "db"), chains(vs, "db.bank.svc.cluster.local"), false},
		{"a server name that is complete, at a gateway", chains("", "db"), chains("", "db.shop.svc.cluster.local"), true},
		{"another server name, at a gateway", chains("", "db"), chains("", "web.shop.svc.cluster.local"), false},
		{"a server name that is half complete, at a gateway", chains("", "db"), chains("", "db.shop"), false},
		{"another version of a plugin", wasm("a", "1"), wasm("a", "2"), true},
		{"another plugin", wasm("a", "1"), wasm("b", "1"), false},
		{"a plugin without a version", wasm("a", "1"), wasm("a", ""), false},
		{"one that is missing", routes(a), nil, false},
		{"one too much", nil, routes(a), false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			direct, fed := envoyConfig{rdsType: {}}, envoyConfig{rdsType: {}}
			if tc.direct != nil {
				direct[rdsType]["r"] = tc.direct
			}
			if tc.fed != nil {
				fed[rdsType]["r"] = tc.fed
			}
			if found := compare("p", direct, fed); (len(found) == 0) != tc.same {
				t.Errorf("same is not %v: %v", tc.same, found)
			}
		})
	}
}

func TestOracleSetsAreValidAndHaveAllKinds(t *testing.T) {
	t.Parallel()
	for _, m := range readManifests(t, "testdata/oracle") {
		if err := m.invalid(); err != nil {
			t.Errorf("%s: %v", m.key(), err)
		}
	}
	kinds := map[string]int{}
	for seed := range 20 {
		set := randomSet(seed)
		for _, m := range set {
			kinds[m.Kind]++
		}
		if again := randomSet(seed); !slices.EqualFunc(set, again, func(a, b manifest) bool { return a.key() == b.key() && string(a.Spec) == string(b.Spec) }) {
			t.Errorf("seed %d gives another set the second time", seed)
		}
	}
	for _, kind := range []string{
		"ServiceEntry", "WorkloadEntry", "VirtualService", "DestinationRule", "Gateway", "Sidecar",
		"AuthorizationPolicy", "PeerAuthentication", "RequestAuthentication",
	} {
		if kinds[kind] < 10 {
			t.Errorf("20 random sets have %d of %s", kinds[kind], kind)
		}
	}
}

func TestDocumentsTellOfEveryDifferenceThatRemains(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile("../docs/oracle.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range remaining {
		if r.why == "" || !strings.Contains(string(doc), "| "+r.what+" |") {
			t.Errorf("docs/oracle.md has no row for %q, or it has no reason", r.what)
		}
	}
}
