package e2e

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"
	mcp "istio.io/api/mcp/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"
)

// These tests have no relay in them. They hold what it may expect of an istiod that has
// services in Kubernetes, and what an istiod makes of the services of others.

const (
	shopHost    = "shop.web.svc.cluster.local"
	shopCluster = "outbound|80||" + shopHost
	// shopSNI is the cluster that a gateway has for those who come with that server name.
	shopSNI = "outbound_.80_._." + shopHost
	// eastNetwork is all of the cluster east, entered by one gateway.
	eastNetwork = "networks: {east-net: {endpoints: [{fromRegistry: east}], gateways: [{address: 192.0.2.1, port: 15443}]}}"
)

var (
	shopPorts = []servicePort{{"http", 80, 8080}}
	shopPods  = []pod{
		{name: "shop-1", ip: "10.1.0.1", node: "node-a", labels: []string{inMesh}},
		{name: "shop-2", ip: "10.1.0.2", node: "node-b", labels: []string{inMesh}},
		{name: "shop-3", ip: "10.1.0.3", node: "node-b"}, // without a sidecar
	}
)

// newShop starts a cluster that has one service in the namespace web.
func newShop(t *testing.T, name string) *kubernetes {
	t.Helper()
	k := newKubernetes(t, name)
	k.createNamespace("web")
	k.createNode("node-a", "north", "a")
	k.createNode("node-b", "north", "b")
	k.createService("web", "shop", shopPorts...)
	k.createEndpoints("web", "shop", shopPorts, shopPods...)
	return k
}

