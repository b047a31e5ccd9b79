package e2e

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
)

// health is what a WorkloadEntry tells: its annotation, and the status of the condition Healthy. Either
// may be missing.
type health struct{ checked, status string }

// TestUnhealthyWorkloadsGetNoTraffic_K11 has an istiod read WorkloadEntries and their status from an API
// server, and another one have them by way of a relay. Both send their proxies the same endpoints.
func TestUnhealthyWorkloadsGetNoTraffic_K11(t *testing.T) {
	t.Parallel()
	k := newKubernetes(t, "east")
	k.defineIstio()
	for _, namespace := range []string{"istio-system", "shop"} {
		k.createNamespace(namespace)
	}
	k.apply(`{apiVersion: networking.istio.io/v1, kind: ServiceEntry, metadata: {namespace: shop, name: vm}, spec: {hosts: [vm.example],
location: MESH_INTERNAL, resolution: STATIC, ports: [{number: 80, name: http, protocol: HTTP}], workloadSelector: {labels: {app: vm}}}}`)
	entry := func(name string, h health) {
		t.Helper()
		object := fmt.Sprintf("{apiVersion: networking.istio.io/v1, kind: WorkloadEntry, metadata: {namespace: shop, name: vm-%s", name)
		annotations := ""
		if h.checked != "" {
			annotations = fmt.Sprintf(", annotations: {proxy.istio.io/health-checks-enabled: %q}", h.checked)
		}
		k.apply(object + annotations + "}, spec: {address: 10.9.0." + name + ", labels: {app: vm}}}")
		conditions := "{type: Other, status: \"True\"}"
		if h.status != "" {
			conditions += fmt.Sprintf(", {type: Healthy, status: %q}", h.status)
		}
		k.applyStatus(object + "}, status: {conditions: [" + conditions + "]}}")
	}
	entries := map[string]health{
		"1": {"true", "True"}, "2": {"true", "False"}, "3": {"true", ""}, "4": {"", ""},
		"5": {"", "False"}, "6": {"false", "False"}, "7": {"true", "Unknown"}, "8": {"true", "True"},
	}
	for name, h := range entries {
		entry(name, h)
	}
	native := newNativeIstiod(t, k).inOracle().start().ready()
	r := relayOf(t, "hub", fmt.Sprintf(`upstreams:
- {name: east, kubernetes: {cluster: {kubeconfig: %q}}, guard: {percent: 100}}
downstream: {listeners: [{address: "XDS", plaintext: true}]}
`, k.kubeconfig)).start().ready()
	fed := newIstiod(t, "fed", r.xds).inOracle().start().ready()
	const cluster = "outbound|80||vm.example"
	direct, behind := dial(t, native.grpc).envoy(proxy{}), dial(t, fed.grpc).envoy(proxy{})
	healthy := func(names ...string) {
		t.Helper()
		var want []string
		for _, name := range names {
			want = append(want, "10.9.0."+name+":80")
		}
		direct.waitEndpoints(cluster, want...)
		behind.waitEndpoints(cluster, want...)
		a, _ := direct.details(cluster)
		b, _ := behind.details(cluster)
		if !slices.Equal(a, b) {
			t.Errorf("the endpoints are %v, behind the relay %v", a, b)
		}
		// An istiod leaves none out of what it serves over MCP.
		for address, want := range map[string]int{native.grpc: len(entries), r.xds: len(names)} {
			served, err := dial(t, address).list("networking.istio.io/v1alpha3/WorkloadEntry")
			if err != nil {
				t.Fatal(err)
			}
			if len(served) != want {
				t.Errorf("%s are served over MCP, want %d", strings.Join(slices.Sorted(maps.Keys(served)), " "), want)
			}
		}
	}
	healthy("1", "4", "5", "6", "8")
	entry("1", health{"true", "False"})
	entry("2", health{"true", "True"})
	entry("3", health{"true", "True"})
	entry("8", health{"true", ""})
	healthy("2", "3", "4", "5", "6")
}
