package e2e

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"sigs.k8s.io/yaml"

	"meshrelay/e2e/internal/converter"
)

// Two Ingresses share a host. The certificate is of the second one.
const sharedHost = `
kind: Ingress
metadata: {namespace: shop, name: one, creationTimestamp: "2024-01-01T00:00:00Z"}
spec:
  rules:
  - {host: shop.example, http: {paths: [{path: /one, pathType: Prefix, backend: {service: {name: one, port: {number: 80}}}}]}}
---
kind: Ingress
metadata: {namespace: bank, name: two, creationTimestamp: "2024-01-02T00:00:00Z"}
spec:
  tls: [{hosts: [shop.example], secretName: cert}]
  rules:
  - {host: shop.example, http: {paths: [{path: /two, pathType: Prefix, backend: {service: {name: two, port: {number: 80}}}}]}}
`

// TestIngressesThatShareAHostWithTLSServeIt asks an istiod what it makes of the relay's conversion
// for the ingress proxies: both paths of the host, with and without TLS. With the VirtualService
// bound to the first Gateway only, as istiod does, HTTPS leads nowhere.
func TestIngressesThatShareAHostWithTLSServeIt(t *testing.T) {
	c, err := converter.Start("..", t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	outputs, err := converter.Convert(c, converter.Options{Mode: converter.Default}, manifests(t, sharedHost))
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Stop(); err != nil {
		t.Fatal(err)
	}
	both := []string{"http shop.example /one", "http shop.example /two", "https shop.example /one", "https shop.example /two"}
	if got := ingressRoutes(t, "relay", outputs); !slices.Equal(got, both) {
		t.Errorf("the relay's: %q, want %q", got, both)
	}
	for _, o := range outputs {
		if o.VirtualService != nil {
			o.VirtualService.Gateways = o.VirtualService.Gateways[:1]
		}
	}
	if got := ingressRoutes(t, "istiod", outputs); !slices.Equal(got, both[:2]) {
		t.Errorf("istiod's: %q, want %q: is the difference needed no more?", got, both[:2])
	}
}

func manifests(t *testing.T, documents string) (objects []any) {
	t.Helper()
	for doc := range strings.SplitSeq(documents, "\n---\n") {
		var o any
		if err := yaml.Unmarshal([]byte(doc), &o); err != nil {
			t.Fatal(err)
		}
		objects = append(objects, o)
	}
	return objects
}

// ingressRoutes returns the routes that an istiod with the outputs as files sends to an ingress
// proxy, each once: "http" or "https", the host and the prefix.
func ingressRoutes(t *testing.T, name string, outputs []converter.Output) []string {
	t.Helper()
	i := newIstiod(t, name)
	for _, o := range outputs {
		var body proto.Message = o.Gateway
		if o.Gateway == nil {
			body = o.VirtualService
		}
		spec, err := protojson.Marshal(body)
		if err != nil {
			t.Fatal(err)
		}
		manifest := encode(t, map[string]any{
			"apiVersion": "networking.istio.io/v1", "kind": o.Kind,
			"metadata": map[string]any{"namespace": o.Namespace, "name": o.Name, "annotations": o.Annotations},
			"spec":     yamlValue(t, spec),
		})
		writeFile(t, filepath.Join(i.configDir, o.Kind+o.Name+".yaml"), manifest)
	}
	i.start().ready()
	config, err := dial(t, i.grpc).fetch(proxy{kind: "router", name: "ingress", namespace: "istio-system", labels: map[string]string{"istio": "ingressgateway"}})
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for _, m := range config[rdsType] {
		r := m.(*routev3.RouteConfiguration)
		for _, host := range r.VirtualHosts {
			for _, route := range host.Routes {
				if prefix := route.GetMatch().GetPathSeparatedPrefix(); prefix != "" {
					scheme, _, _ := strings.Cut(r.Name, ".")
					found[fmt.Sprintf("%s %s %s", scheme, host.Domains[0], prefix)] = true
				}
			}
		}
	}
	return slices.Sorted(maps.Keys(found))
}

func yamlValue(t *testing.T, b []byte) (v any) {
	t.Helper()
	if err := yaml.Unmarshal(b, &v); err != nil {
		t.Fatal(err)
	}
	return v
}
