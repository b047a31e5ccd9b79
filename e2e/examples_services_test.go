package e2e

import (
	"maps"
	"path/filepath"
	"slices"
	"testing"
)

// TestExampleServices runs examples/services with two API servers that ask RBAC, and an istiod in each cluster. A call by
// name gets to the pods of the other cluster, which serves alone while a service has no endpoints in its own.
func TestExampleServices(t *testing.T) {
	t.Parallel()
	x := newExample(t, "services")
	clusters := map[string]*cluster{}
	for name, namespaces := range map[string][]string{"east": {"shop"}, "west": {"payments", "shop"}} {
		k := newKubernetesWith(t, name, "RBAC")
		k.defineIstio()
		k.readerKubeconfig(filepath.Join(x.dir, name+".kubeconfig"))
		k.applyFile(filepath.Join(x.dir, "rights.yaml"))
		for _, namespace := range namespaces {
			k.createNamespace(namespace)
		}
		files, err := filepath.Glob(filepath.Join(x.dir, name, "*.yaml"))
		if err != nil || len(files) == 0 {
			t.Fatalf("no files of %s: %v", name, err)
		}
		for _, path := range files {
			k.applyFile(path)
		}
		clusters[name] = &cluster{k: k, nodes: map[string][]string{}, slices: map[string]map[string]bool{}}
	}
	// What controllers and nodes do.
	east, west := clusters["east"], clusters["west"]
	runs := func(c *cluster, namespace, name string, ports []worldPort, pods ...instance) {
		t.Helper()
		for _, p := range pods {
			c.putPod(namespace, name, p)
		}
		c.putSlices(service{namespace: namespace, name: name, ports: ports, slices: []slice{{pods: pods}}})
	}
	cards := []worldPort{{name: "http", at: 8080}, {name: "grpc", at: 9090}}
	runs(east, "shop", "web", webPorts, instance{name: "web-1", ip: "10.1.0.1", account: "web"}, instance{name: "web-2", ip: "10.1.0.2", account: "web"})
	runs(east, "shop", "cache", []worldPort{{name: "tcp-redis", at: 6379}}, instance{name: "cache-1", ip: "10.1.0.3"})
	runs(west, "shop", "web", webPorts, instance{name: "web-1", ip: "10.2.0.1", account: "web"})
	runs(west, "payments", "cards", cards, instance{name: "cards-1", ip: "10.2.0.2", account: "cards"}, instance{name: "cards-2", ip: "10.2.0.3", account: "cards"})

	x.relay("relay.yaml").start().ready()
	inEast := newKubernetesIstiod(t, east.k, "networks: {}", x.address("127.0.0.1:15010")).start().ready()
	inWest := newKubernetesIstiod(t, west.k, "networks: {}", x.address("127.0.0.1:15011")).start().ready()
	fromEast, fromWest := dial(t, inEast.grpc).envoy(proxy{cluster: "east"}), dial(t, inWest.grpc).envoy(proxy{cluster: "west"})
	const web, cardsHTTP, cardsGRPC = "outbound|80||web.shop.svc.cluster.local", "outbound|80||cards.payments.svc.cluster.local", "outbound|9090||cards.payments.svc.cluster.local"
	fromEast.waitEndpoints(cardsHTTP, "10.2.0.2:8080", "10.2.0.3:8080")
	fromEast.waitEndpoints(cardsGRPC, "10.2.0.2:9090", "10.2.0.3:9090")
	all := []string{"10.1.0.1:8080", "10.1.0.2:8080", "10.2.0.1:8080"}
	fromEast.waitEndpoints(web, all...)
	fromWest.waitEndpoints(web, all...)
	if names := slices.Sorted(maps.Keys(inWest.configs())); !slices.Equal(names, []string{"networking.istio.io/ServiceEntry shop/synthetic-web"}) {
		t.Errorf("the istiod of west is told of %q", names)
	}
	for _, words := range []string{"validate", "explain", "conflicts"} {
		x.shows(t, words)
	}

	east.putSlices(service{namespace: "shop", name: "web", ports: webPorts, slices: []slice{{}}})
	fromEast.waitEndpoints(web, "10.2.0.1:8080")
	fromWest.waitEndpoints(web, "10.2.0.1:8080")
	runs(east, "shop", "web", webPorts, instance{name: "web-3", ip: "10.1.0.4", account: "web"})
	fromEast.waitEndpoints(web, "10.1.0.4:8080", "10.2.0.1:8080")
	fromWest.waitEndpoints(web, "10.1.0.4:8080", "10.2.0.1:8080")
}
