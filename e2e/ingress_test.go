package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	mcp "istio.io/api/mcp/v1alpha1"
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
	t.Parallel()
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

// What an API server with these has changes by liveChanges.
const liveIngresses = `
apiVersion: v1
kind: Service
metadata: {namespace: shop, name: front}
spec: {ports: [{name: http, port: 8080}, {name: web, port: 80}]}
---
apiVersion: networking.k8s.io/v1
kind: IngressClass
metadata: {name: ours}
spec: {controller: istio.io/ingress-controller}
---
apiVersion: networking.k8s.io/v1
kind: IngressClass
metadata: {name: other}
spec: {controller: k8s.io/ingress-nginx}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {namespace: shop, name: early, annotations: {note: x}}
spec:
  ingressClassName: ours
  tls: [{hosts: ["*.shop.example", secure.example], secretName: cert}, {hosts: [shop.example]}]
  rules:
  - host: shop.example
    http:
      paths:
      - {path: /, pathType: Prefix, backend: {service: {name: front, port: {name: http}}}}
      - {path: /exact, pathType: Exact, backend: {service: {name: front, port: {number: 81}}}}
      - {path: /any/*, pathType: ImplementationSpecific, backend: {service: {name: front, port: {name: web}}}}
  - host: "*.shop.example"
    http: {paths: [{pathType: ImplementationSpecific, backend: {service: {name: front, port: {name: none}}}}]}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {namespace: bank, name: late}
spec:
  defaultBackend: {service: {name: front, port: {number: 80}}}
  rules:
  - host: shop.example
    http: {paths: [{path: /bank, pathType: Prefix, backend: {service: {name: front, port: {number: 80}}}}]}
  - http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: front, port: {number: 80}}}}]}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {namespace: bank, name: theirs}
spec:
  ingressClassName: other
  rules:
  - host: theirs.example
    http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: front, port: {number: 80}}}}]}
`

var liveChanges = []string{`
apiVersion: v1
kind: Service
metadata: {namespace: shop, name: front}
spec: {ports: [{name: none, port: 8080}, {name: web, port: 82}]}
`, `
apiVersion: networking.k8s.io/v1
kind: IngressClass
metadata: {name: third}
spec: {controller: istio.io/ingress-controller}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {namespace: bank, name: theirs}
spec:
  ingressClassName: third
  rules:
  - host: theirs.example
    http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: front, port: {number: 80}}}}]}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {namespace: shop, name: early}
spec:
  ingressClassName: other
  defaultBackend: {service: {name: front, port: {number: 80}}}
`}

