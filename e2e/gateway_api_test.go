package e2e

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// gatewayObjects are of the standard and the experimental channel of the Gateway API. One is of a
// version that the relay does not know.
var gatewayObjects = []struct{ plural, manifest string }{
	{"httproutes", `
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {namespace: shop, name: front, labels: {team: shop, istio.io/rev: canary}}
spec:
  parentRefs: [{name: public, namespace: istio-ingress, sectionName: https}]
  hostnames: [shop.example, "*.shop.example"]
  rules:
  - matches: [{path: {type: PathPrefix, value: /cart}, headers: [{name: x-tester, type: Exact, value: "true"}]}]
    filters: [{type: RequestHeaderModifier, requestHeaderModifier: {set: [{name: x-from, value: gateway}], remove: [x-debug]}}]
    backendRefs: [{name: cart-v1, port: 8080, weight: 90}, {name: cart-v2, port: 8080, weight: 10}]
    timeouts: {request: 10s, backendRequest: 2s}
`},
	{"tcproutes", `
apiVersion: gateway.networking.k8s.io/v1alpha2
kind: TCPRoute
metadata: {namespace: shop, name: db, labels: {team: data}}
spec:
  parentRefs: [{name: internal, port: 5432}]
  rules: [{name: all, backendRefs: [{group: "", kind: Service, name: postgres, port: 5432, weight: 1}]}]
`},
	{"xbackendtrafficpolicies", `
apiVersion: gateway.networking.x-k8s.io/v1alpha1
kind: XBackendTrafficPolicy
metadata: {namespace: shop, name: budget}
spec:
  targetRefs: [{group: "", kind: Service, name: cart-v1}]
  retryConstraint: {budget: {percent: 20, interval: 10s}, minRetryRate: {count: 10, interval: 1s}}
`},
	{"udproutes", `
apiVersion: gateway.networking.k8s.io/v1beta7
kind: UDPRoute
metadata: {namespace: shop, name: dns}
spec:
  parentRefs: [{name: internal, port: 53}]
  rules: [{backendRefs: [{name: dns, port: 53, weight: 0.5}], unheardOf: [{a: null, b: []}, true, -1]}]
`},
	{"xlistenersets", `
apiVersion: gateway.networking.x-k8s.io/v1alpha1
kind: XListenerSet
metadata: {namespace: shop, name: more}
spec: {parentRef: {name: public, namespace: istio-ingress}, listeners: [{name: more, port: 8443, protocol: TLS}]}
`},
}

// TestGatewayAPIObjectsPassToRelaysToolsAndFiles_K1 follows objects from an API server to a relay, to
// one behind it, to what "relay get" prints, and to a relay that reads this from a file.
func TestGatewayAPIObjectsPassToRelaysToolsAndFiles_K1(t *testing.T) {
	t.Parallel()
	k := newKubernetes(t, "east")
	k.createNamespace("shop")
	var written []object
	for _, g := range gatewayObjects {
		var o object
		if err := yaml.Unmarshal([]byte(g.manifest), &o); err != nil {
			t.Fatal(err)
		}
		group, version := filepath.Split(o.APIVersion)
		k.define(filepath.Clean(group), o.Kind, g.plural, version)
		k.apply(g.manifest)
		written = append(written, o)
	}
	want, err := configsOf(written)
	if err != nil {
		t.Fatal(err)
	}
	hub := relayOf(t, "hub", fmt.Sprintf(`upstreams:
- {name: east, kubernetes: {cluster: {kubeconfig: %q}}}
downstream: {listeners: [{address: "XDS", plaintext: true}]}
`, k.kubeconfig)).start().ready()
	leaf := relayOf(t, "leaf", fmt.Sprintf(`upstreams:
- {name: hub, xds: {addresses: [%q], plaintext: true}}
downstream: {listeners: [{address: "XDS", plaintext: true}]}
`, hub.xds)).start().ready()
	for _, r := range []*relay{hub, leaf} {
		eventually(t, "the relay "+r.name+" has all as they are written", func() error { return differs(r.configs(), want) })
	}

	cmd := exec.CommandContext(t.Context(), binary(t, "RELAY_BIN", "../bin/relay"), "get", "all", "-A", "-o", "yaml", "--server", hub.xds, "--timeout", patience.String())
	printed, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var read []object
	for doc := range strings.SplitSeq(string(printed), "\n---\n") {
		var o object
		if err := yaml.Unmarshal([]byte(doc), &o); err != nil {
			t.Fatal(err)
		}
		read = append(read, o)
	}
	got, err := configsOf(read)
	if err != nil {
		t.Fatal(err)
	}
	if err := differs(got, want); err != nil {
		t.Errorf("relay get prints: %v", err)
	}
	path := filepath.Join(t.TempDir(), "printed.yaml")
	writeFile(t, path, string(printed))
	file := newRelay(t, "file", []string{"printed=" + path}).start().ready()
	eventually(t, "a relay that reads them from the file has all", func() error { return differs(file.configs(), want) })
}
