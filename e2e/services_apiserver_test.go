package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	networking "istio.io/api/networking/v1alpha3"
)

// webPorts are the ports of most services. podsV1 and podsV2 are labels of pods.
var (
	webPorts = []worldPort{{name: "http", number: 80, at: 8080}}
	podsV1   = map[string]string{"version": "v1"}
	podsV2   = map[string]string{"version": "v2"}
)

// clusterIPServices are Services whose endpoints all who read the cluster find alike.
var clusterIPServices = []service{
	{namespace: "shop", name: "several-ports", labels: map[string]string{"team": "shop"},
		ports: []worldPort{
			{name: "http", number: 80, at: 8080}, {name: "grpc-api", number: 90, at: 9090}, {name: "tcp-admin", number: 9000, at: 9000},
			{name: "secure", number: 443, at: 8443, app: "https"}, {name: "odd", number: 7000, at: 7000, app: "example.com/odd"},
			{name: "h2c", number: 81, at: 8081, app: "kubernetes.io/h2c"}, {name: "redis-x", number: 6379, at: 6379}, {name: "plain", number: 5000, at: 5000},
		},
		slices: []slice{{pods: []instance{
			{name: "several-1", ip: "10.1.0.1", node: "node-a", account: "web", labels: podsV1},
			{name: "several-2", ip: "10.1.0.2", node: "node-b", account: "web", labels: podsV2},
			{name: "several-3", ip: "10.1.0.3", node: "node-c", account: "other", labels: podsV2},
			{name: "several-4", ip: "10.1.0.4", node: "node-d", outOfMesh: true},
		}}}},
	{namespace: "shop", name: "named-targets", ports: []worldPort{{name: "http", number: 80, at: 8080, target: "web"}, {name: "tcp", number: 90, at: 9090, target: "raw"}},
		slices: []slice{
			{pods: []instance{{name: "named-1", ip: "10.1.1.1", node: "node-a", labels: podsV1}}},
			{at: map[string]int{"http": 8888, "tcp": 9999}, pods: []instance{{name: "named-2", ip: "10.1.1.2", node: "node-c", labels: podsV2}}},
		}},
	{namespace: "shop", name: "unnamed", ports: []worldPort{{number: 80, at: 8080}},
		slices: []slice{{pods: []instance{{name: "unnamed-1", ip: "10.1.2.1", node: "node-a"}}}}},
	{namespace: "shop", name: "by-hand", unselected: true, ports: webPorts, slices: []slice{{pods: []instance{{ip: "10.1.3.1"}, {ip: "10.1.3.2"}}}}},
	{namespace: "shop", name: "udp-too", ports: []worldPort{{name: "dns", number: 53, at: 5353, protocol: "UDP"}, {name: "tcp-dns", number: 53, at: 5353}, {name: "http", number: 80, at: 8080}},
		slices: []slice{{pods: []instance{{name: "udp-1", ip: "10.1.4.1", node: "node-b"}}}}},
	{namespace: "shop", name: "published", ports: webPorts, spec: map[string]any{"publishNotReadyAddresses": true},
		slices: []slice{{pods: []instance{{name: "published-1", ip: "10.1.5.1", node: "node-a", unready: true, published: true}, {name: "published-2", ip: "10.1.5.2"}}}}},
	{namespace: "shop", name: "not-ready", ports: webPorts,
		slices: []slice{{pods: []instance{
			{name: "not-ready-1", ip: "10.1.6.1", node: "node-a", unready: true}, {name: "not-ready-2", ip: "10.1.6.2", node: "node-a", terminating: true},
			{name: "not-ready-3", ip: "10.1.6.3", node: "node-a"},
		}}}},
	{namespace: "shop", name: "several-slices", ports: webPorts,
		slices: []slice{
			{pods: []instance{{name: "slices-1", ip: "10.1.7.1", node: "node-a"}, {name: "slices-2", ip: "10.1.7.2", node: "node-b"}}},
			{pods: []instance{{name: "slices-2", ip: "10.1.7.2", node: "node-b"}, {name: "slices-3", ip: "10.1.7.3", node: "node-c"}}},
			{},
		}},
	{namespace: "shop", name: "uneven", ports: []worldPort{{name: "http", number: 80, at: 8080}, {name: "tcp-more", number: 90, at: 9090}},
		slices: []slice{
			{pods: []instance{{name: "uneven-1", ip: "10.1.8.1", node: "node-a"}}},
			{at: map[string]int{"tcp-more": 0}, pods: []instance{{name: "uneven-2", ip: "10.1.8.2", node: "node-b"}}},
		}},
	{namespace: "shop", name: "of-some", ports: webPorts, annotations: map[string]string{"networking.istio.io/exportTo": "web,istio-system"},
		slices: []slice{{pods: []instance{{name: "of-some-1", ip: "10.1.9.1", node: "node-a"}}}}},
	{namespace: "web", name: "empty", ports: webPorts},
	{namespace: "web", name: "front", ports: webPorts, spec: map[string]any{"type": "LoadBalancer"}, slices: []slice{{pods: []instance{{name: "front-1", ip: "10.1.11.1", node: "node-c", account: "front"}}}}},
}

