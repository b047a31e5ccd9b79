package e2e

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
)

// consumers are two istiods of the cluster west. One has a remote secret of the cluster east, and the other one has the
// services of east from a relay.
type consumers struct {
	t               *testing.T
	east, west      *cluster
	relay           *relay
	secret, relayed *istiod
}

// newConsumers starts them. prepare writes what the clusters have from the beginning, and rules are Istio configs of west,
// as YAML.
func newConsumers(t *testing.T, prepare func(east, west *cluster), rules ...string) *consumers {
	t.Helper()
	return newConsumersOf(t, "networks: {}", "{mode: discover}", prepare, rules...)
}

// newConsumersOf does so with the MeshNetworks of west, and the section services of the relay.
func newConsumersOf(t *testing.T, networks, services string, prepare func(east, west *cluster), rules ...string) *consumers {
	t.Helper()
	c := &consumers{t: t, east: newCluster(t, "east", dualStack...), west: newCluster(t, "west")}
	prepare(c.east, c.west)
	c.west.k.apply(c.east.k.remoteSecret(adminToken))
	c.relay = relayOfServices(t, "relay", fromAPIServer(c.east.k), services).start().ready()
	c.secret = newKubernetesIstiod(t, c.west.k, networks)
	c.relayed = newKubernetesIstiod(t, c.west.k, networks, c.relay.xds)
	c.relayed.env = append(c.relayed.env, "POD_NAMESPACE=elsewhere") // where there is no secret
	for n, rule := range rules {
		for _, i := range []*istiod{c.secret, c.relayed} {
			writeFile(t, filepath.Join(i.configDir, fmt.Sprintf("rule-%d.yaml", n)), rule)
		}
	}
	c.secret.start().ready()
	c.relayed.start().ready()
	return c
}

// proxies return a proxy of each istiod.
func (c *consumers) proxies(p proxy) (secret, relayed *envoy) {
	c.t.Helper()
	p.cluster = "west"
	return dial(c.t, c.secret.grpc).envoy(p), dial(c.t, c.relayed.grpc).envoy(p)
}

// subsetsOf returns a DestinationRule with the subsets v1 and v2 of a service, and subsets of the cluster east and a node.
func subsetsOf(namespace, name string) string {
	return fmt.Sprintf(`apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {namespace: %[1]s, name: %[2]s}
spec:
  host: %[2]s.%[1]s.svc.cluster.local
  subsets:
  - {name: v1, labels: {version: v1}}
  - {name: v2, labels: {version: v2}}
  - {name: in-north-a, labels: {topology.kubernetes.io/zone: a}}
  - {name: in-east, labels: {topology.istio.io/cluster: east}}
  - {name: on-node-a, labels: {kubernetes.io/hostname: node-a}}
`, namespace, name)
}

// ownSubsets are subsets that mean what only the cluster of a pod knows.
var ownSubsets = []string{"in-east", "on-node-a"}

