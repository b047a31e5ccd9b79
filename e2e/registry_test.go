package e2e

import (
	"fmt"
	"net/http"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// registry is a server that behaves as Nacos does, or as Higress' controller. It is a process because
// its module has other versions of the same modules.
type registry struct {
	*process
	t    *testing.T
	http string // address of Nacos' HTTP API
	xds  string
}

func newRegistry(t *testing.T, http, xds string, flags ...string) *registry {
	t.Helper()
	r := &registry{t: t, http: http, xds: xds}
	args := append([]string{"-http", http, "-xds", xds}, flags...)
	r.process = run(t, "nacos "+strings.Join(flags, " "), "", nil, binary(t, "NACOS_BIN", "bin/nacos"), args...)
	return r
}

// instance adds or changes an instance of a service, or removes it, by the parameters of Nacos' API:
// "weight=3 healthy=false".
func (r *registry) instance(method, service, ip string, parameters ...string) {
	r.t.Helper()
	query := url.Values{"serviceName": {service}, "ip": {ip}, "port": {"8080"}}
	for _, p := range parameters {
		k, v, _ := strings.Cut(p, "=")
		query.Set(k, v)
	}
	eventually(r.t, "the registry takes an instance of "+service, func() error {
		req, err := http.NewRequestWithContext(r.t.Context(), method, "http://"+r.http+"/nacos/v1/ns/instance?"+query.Encode(), nil)
		if err != nil {
			return err
		}
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("%s", resp.Status)
		}
		return nil
	})
}

func (r *registry) put(service, ip string, parameters ...string) {
	r.t.Helper()
	r.instance(http.MethodPost, service, ip, parameters...)
}

// fromRegistry is a ServiceEntry of a registry, as a file. Each endpoint is "ADDRESS WEIGHT", of the
// same port.
func fromRegistry(namespace, name, host, port string, labels string, endpoints ...string) string {
	text := fmt.Sprintf(`apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {namespace: %s, name: %s, creationTimestamp: "2024-05-01T10:00:00Z"}
spec:
  hosts: [%s]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 8080, name: %s, protocol: HTTP}]
`, namespace, name, host, port)
	if len(endpoints) > 0 {
		text += "  endpoints:\n"
	}
	for _, e := range endpoints {
		ip, weight, _ := strings.Cut(e, " ")
		text += fmt.Sprintf("  - {address: %s, weight: %s, ports: {%s: 8080}, labels: {%s}}\n", ip, weight, port, labels)
	}
	return text
}

const (
	nacosCluster   = "outbound|8080||Orders.DEFAULT-GROUP.public.nacos"
	higressCluster = "outbound|8080||cards.pay.public.nacos"
	nacosFile      = "Orders.DEFAULT-GROUP.public"
	higressFile    = "cards.pay.public.nacos"
	nacosLabels    = `cluster: DEFAULT, version: v1`
	v1             = `metadata={"version":"v1"}`
)