func TestKubernetesServices(t *testing.T) {
	t.Parallel()
	k := newShop(t, "east")
	k.createNamespace("istio-system")
	k.createNamespace("kube-system")
	k.createService("kube-system", "dns", shopPorts...)
	k.createEndpoints("kube-system", "dns", shopPorts, pod{name: "dns-1", ip: "10.1.0.9", labels: []string{inMesh}})
	i := newKubernetesIstiod(t, k, eastNetwork).start().ready()
	c := dial(t, i.grpc)

	t.Run("AreServedAsServiceEntriesWithoutEndpoints", func(t *testing.T) {
		for _, version := range []string{seV1, seV1beta1} { // an istiod 1.23 has v1alpha3 only
			if all, err := c.list(version); err != nil || len(all) != 0 {
				t.Errorf("%s: there are %d, %v", version, len(all), err)
			}
		}
		all, err := c.list(seV1alpha3)
		if err != nil {
			t.Fatal(err)
		}
		names := slices.Sorted(maps.Keys(all))
		if want := []string{"default/synthetic-kubernetes", "kube-system/synthetic-dns", "web/synthetic-shop"}; !slices.Equal(names, want) {
			t.Fatalf("the ServiceEntries are %v, want %v", names, want)
		}
		have := &networking.ServiceEntry{}
		if err := all["web/synthetic-shop"].Body.UnmarshalTo(have); err != nil {
			t.Fatal(err)
		}
		want := &networking.ServiceEntry{
			Hosts: []string{shopHost}, Location: networking.ServiceEntry_MESH_INTERNAL, Resolution: networking.ServiceEntry_STATIC,
			Addresses: have.Addresses, // of the cluster, chosen by Kubernetes
			Ports:     []*networking.ServicePort{{Name: "http", Number: 80, Protocol: "HTTP"}},
			// Those who have this from another cluster must not keep it: see below.
			WorkloadSelector: &networking.WorkloadSelector{Labels: map[string]string{"app": "shop"}},
		}
		if !proto.Equal(have, want) || len(have.Addresses) != 1 {
			t.Fatalf("it is\n%v\nwant\n%v", have, want)
		}
	})

	var (
		all  = []string{"10.1.0.1:8080", "10.1.0.2:8080", "10.1.0.3:8080"}
		mtls = []string{"10.1.0.1:8080", "10.1.0.2:8080"}
		// The gateway comes once for each locality that has pods.
		gateway = []string{"192.0.2.1:15443", "192.0.2.1:15443"}
	)
	for _, kind := range []string{"sidecar", "router", "waypoint"} {
		t.Run(kind, func(t *testing.T) {
			for _, tc := range []struct {
				name, network string
				want, wantSNI []string
			}{
				{"OfTheSameNetworkReachesThePods", "east-net", all, mtls},
				{"OfNoNetworkReachesThePods", "", all, mtls},
				{"OfAnotherNetworkReachesTheGateway", "west-net", gateway, gateway},
			} {
				t.Run(tc.name, func(t *testing.T) {
					e := dial(t, i.grpc).envoy(proxy{kind: kind, network: tc.network, cluster: "west"}, shopCluster, shopSNI)
					e.waitEndpoints(shopCluster, tc.want...)
					e.waitEndpoints(shopSNI, tc.wantSNI...)
				})
			}
		})
	}

	t.Run("AGatewaySpeaksMTLSAndWeighsItsPodsWithASidecar", func(t *testing.T) {
		e := dial(t, i.grpc).envoy(proxy{network: "west-net", cluster: "west"})
		e.waitEndpoints(shopCluster, gateway...)
		have, _ := e.details(shopCluster)
		want := []endpoint{
			{address: gateway[0], locality: "north/a", tlsMode: "istio", weight: 1, workload: ";;;;"},
			{address: gateway[0], locality: "north/b", tlsMode: "istio", weight: 1, workload: ";;;;"}, // shop-3 does not count
		}
		if !slices.Equal(have, want) {
			t.Fatalf("they are\n%+v\nwant\n%+v", have, want)
		}
		if sni := e.sni(shopCluster); sni != shopSNI {
			t.Fatalf("the server name is %q, want %q", sni, shopSNI)
		}
	})

	t.Run("OfKubeSystemAreForTheirClusterOnly", func(t *testing.T) {
		const dns = "outbound|80||dns.kube-system.svc.cluster.local"
		dial(t, i.grpc).envoy(proxy{network: "east-net", cluster: "east"}, dns).waitEndpoints(dns, "10.1.0.9:8080")
		dial(t, i.grpc).envoy(proxy{network: "east-net", cluster: "west"}, dns).waitEndpoints(dns)
	})

	t.Run("LookTheSameUnknownAndWithoutEndpoints", func(t *testing.T) {
		const nobody, noPort = "outbound|80||nobody.web.svc.cluster.local", "outbound|81||" + shopHost
		e := dial(t, i.grpc).envoy(proxy{}, nobody, noPort)
		e.waitEndpoints(nobody)
		e.waitEndpoints(noPort)
	})

	t.Run("HaveNoEndpointsAtAClientOfAnIstiodThatHasThemByMCP", func(t *testing.T) {
		west := newIstiod(t, "west", i.grpc).start().ready()
		dial(t, west.grpc).envoy(proxy{network: "west-net", cluster: "west"}).waitEndpoints(shopCluster)
	})

	t.Run("ChangeTheirEndpointsByEDSOnly", func(t *testing.T) {
		near, far := dial(t, i.grpc).envoy(proxy{network: "east-net"}), dial(t, i.grpc).envoy(proxy{network: "west-net"})
		near.waitEndpoints(shopCluster, all...)
		far.waitEndpoints(shopCluster, gateway...)
		services := c.follow(seV1alpha3, nil)
		before := services.resources()
		clusters := near.responses(cdsType) + far.responses(cdsType)
		services.mark()

		more := append(slices.Clone(shopPods), pod{name: "shop-4", ip: "10.1.0.4", node: "node-b", labels: []string{inMesh}})
		k.createEndpoints("web", "shop", shopPorts, more...)
		near.waitEndpoints(shopCluster, append(slices.Clone(all), "10.1.0.4:8080")...)
		far.wait("the gateway's weight", func() error {
			have, _ := far.details(shopCluster)
			if len(have) != 2 || have[0].weight != 1 || have[1].weight != 2 {
				return fmt.Errorf("the endpoints are %+v", have)
			}
			return nil
		})
		if n := near.responses(cdsType) + far.responses(cdsType); n != clusters {
			t.Errorf("%d times CDS came", n-clusters)
		}
		// To an MCP client it is sent as all ServiceEntries anew, which are as they were.
		eventually(t, "the ServiceEntries come again", func() error {
			if events := services.events(); events == "" {
				return fmt.Errorf("nothing came")
			}
			return nil
		})
		for name, now := range services.resources() {
			if !proto.Equal(now, before[name]) {
				t.Errorf("%s has changed from\n%v\nto\n%v", name, before[name], now)
			}
		}

		more[0].unready = true
		k.createEndpoints("web", "shop", shopPorts, more...)
		near.waitEndpoints(shopCluster, "10.1.0.2:8080", "10.1.0.3:8080", "10.1.0.4:8080")
		far.waitEndpoints(shopCluster, gateway[1])

		k.setEndpoints("web", "shop", shopPorts)
		near.waitEndpoints(shopCluster)
		far.waitEndpoints(shopCluster)
	})
}

// resources returns what the follower has.
func (f *follower) resources() map[string]*mcp.Resource {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.all)
}