var (
	headless = service{namespace: "shop", name: "headless", ports: []worldPort{{name: "http", number: 80, at: 80}, {name: "tcp-peer", number: 7000, at: 7000}}, spec: map[string]any{"clusterIP": "None"},
		slices: []slice{{pods: []instance{{name: "headless-0", ip: "10.1.20.1", node: "node-a"}, {name: "headless-1", ip: "10.1.20.2", node: "node-b"}}}}}
	// twoFamilies has pods with two addresses.
	twoFamilies = service{namespace: "shop", name: "two-families", ports: webPorts, spec: map[string]any{"ipFamilyPolicy": "RequireDualStack"},
		slices: []slice{
			{pods: []instance{{name: "families-1", ip: "10.1.21.1", ip6: "fd00:1::1", node: "node-a"}, {name: "families-2", ip: "10.1.21.2", ip6: "fd00:1::2", node: "node-b"}}},
			{v6: true, pods: []instance{{name: "families-1", ip: "10.1.21.1", ip6: "fd00:1::1", node: "node-a"}, {name: "families-2", ip: "10.1.21.2", ip6: "fd00:1::2", node: "node-b"}}},
		}}
	// ofItsNamespace is not exported to istio-system, the namespace of relays.
	ofItsNamespace = service{namespace: "shop", name: "own", ports: webPorts, annotations: map[string]string{"networking.istio.io/exportTo": "."},
		slices: []slice{{pods: []instance{{name: "own-1", ip: "10.1.10.1", node: "node-a"}}}}}
	leftOutServices = []service{
		{namespace: "shop", name: "alias", unselected: true, ports: webPorts, spec: map[string]any{"type": "ExternalName", "externalName": "example.com"}},
		{namespace: "shop", name: "udp-only", ports: []worldPort{{name: "dns", number: 53, at: 5353, protocol: "UDP"}},
			slices: []slice{{pods: []instance{{name: "udp-only-1", ip: "10.1.22.1", node: "node-a"}}}}},
	}
	clusterLocalServices = []service{
		{namespace: "kube-system", name: "dns", ports: webPorts, slices: []slice{{pods: []instance{{name: "dns-1", ip: "10.1.23.1", node: "node-a"}}}}},
		{namespace: "shop", name: "of-the-node", ports: webPorts, spec: map[string]any{"internalTrafficPolicy": "Local"},
			slices: []slice{{pods: []instance{{name: "of-the-node-1", ip: "10.1.24.1", node: "node-a"}}}}},
		{namespace: "istio-system", name: "istiod", ports: []worldPort{{name: "grpc-xds", number: 15010, at: 15010}},
			slices: []slice{{pods: []instance{{name: "istiod-1", ip: "10.1.25.1", node: "node-a"}}}}},
	}
	// clusterLocal are the names of the services that other clusters do not reach.
	clusterLocal = []string{"default/kubernetes", "kube-system/dns", "shop/of-the-node", "istio-system/istiod"}
)