// TestIngressesAreConvertedAsALiveIstiodDoes compares what an istiod serves over MCP with what the
// relay makes of the same API server's objects.
func TestIngressesAreConvertedAsALiveIstiodDoes(t *testing.T) {
	t.Parallel()
	c, err := converter.Start("..", t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
	})
	k := newKubernetes(t, "ingress")
	for _, namespace := range []string{"istio-system", "shop", "bank"} {
		k.createNamespace(namespace)
	}
	apply := func(documents string) {
		for doc := range strings.SplitSeq(documents, "\n---\n") {
			k.apply(doc)
		}
	}
	apply(liveIngresses)
	i := newKubernetesIstiod(t, k, eastNetwork)
	mesh, err := os.ReadFile(i.mesh)
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, i.mesh, string(mesh)+"ingressControllerMode: DEFAULT\n")
	// As in a cluster, where the istiod has it from there.
	k.apply("{apiVersion: v1, kind: ConfigMap, metadata: {namespace: istio-system, name: istio}, data: {mesh: " + encode(t, string(mesh)+"ingressControllerMode: DEFAULT\n") + "}}")
	i.start().ready()
	hub := relayOf(t, "hub", fmt.Sprintf(`upstreams:
- {name: cluster, kubernetes: {cluster: {kubeconfig: %q}, ingress: {mode: mesh, names: "1.23"}}, guard: {percent: 100}}
downstream: {listeners: [{address: "XDS", plaintext: true}]}
`, k.kubeconfig)).start().ready()
	leaf := relayOf(t, "leaf", fmt.Sprintf(`upstreams:
- {name: hub, xds: {addresses: [%q], plaintext: true}, guard: {percent: 100}}
downstream: {listeners: [{address: "XDS", plaintext: true}]}
`, hub.xds)).start().ready()
	seen := map[string]bool{}
	for n := 0; ; n++ {
		eventually(t, fmt.Sprintf("both convert the same after %d changes", n), func() error {
			live := liveOutputs(t, i.grpc)
			own, err := converter.Convert(c, converter.Options{Mode: converter.Default, Older: true}, liveObjects(t, k))
			if err != nil {
				return err
			}
			for _, o := range own {
				seen[o.Kind+" "+o.Namespace+"/"+o.Name] = true
			}
			return sameOutputs(own, live)
		})
		// So do a relay that mirrors the API server, and a relay behind that one.
		for _, address := range []string{hub.xds, leaf.xds} {
			eventually(t, fmt.Sprintf("the relays have what istiod has after %d changes", n), func() error {
				return sameResources(liveOutputs(t, address), liveOutputs(t, i.grpc))
			})
		}
		if n == len(liveChanges) {
			break
		}
		apply(liveChanges[n])
	}
	want := []string{
		"Gateway istio-system/early-istio-autogenerated-k8s-ingress-shop",
		"Gateway istio-system/late-istio-autogenerated-k8s-ingress-bank",
		"Gateway istio-system/theirs-istio-autogenerated-k8s-ingress-bank",
		"VirtualService bank/-late-istio-autogenerated-k8s-ingress",
		"VirtualService bank/shop-example-late-istio-autogenerated-k8s-ingress",
		"VirtualService bank/theirs-example-theirs-istio-autogenerated-k8s-ingress",
		"VirtualService shop/*-shop-example-early-istio-autogenerated-k8s-ingress",
		"VirtualService shop/shop-example-early-istio-autogenerated-k8s-ingress",
	}
	for _, name := range want {
		if !seen[name] {
			t.Errorf("%s was never there", name)
		}
	}
}

// TestAnIngressControllerAndTheRelayHaveEachRouteOnce_K13 has an istiod that converts Ingresses itself
// get them converted from the relay as well. Under the same names they count once.
func TestAnIngressControllerAndTheRelayHaveEachRouteOnce_K13(t *testing.T) {
	t.Parallel()
	k := newKubernetes(t, "ingress")
	const path = "{path: %s, pathType: Prefix, backend: {service: {name: front, port: {number: 80}}}}"
	for namespace, rules := range map[string]string{
		"istio-system": "",
		"shop":         "[{host: shop.example, http: {paths: [" + fmt.Sprintf(path, "/shop") + "]}}, {http: {paths: [" + fmt.Sprintf(path, "/any") + "]}}]",
		"bank":         "[{host: shop.example, http: {paths: [" + fmt.Sprintf(path, "/bank") + "]}}]",
	} {
		k.createNamespace(namespace)
		if rules != "" {
			k.apply("{apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: {namespace: " + namespace + ", name: front}, spec: {rules: " + rules + "}}")
		}
	}
	once := []string{"http * /any", "http shop.example /bank", "http shop.example /shop"}
	for names, want := range map[string][]string{
		"1.23":    once,
		"current": slices.Concat(once[:1], once), // the name of rules without a host is another one
	} {
		hub := relayOf(t, "hub", fmt.Sprintf(`upstreams:
- {name: cluster, kubernetes: {cluster: {kubeconfig: %q}, ingress: {mode: default, names: %q}}}
downstream: {listeners: [{address: "XDS", plaintext: true}]}
`, k.kubeconfig, names)).start().ready()
		i := newKubernetesIstiod(t, k, eastNetwork, hub.xds)
		mesh, err := os.ReadFile(i.mesh)
		if err != nil {
			t.Fatal(err)
		}
		writeFile(t, i.mesh, string(mesh)+"ingressControllerMode: DEFAULT\n")
		i.start().ready()
		eventually(t, "the routes with names: "+names, func() error {
			if got := gatewayRoutes(t, i); !slices.Equal(got, want) {
				return fmt.Errorf("%q, want %q", got, want)
			}
			return nil
		})
	}
}