// TestRegistriesReachEnvoysAsFromFiles: a relay joins a Nacos and a Higress with an istiod. What an
// istiod behind it sends to a proxy is what one sends that reads the same configs from files.
func TestRegistriesReachEnvoysAsFromFiles(t *testing.T) {
	t.Parallel()
	nacos := newRegistry(t, freePort(t), freePort(t))
	higress := newRegistry(t, freePort(t), freePort(t), "-higress")
	nacos.put("Orders", "10.1.0.1", v1)
	nacos.put("Orders", "10.1.0.2", v1, "weight=3")
	nacos.put("Orders", "10.1.0.3", v1, "healthy=false")
	higress.put("cards", "10.1.0.9", "groupName=pay")

	mesh := newIstiod(t, "mesh")
	copySamples(t, "east", mesh.configDir)
	mesh.start().ready()
	relayOf := func(name, upstreams string) *relay {
		r := newRelay(t, name, nil)
		writeFile(t, r.config, fmt.Sprintf("node: {id: %s}\nadmin: {address: %q}\nupstreams:\n%sdownstream: {listeners: [{address: %q, plaintext: true}]}\n", name, r.admin, upstreams, r.xds))
		return r.start()
	}
	r := relayOf("hub", fmt.Sprintf(`
- {name: mesh, xds: {addresses: [%q], plaintext: true}}
- {name: nacos, xds: {addresses: [%q], plaintext: true, protocol: sotw}, import: {kinds: [serviceentries]}, guard: {profile: registry}}
- {name: higress, xds: {addresses: [%q], plaintext: true, protocol: sotw, partial: true}, guard: {profile: registry}}
`, mesh.grpc, nacos.xds, higress.xds))
	plain := relayOf("plain", fmt.Sprintf("- {name: nacos, xds: {addresses: [%q], plaintext: true, protocol: sotw}, import: {kinds: [serviceentries]}}\n", nacos.xds))
	r.ready()
	plain.ready()

	own := serviceEntry("own", "own.example")
	fed := newIstiod(t, "fed")
	writeFile(t, fed.mesh, fmt.Sprintf("trustDomain: one.example\nconfigSources:\n- address: fs://%s\n- address: xds://%s\n", fed.configDir, r.xds))
	writeFile(t, filepath.Join(fed.configDir, "own.yaml"), own)
	files := newIstiod(t, "files")
	writeFile(t, files.mesh, "trustDomain: one.example\n")
	copySamples(t, "east", files.configDir)
	writeFile(t, filepath.Join(files.configDir, "own.yaml"), own)
	for _, i := range []*istiod{fed, files} {
		i.args = append(i.args, "--clusterID", "one") // proxies are told the cluster of each endpoint
	}
	inFile := func(name, content string) { writeFile(t, filepath.Join(files.configDir, name+".yaml"), content) }
	orders := func(endpoints ...string) string {
		return fromRegistry("public", nacosFile, "Orders.DEFAULT-GROUP.public.nacos", "http", nacosLabels, endpoints...)
	}
	cards := func(endpoints ...string) string {
		return fromRegistry("mcp", higressFile, "cards.pay.public.nacos", "HTTP", "", endpoints...)
	}
	inFile(nacosFile, orders("10.1.0.1 1", "10.1.0.2 3"))
	inFile(higressFile, cards("10.1.0.9 0"))
	fed.start().ready()
	files.start().ready()
	asked := proxy{cluster: "one"}
	fromRelay, fromFiles := dial(t, fed.grpc).envoy(asked), dial(t, files.grpc).envoy(asked)
	same := func(t *testing.T) {
		t.Helper()
		fromRelay.wait("the proxies are sent the same", func() error { return fromRelay.differs(fromFiles) })
	}

	t.Run("AtFirst", func(t *testing.T) {
		fromFiles.waitEndpoints(nacosCluster, "10.1.0.1:8080", "10.1.0.2:8080")
		fromFiles.waitEndpoints(higressCluster, "10.1.0.9:8080")
		same(t)
		if fromRelay.cluster("outbound|443||own.example") == nil {
			t.Error("the istiod has not what is its own")
		}
	})

	t.Run("AWeightChanges", func(t *testing.T) {
		nacos.put("Orders", "10.1.0.2", v1, "weight=5")
		inFile(nacosFile, orders("10.1.0.1 1", "10.1.0.2 5"))
		fromFiles.wait("the weight", func() error {
			if have, _ := fromFiles.details(nacosCluster); len(have) != 2 || have[1].weight != 5 {
				return fmt.Errorf("the endpoints are %+v", have)
			}
			return nil
		})
		same(t)
	})

	t.Run("AnInstanceComesAndGoes", func(t *testing.T) {
		higress.put("cards", "10.1.0.8", "groupName=pay")
		inFile(higressFile, cards("10.1.0.9 0", "10.1.0.8 0"))
		fromFiles.waitEndpoints(higressCluster, "10.1.0.8:8080", "10.1.0.9:8080")
		same(t)
		nacos.instance(http.MethodDelete, "Orders", "10.1.0.1")
		inFile(nacosFile, orders("10.1.0.2 5"))
		fromFiles.waitEndpoints(nacosCluster, "10.1.0.2:8080")
		same(t)
	})

	t.Run("AServiceWithoutHealthyInstancesHasNoEndpoints", func(t *testing.T) {
		inFile(nacosFile, orders())
		fromFiles.waitEndpoints(nacosCluster)
		nacos.put("Orders", "10.1.0.2", v1, "weight=5", "healthy=false")
		same(t) // told with a port of the number 0
		nacos.instance(http.MethodDelete, "Orders", "10.1.0.2")
		nacos.instance(http.MethodDelete, "Orders", "10.1.0.3")
		higress.instance(http.MethodDelete, "cards", "10.1.0.8", "groupName=pay")
		higress.instance(http.MethodDelete, "cards", "10.1.0.9", "groupName=pay")
		inFile(higressFile, cards())
		fromFiles.waitEndpoints(higressCluster)
		same(t) // not told at all

		nacos.put("Orders", "10.1.0.4", v1)
		inFile(nacosFile, orders("10.1.0.4 1"))
		fromFiles.waitEndpoints(nacosCluster, "10.1.0.4:8080")
		same(t)
	})

	const ordersKey = "networking.istio.io/ServiceEntry public/" + nacosFile

	// An istiod checks what comes from a config source as it checks files. The others are not harmed.
	t.Run("AnIstiodRefusesHostsWithColons", func(t *testing.T) {
		const name, key = "consumers:cn.example.OrderService::", "networking.istio.io/ServiceEntry public/consumers:cn.example.OrderService::.DEFAULT-GROUP.public"
		nacos.put(name, "10.1.0.5")
		nacos.put("Orders", "10.1.0.4", v1, "weight=7") // to see that the istiod has the answer
		inFile(nacosFile, orders("10.1.0.4 7"))
		eventually(t, "the relay serves it", func() error {
			if c := r.configs()[key]; !strings.Contains(c, name+".DEFAULT-GROUP.public.nacos") {
				return fmt.Errorf("it is %q", c)
			}
			return nil
		})
		fed.has(ordersKey, `"weight":7`)
		same(t)
		fed.hasNot(key)
	})

	// Without guard.profile it is served a port with number 0, which it refuses: it does not learn that the
	// instances are unhealthy. It has no fs:// or k8s:// beside the relay, and does not read what is its own.
	t.Run("AnIstiodKeepsEndpointsUnderAPortWithNumberZero", func(t *testing.T) {
		alone := newIstiod(t, "alone", plain.xds)
		writeFile(t, filepath.Join(alone.configDir, "own.yaml"), own)
		alone.args = append(alone.args, "--configDir", alone.configDir)
		alone.start().ready()
		alone.has(ordersKey, "10.1.0.4")
		alone.hasNot("networking.istio.io/ServiceEntry shop/own")

		nacos.put("Orders", "10.1.0.4", v1, "weight=7", "healthy=false")
		nacos.put("Later", "10.1.0.6", v1) // to see that the istiod has the answer
		alone.has("networking.istio.io/ServiceEntry public/Later.DEFAULT-GROUP.public", "10.1.0.6")
		if c := plain.configs()[ordersKey]; strings.Contains(c, "endpoints") || strings.Contains(c, `"number":8080`) {
			t.Errorf("the relay serves %s", c)
		}
		alone.has(ordersKey, "10.1.0.4")
		fromRelay.waitEndpoints(nacosCluster)
	})
}

// differs returns how the clusters and endpoints of two proxies differ, nil if they do not.
func (e *envoy) differs(other *envoy) error {
	have, want := e.clusters(), other.clusters()
	if !slices.Equal(have, want) {
		return fmt.Errorf("the clusters are %q, want %q", have, want)
	}
	for _, name := range want {
		if diff := cmp.Diff(encoded(canonical(other.cluster(name))), encoded(canonical(e.cluster(name)))); diff != "" {
			return fmt.Errorf("the cluster %s is\n%v\nwant\n%v", name, e.cluster(name), other.cluster(name))
		}
		got, _ := e.details(name)
		if expected, _ := other.details(name); !slices.Equal(got, expected) {
			return fmt.Errorf("the endpoints of %s are %+v, want %+v", name, got, expected)
		}
	}
	return nil
}