// TestAGatewaysServiceMovesThePodsOfItsNetworkBehindIt is the way of Istio's own
// multi-network installation, without MeshNetworks.
func TestAGatewaysServiceMovesThePodsOfItsNetworkBehindIt(t *testing.T) {
	t.Parallel()
	k := newShop(t, "east")
	k.createNamespace("istio-system", "topology.istio.io/network=east-net")
	i := newKubernetesIstiod(t, k, "networks: {}").start().ready()
	e := dial(t, i.grpc).envoy(proxy{network: "west-net", cluster: "west"}, shopCluster)
	// Everybody reaches a network without a gateway.
	e.waitEndpoints(shopCluster, "10.1.0.1:8080", "10.1.0.2:8080", "10.1.0.3:8080")
	k.createGateway("istio-system", "eastwest", "east-net", "192.0.2.1")
	e.waitEndpoints(shopCluster, "192.0.2.1:15443", "192.0.2.1:15443")
	// Unlike a gateway of MeshNetworks it belongs to a cluster.
	if have, _ := e.details(shopCluster); have[0].workload != ";;;;east" {
		t.Fatalf("it is %+v", have[0])
	}
	k.delete("v1", "Service", "istio-system", "eastwest")
	e.waitEndpoints(shopCluster, "10.1.0.1:8080", "10.1.0.2:8080", "10.1.0.3:8080")
}

// writeShop gives an istiod the service of another cluster. more are lines of its spec.
func writeShop(t *testing.T, i *istiod, more string) {
	t.Helper()
	writeFile(t, filepath.Join(i.configDir, "shop.yaml"), `apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: synthetic-shop, namespace: web}
spec:
  hosts: [`+shopHost+`]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP}]
`+more)
}

// atGateways are endpoints at the gateway of the network of another cluster.
const atGateways = `  endpoints:
  - {address: 192.0.2.1, ports: {http: 15443}, network: east-net, locality: north/a, weight: 1, labels: {security.istio.io/tlsMode: istio}}
  - {address: 192.0.2.1, ports: {http: 15443}, network: east-net, locality: north/b, weight: 2, labels: {security.istio.io/tlsMode: istio}}
`

func TestEndpointsAtAGatewayReachAClient(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ name, networks, want string }{
		{"OfAnIstiodWithoutNetworks", "networks: {}", "192.0.2.1:15443"},
		{"OfAnIstiodThatKnowsItsOwnNetworkOnly", "networks: {west-net: {endpoints: [{fromRegistry: west}], gateways: [{address: 192.0.2.2, port: 15443}]}}", "192.0.2.1:15443"},
		{"UnlessItsIstiodKnowsAnotherGatewayOfThatNetwork", "networks: {east-net: {gateways: [{address: 192.0.2.9, port: 15443}]}}", "192.0.2.9:15443"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			i := newIstiod(t, "west")
			networks := filepath.Join(filepath.Dir(i.mesh), "networks.yaml")
			writeFile(t, networks, tc.networks)
			i.args = append(i.args, "--networksConfig", networks)
			writeShop(t, i, atGateways)
			i.start().ready()

			e := dial(t, i.grpc).envoy(proxy{network: "west-net", cluster: "west"})
			e.waitEndpoints(shopCluster, tc.want, tc.want)
			have, _ := e.details(shopCluster)
			for n, d := range have {
				if d.tlsMode != "istio" || d.weight != uint32(n+1) || d.locality != []string{"north/a", "north/b"}[n] {
					t.Errorf("endpoint %d is %+v", n, d)
				}
			}
			if sni := e.sni(shopCluster); sni != shopSNI {
				t.Errorf("the server name is %q, want %q", sni, shopSNI)
			}

			writeShop(t, i, "")
			e.waitEndpoints(shopCluster)
		})
	}
}

// TestASelectorOfAnotherClusterSelectsTheOwnPods is why an entry of another cluster is
// dangerous as it comes.
func TestASelectorOfAnotherClusterSelectsTheOwnPods(t *testing.T) {
	t.Parallel()
	k := newKubernetes(t, "west")
	k.createNamespace("web")
	i := newKubernetesIstiod(t, k, "networks: {}")
	writeShop(t, i, "  workloadSelector: {labels: {app: shop}}\n")
	i.start().ready()
	e := dial(t, i.grpc).envoy(proxy{cluster: "west"})
	e.waitEndpoints(shopCluster)
	k.createPod("web", "shop", pod{name: "other", ip: "10.2.0.1"})
	e.waitEndpoints(shopCluster, "10.2.0.1:80")
	writeShop(t, i, atGateways)
	e.waitEndpoints(shopCluster, "192.0.2.1:15443", "192.0.2.1:15443")
}