// liveObjects returns the objects that the API server has.
func liveObjects(t *testing.T, k *kubernetes) (all []map[string]any) {
	t.Helper()
	for kind, path := range map[string]string{
		"Ingress": "/apis/networking.k8s.io/v1/ingresses", "IngressClass": "/apis/networking.k8s.io/v1/ingressclasses", "Service": "/api/v1/services",
	} {
		b, err := k.ask(http.MethodGet, path, "", nil)
		if err != nil {
			t.Fatal(err)
		}
		var list struct{ Items []map[string]any }
		if err := json.Unmarshal(b, &list); err != nil {
			t.Fatal(err)
		}
		for _, o := range list.Items {
			o["kind"] = kind // items of a list do not have it
			all = append(all, o)
		}
	}
	return all
}

// liveOutputs returns the Gateways and VirtualServices that an istiod or a relay serves, by kind and name.
func liveOutputs(t *testing.T, address string) map[string]*mcp.Resource {
	t.Helper()
	all := map[string]*mcp.Resource{}
	for _, kind := range []string{"Gateway", "VirtualService"} {
		list, err := dial(t, address).list("networking.istio.io/v1alpha3/" + kind)
		if err != nil {
			t.Fatal(err)
		}
		for name, r := range list {
			all[kind+" "+name] = r
		}
	}
	return all
}

func sameOutputs(own []converter.Output, live map[string]*mcp.Resource) error {
	if len(own) != len(live) {
		return fmt.Errorf("the relay has %d, istiod %d: %v", len(own), len(live), slices.Sorted(maps.Keys(live)))
	}
	for _, o := range own {
		name := o.Kind + " " + o.Namespace + "/" + o.Name
		r := live[name]
		if r == nil {
			return fmt.Errorf("istiod does not have %s: %v", name, slices.Sorted(maps.Keys(live)))
		}
		body, err := r.Body.UnmarshalNew()
		if err != nil {
			return err
		}
		var have proto.Message = o.Gateway
		if o.Gateway == nil {
			have = o.VirtualService
		}
		if !proto.Equal(have, body) || !maps.Equal(o.Annotations, r.Metadata.Annotations) || len(r.Metadata.Labels) > 0 {
			return fmt.Errorf("%s\nrelay  %v %v\nistiod %v %v %v", name, have, o.Annotations, body, r.Metadata.Annotations, r.Metadata.Labels)
		}
	}
	return nil
}

// sameResources returns how what a relay serves differs from what an istiod does.
func sameResources(relay, istiod map[string]*mcp.Resource) error {
	if have, want := slices.Sorted(maps.Keys(relay)), slices.Sorted(maps.Keys(istiod)); !slices.Equal(have, want) {
		return fmt.Errorf("the relay has %q, istiod %q", have, want)
	}
	for name, want := range istiod {
		have := relay[name]
		delete(have.Metadata.Annotations, "meshrelay.io/from")
		// Byte for byte.
		if !proto.Equal(have.Body, want.Body) || !maps.Equal(have.Metadata.Annotations, want.Metadata.Annotations) || len(have.Metadata.Labels) > 0 {
			return fmt.Errorf("%s\nrelay  %v\nistiod %v", name, have, want)
		}
	}
	return nil
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
	return slices.Compact(gatewayRoutes(t, i.start().ready()))
}

// gatewayRoutes returns the routes that an istiod sends to an ingress proxy, in order, as often as it
// does.
func gatewayRoutes(t *testing.T, i *istiod) (found []string) {
	t.Helper()
	config, err := dial(t, i.grpc).fetch(proxy{kind: "router", name: "ingress", namespace: "istio-system", labels: map[string]string{"istio": "ingressgateway"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range config[rdsType] {
		r := m.(*routev3.RouteConfiguration)
		for _, host := range r.VirtualHosts {
			for _, route := range host.Routes {
				if prefix := route.GetMatch().GetPathSeparatedPrefix(); prefix != "" {
					scheme, _, _ := strings.Cut(r.Name, ".")
					found = append(found, fmt.Sprintf("%s %s %s", scheme, host.Domains[0], prefix))
				}
			}
		}
	}
	slices.Sort(found)
	return found
}

func yamlValue(t *testing.T, b []byte) (v any) {
	t.Helper()
	if err := yaml.Unmarshal(b, &v); err != nil {
		t.Fatal(err)
	}
	return v
}