// selectedEntry is a WorkloadEntry that a Service selects.
const selectedEntry = `{apiVersion: networking.istio.io/v1, kind: WorkloadEntry, metadata: {namespace: shop, name: vm-1},
spec: {address: 10.8.0.1, labels: {app: with-vm, version: v1}, serviceAccount: vm, locality: north/b, ports: {http: 9080}}}`

var withVM = service{namespace: "shop", name: "with-vm", ports: webPorts, slices: []slice{{pods: []instance{{name: "with-vm-1", ip: "10.1.26.1", node: "node-a", labels: podsV1}}}}}

// TestServicesOfAnAPIServerAreThoseOfItsIstiod has a relay read an API server, and another one an istiod on it. What they
// serve of its Services is the same.
func TestServicesOfAnAPIServerAreThoseOfItsIstiod(t *testing.T) {
	t.Parallel()
	w := newCluster(t, "east", dualStack...)
	w.k.defineIstio()
	for _, s := range slices.Concat(clusterIPServices, []service{headless, twoFamilies, withVM}, leftOutServices, clusterLocalServices) {
		w.put(s)
	}
	w.k.apply(selectedEntry)
	i := newNativeIstiod(t, w.k).start().ready()

	const discover = "{mode: discover}"
	direct := relayOfServices(t, "direct", fromAPIServer(w.k), discover).start().ready()
	byIstiod := relayOfServices(t, "by-istiod", fromIstiod(i), discover).start().ready()
	var have map[string]*networking.ServiceEntry
	// The istiod tells both addresses of a pod as an endpoint each: see ADualStackPodIsOneEndpoint.
	tell := func(se *networking.ServiceEntry) string {
		if strings.HasPrefix(se.Hosts[0], twoFamilies.name) {
			se.Endpoints = nil
		}
		return tells(se)
	}
	eventually(t, "both serve the same services", func() (err error) {
		have, err = sameServices(dial(t, direct.xds), dial(t, byIstiod.xds), tell, clusterLocal...)
		if want := len(clusterIPServices) + 4; err == nil && len(have) != want { // uneven has a sibling
			err = fmt.Errorf("%d services are served, want %d", len(have), want)
		}
		return err
	})

	t.Run("TheirEndpointsAreThoseOfTheSlices", func(t *testing.T) {
		for name, want := range map[string]string{
			"shop/several-ports":  "map[80:[10.1.0.1:8080 10.1.0.2:8080 10.1.0.3:8080 10.1.0.4:8080] 81:[10.1.0.1:8081 10.1.0.2:8081 10.1.0.3:8081 10.1.0.4:8081] 90:[10.1.0.1:9090 10.1.0.2:9090 10.1.0.3:9090 10.1.0.4:9090] 443:[10.1.0.1:8443 10.1.0.2:8443 10.1.0.3:8443 10.1.0.4:8443] 5000:[10.1.0.1:5000 10.1.0.2:5000 10.1.0.3:5000 10.1.0.4:5000] 6379:[10.1.0.1:6379 10.1.0.2:6379 10.1.0.3:6379 10.1.0.4:6379] 7000:[10.1.0.1:7000 10.1.0.2:7000 10.1.0.3:7000 10.1.0.4:7000] 9000:[10.1.0.1:9000 10.1.0.2:9000 10.1.0.3:9000 10.1.0.4:9000]]",
			"shop/named-targets":  "map[80:[10.1.1.1:8080 10.1.1.2:8888] 90:[10.1.1.1:9090 10.1.1.2:9999]]",
			"shop/unnamed":        "map[80:[10.1.2.1:8080]]",
			"shop/by-hand":        "map[80:[10.1.3.1:8080 10.1.3.2:8080]]",
			"shop/udp-too":        "map[53:[10.1.4.1:5353] 80:[10.1.4.1:8080]]",
			"shop/published":      "map[80:[10.1.5.1:8080 10.1.5.2:8080]]",
			"shop/not-ready":      "map[80:[10.1.6.3:8080]]",
			"shop/several-slices": "map[80:[10.1.7.1:8080 10.1.7.2:8080 10.1.7.3:8080]]",
			"shop/uneven":         "map[80:[10.1.8.1:8080] 90:[10.1.8.1:9090]]",
			"shop/of-some":        "map[80:[10.1.9.1:8080]]",
			"shop/headless":       "map[80:[10.1.20.1:80 10.1.20.2:80] 7000:[10.1.20.1:7000 10.1.20.2:7000]]",
			"shop/with-vm":        "map[80:[10.1.26.1:8080 10.8.0.1:9080]]",
			"web/empty":           "map[80:[]]",
			"web/front":           "map[80:[10.1.11.1:8080]]",
		} {
			if have[name] == nil {
				t.Errorf("%s is not served", name)
			} else if is := fmt.Sprint(addressesByPort(have[name])); is != want {
				t.Errorf("%s has %s, want %s", name, is, want)
			}
		}
	})

	t.Run("TheirEndpointsHaveLabelsAndAccountsThatAnIstiodDoesNotTell", func(t *testing.T) {
		e := have["shop/several-ports"].Endpoints[0]
		if e.ServiceAccount != "web" || e.Labels["version"] != "v1" || e.Labels["app"] != "several-ports" || e.Locality != "north/a" {
			t.Errorf("it is %v", e)
		}
		told, err := entries(dial(t, byIstiod.xds))
		if err != nil {
			t.Fatal(err)
		}
		if e := told["shop/several-ports"].Endpoints[0]; e.ServiceAccount != "" || e.Labels["version"] != "" || e.Labels["app"] != "" {
			t.Errorf("by way of the istiod it is %v", e)
		}
	})

	t.Run("ADualStackPodIsOneEndpoint", func(t *testing.T) {
		told := map[string]string{
			direct.xds:   "map[80:[10.1.21.1:8080 10.1.21.2:8080]]",
			byIstiod.xds: "map[80:[10.1.21.1:8080 10.1.21.2:8080 fd00:1::1:8080 fd00:1::2:8080]]",
		}
		for address, want := range told {
			all, err := entries(dial(t, address))
			if err != nil {
				t.Fatal(err)
			}
			if is := fmt.Sprint(addressesByPort(all["shop/two-families"])); is != want {
				t.Errorf("they are %s, want %s", is, want)
			}
		}
	})

	t.Run("ClusterLocalOnesAreLeftOutWithTheReason", func(t *testing.T) {
		for _, name := range clusterLocal {
			namespace, service, _ := strings.Cut(name, "/")
			if out, code := direct.command("explain", "ServiceEntry", namespace+"/synthetic-"+service); code != 0 || !strings.Contains(out, "cluster-local") {
				t.Errorf("%s: %d, %s", name, code, out)
			}
		}
	})

	t.Run("BehindGatewaysToo", func(t *testing.T) {
		const gateway = "{mode: gateway, gateways: [192.0.2.1], network: east-net}"
		direct := relayOfServices(t, "direct-gateway", fromAPIServer(w.k), gateway).start().ready()
		byIstiod := relayOfServices(t, "by-istiod-gateway", fromIstiod(i), gateway).start().ready()
		eventually(t, "both serve the same services", func() error {
			whole := func(se *networking.ServiceEntry) string { return string(encoded(se)) }
			have, err := sameServices(dial(t, direct.xds), dial(t, byIstiod.xds), whole, clusterLocal...)
			if want := len(clusterIPServices) + 3; err == nil && len(have) != want {
				err = fmt.Errorf("%d services are served, want %d", len(have), want)
			}
			return err
		})
	})

	t.Run("AnIstiodDoesNotTellARelayWhatIsNotExportedToItsNamespace", func(t *testing.T) {
		w.put(ofItsNamespace)
		w.put(service{namespace: "web", name: "later", ports: webPorts, slices: []slice{{pods: []instance{{name: "later-1", ip: "10.1.12.1"}}}}})
		for r, want := range map[*relay]bool{direct: true, byIstiod: false} {
			eventually(t, r.name+" serves what is exported to all, and of what is not: "+fmt.Sprint(want), func() error {
				all, err := entries(dial(t, r.xds))
				if err == nil && (all["web/later"] == nil || (all["shop/own"] != nil) != want) {
					err = fmt.Errorf("%v and %v", all["web/later"], all["shop/own"])
				}
				return err
			})
		}
	})
}