// describe returns what a proxy has of a cluster: its type, the names in certificates that it accepts, and the endpoints
// with locality, health, mTLS mode and weight.
func (e *envoy) describe(name string) string {
	e.t.Helper()
	c := e.cluster(name)
	if c == nil {
		return "unknown"
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	var accepted []string
	for _, m := range c.GetTransportSocketMatches() {
		if m.Match.GetFields()["tlsMode"].GetStringValue() != "istio" {
			continue
		}
		tls := &tlsv3.UpstreamTlsContext{}
		if err := m.TransportSocket.GetTypedConfig().UnmarshalTo(tls); err != nil {
			e.t.Fatal(err)
		}
		accepted = append(accepted, "sni "+tls.Sni)
		for _, s := range tls.GetCommonTlsContext().GetCombinedValidationContext().GetDefaultValidationContext().GetMatchSubjectAltNames() { //nolint:staticcheck // istiod 1.23 writes it
			accepted = append(accepted, s.GetExact())
		}
	}
	slices.Sort(accepted)
	assignment := e.assignments[assignmentName(c)]
	if assignment == nil && c.GetType().String() == "EDS" {
		return "endpoints unknown"
	}
	var all []string
	for _, l := range assignment.GetEndpoints() {
		for _, ep := range l.LbEndpoints {
			a := ep.GetEndpoint().GetAddress().GetSocketAddress()
			all = append(all, fmt.Sprintf("%s in %s/%s/%s priority %d, %s, mtls %q, weight %d", net.JoinHostPort(a.GetAddress(), strconv.Itoa(int(a.GetPortValue()))),
				l.Locality.GetRegion(), l.Locality.GetZone(), l.Locality.GetSubZone(), l.Priority, cmp.Or(ep.HealthStatus, corev3.HealthStatus_HEALTHY), // an Envoy takes unknown health for healthy
				ep.GetMetadata().GetFilterMetadata()["envoy.transport_socket_match"].GetFields()["tlsMode"].GetStringValue(), ep.GetLoadBalancingWeight().GetValue()))
		}
	}
	slices.Sort(all)
	return fmt.Sprintf("%s %v\n  %s", c.GetType(), accepted, strings.Join(all, "\n  "))
}

// clustersOf returns the names of a proxy's clusters for services, "NAMESPACE/NAME", but for the subsets in except.
func (e *envoy) clustersOf(services []string, except ...string) (names []string) {
	for _, name := range e.clusters() {
		parts := strings.Split(name, "|")
		if len(parts) != 4 || parts[0] != "outbound" || slices.Contains(except, parts[2]) {
			continue
		}
		service, rest, _ := strings.Cut(parts[3], ".")
		namespace, _, _ := strings.Cut(rest, ".")
		if slices.Contains(services, namespace+"/"+service) {
			names = append(names, name)
		}
	}
	return names
}

// sameClusters compares what two proxies have for services.
func sameClusters(secret, relayed *envoy, services []string, except ...string) error {
	want, have := secret.clustersOf(services, except...), relayed.clustersOf(services, except...)
	if len(want) == 0 || !slices.Equal(have, want) {
		return fmt.Errorf("the clusters are %q, want %q", have, want)
	}
	var diffs []string
	for _, name := range want {
		if h, w := relayed.describe(name), secret.describe(name); h != w {
			diffs = append(diffs, fmt.Sprintf("%s is\n%s\nand with a remote secret\n%s", name, h, w))
		}
	}
	if len(diffs) > 0 {
		return errors.New(strings.Join(diffs[:min(5, len(diffs))], "\n"))
	}
	return nil
}

// westFront is in the cluster west what front is in east.
var westFront = service{namespace: "web", name: "front", ports: webPorts, slices: []slice{{pods: []instance{{name: "front-w", ip: "10.3.0.1", node: "node-a", account: "front-west"}}}}}

// TestARemoteSecretAndTheRelayGiveTheSameEndpoints compares what two istiods send to proxies for the services of another
// cluster: one has its remote secret, the other one the relay. For services with a cluster IP these are equal: addresses,
// localities, health, mTLS mode, subsets by labels, and the accounts whose certificates are accepted.
func TestARemoteSecretAndTheRelayGiveTheSameEndpoints(t *testing.T) {
	t.Parallel()
	var names, rules []string
	of := map[string]service{}
	for _, s := range clusterIPServices {
		names, of[s.name] = append(names, s.namespace+"/"+s.name), s
		rules = append(rules, subsetsOf(s.namespace, s.name))
	}
	c := newConsumers(t, func(east, west *cluster) {
		for _, name := range names {
			_, name, _ := strings.Cut(name, "/")
			east.put(of[name])
		}
		west.put(westFront)
	}, rules...)
	same := func(t *testing.T, when string, secret, relayed *envoy) {
		t.Helper()
		relayed.wait(when, func() error { return sameClusters(secret, relayed, names, ownSubsets...) })
	}
	inWeb, inWebRelayed := c.proxies(proxy{namespace: "web"})
	for name, p := range map[string]proxy{"Sidecar": {namespace: "default"}, "Gateway": {kind: "router", namespace: "web"}} {
		t.Run(name, func(t *testing.T) {
			secret, relayed := c.proxies(p)
			same(t, "the endpoints are equal", secret, relayed)
		})
	}
	same(t, "the endpoints are equal", inWeb, inWebRelayed)
	const subset, both = "outbound|80|v2|several-ports.shop.svc.cluster.local", "outbound|80||front.web.svc.cluster.local"
	if is := inWebRelayed.describe(subset); strings.Count(is, "10.1.0.") != 2 || !strings.Contains(is, "/ns/shop/sa/other") || !strings.Contains(is, "10.1.0.3:8080 in south/c/rack-1") {
		t.Errorf("the subset v2 is %s", is)
	}
	if is := inWebRelayed.describe(both); !strings.Contains(is, "10.1.11.1:8080") || !strings.Contains(is, "10.3.0.1:8080") || !strings.Contains(is, "sa/front-west") {
		t.Errorf("the service that both clusters have is %s", is)
	}

	t.Run("WhenThingsChange", func(t *testing.T) {
		s := of["several-ports"]
		pods := slices.Clone(s.slices[0].pods)
		pods[0].unready = true
		pods[1] = instance{name: "several-5", ip: "10.1.0.5", node: "node-b", account: "late", labels: podsV1}
		pods = append(pods, instance{name: "several-6", ip: "10.1.0.6", account: pods[0].account})
		s.slices = []slice{{pods: pods}}
		c.east.put(s)
		c.east.removePod("shop", instance{name: "several-2"})
		const changed = "outbound|80|v1|several-ports.shop.svc.cluster.local"
		inWebRelayed.wait("the changes arrive", func() error {
			if is := inWebRelayed.describe(changed); strings.Contains(is, "10.1.0.1") || !strings.Contains(is, "10.1.0.5") || !strings.Contains(is, "sa/late") {
				return fmt.Errorf("it is %s", is)
			}
			return nil
		})
		same(t, "the endpoints are equal again", inWeb, inWebRelayed)

		late := pods[len(pods)-1]
		late.labels = podsV1
		c.east.putPod("shop", s.name, late)
		inWebRelayed.wait("a pod has another version", func() error {
			if is := inWebRelayed.describe(changed); !strings.Contains(is, "10.1.0.6") {
				return fmt.Errorf("it is %s", is)
			}
			return nil
		})
		same(t, "the endpoints are equal with other labels", inWeb, inWebRelayed)

		f := of["front"]
		f.slices = []slice{{}}
		c.east.put(f)
		inWebRelayed.waitEndpoints(both, "10.3.0.1:8080")
		same(t, "the other cluster serves alone", inWeb, inWebRelayed)
	})
}

// TestPodsOfAnotherNetworkAreBehindItsGatewayEitherWay: the MeshNetworks of the consumers name the gateways of the network
// that the relay tells.
func TestPodsOfAnotherNetworkAreBehindItsGatewayEitherWay(t *testing.T) {
	t.Parallel()
	var names []string
	c := newConsumersOf(t, eastNetwork, "{mode: discover, network: east-net}", func(east, _ *cluster) {
		for _, s := range clusterIPServices {
			if s.name == "several-ports" || s.name == "front" || s.name == "not-ready" {
				east.put(s)
				names = append(names, s.namespace+"/"+s.name)
			}
		}
		east.put(service{namespace: "shop", name: "near", ports: webPorts, slices: []slice{{pods: []instance{
			{name: "near-1", ip: "10.1.27.1", labels: map[string]string{"topology.istio.io/network": "west-net"}}, {name: "near-2", ip: "10.1.27.2"},
		}}}})
	})
	secret, relayed := c.proxies(proxy{network: "west-net"})
	relayed.wait("both are sent to the gateway", func() error { return sameClusters(secret, relayed, append(names, "shop/near")) })
	relayed.waitEndpoints("outbound|80||several-ports.shop.svc.cluster.local", "192.0.2.1:15443", "192.0.2.1:15443", "192.0.2.1:15443")
	relayed.waitEndpoints("outbound|80||near.shop.svc.cluster.local", "10.1.27.1:8080", "192.0.2.1:15443")

	inEastNet, inEastNetRelayed := c.proxies(proxy{network: "east-net"})
	inEastNetRelayed.wait("both reach the pods", func() error { return sameClusters(inEastNet, inEastNetRelayed, names) })
}

// TestTheEndpointsOfKubernetesDefaultAreTheConsumersOwn: a call for the API server must never leave the cluster.
func TestTheEndpointsOfKubernetesDefaultAreTheConsumersOwn(t *testing.T) {
	t.Parallel()
	east, west := newCluster(t, "east"), newCluster(t, "west")
	for w, ip := range map[*cluster]string{east: "192.0.2.7", west: "192.0.2.8"} { // an API server never publishes a loopback address of its own
		w.putSlices(service{namespace: "default", name: "kubernetes", ports: []worldPort{{name: "https", number: 443, at: 6443}}, slices: []slice{{pods: []instance{{ip: ip}}}}})
	}
	east.put(westFront)
	r := relayOfServices(t, "relay", fromAPIServer(east.k), "{mode: discover}").start().ready()
	i := newKubernetesIstiod(t, west.k, "networks: {}", r.xds).start().ready()
	e := dial(t, i.grpc).envoy(proxy{cluster: "west"})
	e.waitEndpoints("outbound|80||front.web.svc.cluster.local", "10.3.0.1:8080") // what east gives is there
	e.waitEndpoints("outbound|443||kubernetes.default.svc.cluster.local", "192.0.2.8:6443")
	if out, code := r.command("explain", "ServiceEntry", "default/synthetic-kubernetes"); code != 0 || !strings.Contains(out, "each cluster has its own API server") {
		t.Errorf("%d, %s", code, out)
	}
}

// TestSelectedWorkloadsAreThoseThatAnIstiodSelects has a ServiceEntry of another cluster select workloads there. Proxies
// behind a relay have those that an istiod selects that has the ServiceEntry itself, and the remote secret.
func TestSelectedWorkloadsAreThoseThatAnIstiodSelects(t *testing.T) {
	t.Parallel()
	const entry = `apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {namespace: shop, name: legacy}
spec:
  hosts: [legacy.example]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP, targetPort: 8080}, {number: 90, name: tcp, protocol: TCP}]
  workloadSelector: {labels: {app: legacy}}
`
	vm := func(name, address, labels, more string) string {
		return fmt.Sprintf(`{apiVersion: networking.istio.io/v1, kind: WorkloadEntry, metadata: {namespace: shop, name: %s}, spec: {address: %s, labels: {%s}, serviceAccount: vm%s}}`, name, address, labels, more)
	}
	pods := []instance{{name: "legacy-1", ip: "10.4.0.1", node: "node-a"}, {name: "legacy-2", ip: "10.4.0.2", node: "node-b"}, {name: "legacy-3", ip: "10.4.0.3", unready: true}}
	c := newConsumers(t, func(east, _ *cluster) {
		east.k.defineIstio()
		for _, i := range pods {
			east.putPod("shop", "legacy", i)
		}
		east.putPod("web", "legacy", instance{name: "elsewhere", ip: "10.4.0.9"})
		east.put(withVM)
		east.k.apply(selectedEntry)
		east.k.apply(vm("legacy-vm", "10.8.1.1", "app: legacy", ", ports: {http: 9080}"))
		east.k.apply(vm("other-vm", "10.8.1.2", "app: other", ""))
		east.k.apply(entry)
	})
	writeFile(t, filepath.Join(c.secret.configDir, "legacy.yaml"), entry)
	secret, relayed := c.proxies(proxy{})
	same := func(what, cluster string, want ...string) {
		t.Helper()
		slices.Sort(want)
		for e, name := range map[*envoy]string{secret: "with a remote secret", relayed: "behind the relay"} {
			e.wait(what+" "+name, func() error {
				have, _ := e.endpoints(cluster)
				if !slices.Equal(slices.Compact(have), want) {
					return fmt.Errorf("%s has %q, want %q", cluster, have, want)
				}
				return nil
			})
		}
	}
	const http, tcp = "outbound|80||legacy.example", "outbound|90||legacy.example"
	same("they are selected", http, "10.4.0.1:8080", "10.4.0.2:8080", "10.8.1.1:9080")
	same("on their ports", tcp, "10.4.0.1:90", "10.4.0.2:90", "10.8.1.1:90")
	same("a Service selects WorkloadEntries", "outbound|80||with-vm.shop.svc.cluster.local", "10.1.26.1:8080", "10.8.0.1:9080")

	c.east.k.apply(vm("other-vm", "10.8.1.2", "app: legacy", ""))
	same("labels change", http, "10.4.0.1:8080", "10.4.0.2:8080", "10.8.1.1:9080", "10.8.1.2:8080")
	c.east.removePod("shop", pods[0])
	same("a pod goes", http, "10.4.0.2:8080", "10.8.1.1:9080", "10.8.1.2:8080")

	t.Run("OfTheirOwnClusterAlone", func(t *testing.T) {
		c.west.putPod("shop", "legacy", instance{name: "legacy-w", ip: "10.3.2.1"})
		secret.waitEndpoints(tcp, "10.3.2.1:90", "10.4.0.2:90", "10.8.1.1:90", "10.8.1.2:90")
		relayed.waitEndpoints(tcp, "10.4.0.2:90", "10.8.1.1:90", "10.8.1.2:90")
		c.west.removePod("shop", instance{name: "legacy-w"})
	})

	t.Run("WithoutTheAddressThatOneHadBefore", func(t *testing.T) {
		c.east.k.apply(vm("legacy-vm", "10.8.1.3", "app: legacy", ", ports: {http: 9080}"))
		relayed.waitEndpoints(http, "10.4.0.2:8080", "10.8.1.2:8080", "10.8.1.3:9080")
		// An istiod 1.23 keeps the address of before.
		secret.waitEndpoints(http, "10.4.0.2:8080", "10.8.1.1:9080", "10.8.1.2:8080", "10.8.1.3:9080")
	})
}
