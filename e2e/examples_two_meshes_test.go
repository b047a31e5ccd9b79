package e2e

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestExampleTwoMeshes runs examples/two-meshes: two clusters with services in Kubernetes,
// each of whose istiods is an upstream of the relay and a client of it.
func TestExampleTwoMeshes(t *testing.T) {
	t.Parallel()
	const (
		web     = "outbound|80||web.shop.svc.cluster.local"
		webSNI  = "outbound_.80_._.web.shop.svc.cluster.local"
		db      = "outbound|5432||db.shop.svc.cluster.local"
		admin   = "outbound|80||admin.shop.svc.cluster.local"
		queue   = "outbound|80||queue.internal.svc.cluster.local"
		cards   = "outbound|80||cards.payments.svc.cluster.local"
		ci      = "outbound|80||ci.tools.svc.cluster.local"
		gateway = "192.0.2.1:15443" // of east
	)
	http, tcp := []servicePort{{"http", 80, 8080}}, []servicePort{{"tcp", 5432, 5432}}
	pods := func(name string, ips ...string) (all []pod) {
		for n, ip := range ips {
			all = append(all, pod{name: fmt.Sprintf("%s-%d", name, n), ip: ip, labels: []string{inMesh}})
		}
		return all
	}

	eastAPI := newKubernetes(t, "east")
	for _, namespace := range []string{"shop", "internal"} {
		eastAPI.createNamespace(namespace)
	}
	// The service has a label, to see that an istiod does not tell of it.
	eastAPI.apply(`{apiVersion: v1, kind: Service, metadata: {namespace: shop, name: web, labels: {federate: "true"}},
spec: {selector: {app: web}, ports: [{name: http, port: 80, targetPort: 8080, protocol: TCP}]}}`)
	eastAPI.createEndpoints("shop", "web", http, pods("web", "10.1.0.1", "10.1.0.2")...)
	eastAPI.createService("shop", "db", tcp...)
	eastAPI.createEndpoints("shop", "db", tcp, pods("db", "10.1.0.5")...)
	eastAPI.createService("shop", "admin", http...)
	eastAPI.createEndpoints("shop", "admin", http, pods("admin", "10.1.0.6")...)
	eastAPI.createService("internal", "queue", http...)
	eastAPI.createEndpoints("internal", "queue", http, pods("queue", "10.1.0.7")...)

	westAPI := newKubernetes(t, "west")
	for _, namespace := range []string{"payments", "tools"} {
		westAPI.createNamespace(namespace)
	}
	westAPI.createService("payments", "cards", http...)
	westAPI.createEndpoints("payments", "cards", http, pods("cards", "10.2.0.1")...)
	westAPI.createService("tools", "ci", http...)
	westAPI.createEndpoints("tools", "ci", http, pods("ci", "10.2.0.9")...)

	x := newExample(t, "two-meshes")
	forEast, forWest := x.address("127.0.0.1:15010"), x.address("127.0.0.1:15011")
	east := newKubernetesIstiod(t, eastAPI, eastNetwork, forEast)
	x.move(east, "127.0.0.1:15110")
	west := newKubernetesIstiod(t, westAPI, "networks: {west-net: {endpoints: [{fromRegistry: west}], gateways: [{address: 192.0.2.2, port: 15443}]}}", forWest)
	x.move(west, "127.0.0.1:15210")

	r := x.relay("relay.yaml").start()
	eventually(t, "the relay listens", func() error {
		_, err := httpGet("http://" + r.admin + "/debug/upstreams")
		return err
	})
	east.start()
	west.start().ready()
	east.ready()
	r.ready()

	inWest := dial(t, west.grpc).envoy(proxy{network: "west-net", cluster: "west"})
	inEast := dial(t, east.grpc).envoy(proxy{network: "east-net", cluster: "east"})

	t.Run("Gateway", func(t *testing.T) {
		inWest.waitEndpoints(web, gateway)
		inWest.waitEndpoints(db, gateway)
		have, _ := inWest.details(web)
		if len(have) != 1 || have[0].tlsMode != "istio" {
			t.Errorf("the endpoints do not speak mTLS: %+v", have)
		}
		if sni := inWest.sni(web); sni != webSNI {
			t.Errorf("the server name is %q, want %q", sni, webSNI)
		}
		// By that name the gateway of east finds the pods.
		router := dial(t, east.grpc).envoy(proxy{kind: "router", network: "east-net", cluster: "east"}, webSNI)
		router.waitEndpoints(webSNI, "10.1.0.1:8080", "10.1.0.2:8080")
		for _, not := range []string{admin, queue} {
			if inWest.cluster(not) != nil {
				t.Errorf("%s is exported", not)
			}
		}
	})

	t.Run("Istioctl", func(t *testing.T) {
		wantIstioctlAnswered(t, x.address("127.0.0.1:15012"))
		wantIstioctlRefused(t, forEast)
		wantIstioctlRefused(t, forWest)
	})

	t.Run("BothDirections", func(t *testing.T) {
		inEast.waitEndpoints(cards, "192.0.2.2:15443")
		if inEast.cluster(ci) != nil {
			t.Errorf("%s is exported", ci)
		}
	})

	t.Run("NobodyGetsItsOwn", func(t *testing.T) {
		for listener, want := range map[string][]string{
			forEast: {"payments/synthetic-cards"},
			forWest: {"shop/synthetic-db", "shop/synthetic-web"},
		} {
			sent, err := dial(t, listener).list(seV1)
			if err != nil {
				t.Fatal(err)
			}
			if got := slices.Sorted(maps.Keys(sent)); !slices.Equal(got, want) {
				t.Errorf("sent are %v, want %v", got, want)
			}
		}
		// The own services are those of Kubernetes still.
		inEast.waitEndpoints(web, "10.1.0.1:8080", "10.1.0.2:8080")
		inWest.waitEndpoints(cards, "10.2.0.1:8080")
	})

	t.Run("LabelsOfServicesAreNotTold", func(t *testing.T) {
		sent, err := dial(t, east.grpc).list(seV1alpha3)
		if err != nil {
			t.Fatal(err)
		}
		if m := sent["shop/synthetic-web"].GetMetadata(); m == nil || len(m.Labels) != 0 {
			t.Errorf("the metadata are %v", m)
		}
	})

	t.Run("README", func(t *testing.T) {
		for _, words := range []string{"validate", "explain", "status", "plan"} {
			x.shows(t, words)
		}
	})

	t.Run("AServiceComesAndGoes", func(t *testing.T) {
		westAPI.createService("payments", "refunds", http...)
		const refunds = "outbound|80||refunds.payments.svc.cluster.local"
		inEast.waitEndpoints(refunds, "192.0.2.2:15443")
		westAPI.delete("v1", "Service", "payments", "refunds")
		inEast.wait("the service goes", func() error {
			if inEast.cluster(refunds) != nil {
				return fmt.Errorf("it is there")
			}
			return nil
		})
	})

	t.Run("AServiceOfBothMeshes", func(t *testing.T) {
		westAPI.createNamespace("shop")
		westAPI.createService("shop", "web", http...)
		westAPI.createEndpoints("shop", "web", http, pods("web", "10.2.0.2")...)
		inWest.waitEndpoints(web, "10.2.0.2:8080", gateway)
		westAPI.delete("v1", "Service", "shop", "web")
		westAPI.delete("discovery.k8s.io/v1", "EndpointSlice", "shop", "web-1")
		inWest.waitEndpoints(web, gateway)
	})

	// The other config file takes the place of the first.
	r.terminate()
	r = x.relay("relay-discover.yaml").start().ready()

	t.Run("DiscoverAnotherNetwork", func(t *testing.T) {
		inWest.waitEndpoints(web, gateway)
		inWest.waitEndpoints(db, gateway)
		inEast.waitEndpoints(cards, "192.0.2.2:15443")
		// It was there before, from the gateway mode: the relay has another content now.
		eventually(t, "the endpoint is in the consumers' network", func() error {
			c := r.configs()["networking.istio.io/ServiceEntry shop/synthetic-web"]
			if !strings.Contains(c, `"network":"west-net"`) || !strings.Contains(c, `"address":"192.0.2.1"`) {
				return fmt.Errorf("it is %s", c)
			}
			return nil
		})
		eventually(t, "the istiod has it", func() error { return west.lacks(r, "shop/synthetic-web", "shop/synthetic-db") })
		inWest.waitEndpoints(web, gateway)
		if sni := inWest.sni(web); sni != webSNI {
			t.Errorf("the server name is %q, want %q", sni, webSNI)
		}
		// The gateway weighs as much as the pods behind it.
		f := dial(t, forWest).follow(seV1, nil)
		f.mark()
		eastAPI.createEndpoints("shop", "web", http, pods("web", "10.1.0.1", "10.1.0.2", "10.1.0.3")...)
		inWest.wait("the gateway's weight", func() error {
			if have, _ := inWest.details(web); len(have) != 1 || have[0].weight != 3 {
				return fmt.Errorf("the endpoints are %+v", have)
			}
			return nil
		})
		if got := f.events(); got != "+shop/synthetic-web" {
			t.Errorf("the relay sent %q, want that ServiceEntry alone", got)
		}
	})

	t.Run("DiscoverAFlatNetwork", func(t *testing.T) {
		// Without gateways there is one network, and the pods are reached directly.
		networks := filepath.Join(filepath.Dir(east.mesh), "networks.yaml")
		writeFile(t, networks, "networks: {}")
		inWest.waitEndpoints(web, "10.1.0.1:8080", "10.1.0.2:8080", "10.1.0.3:8080")
		inWest.waitEndpoints(db, "10.1.0.5:5432")

		f := dial(t, forWest).follow(seV1, nil)
		f.mark()
		clusters := inWest.responses(cdsType)
		eastAPI.createEndpoints("shop", "web", http, pods("web", "10.1.0.1", "10.1.0.2", "10.1.0.3", "10.1.0.4")...)
		inWest.waitEndpoints(web, "10.1.0.1:8080", "10.1.0.2:8080", "10.1.0.3:8080", "10.1.0.4:8080")
		if got := f.events(); got != "+shop/synthetic-web" {
			t.Errorf("the relay sent %q, want that ServiceEntry alone", got)
		}
		if n := inWest.responses(cdsType) - clusters; n != 0 {
			t.Errorf("the sidecar was sent its clusters %d times for a change of endpoints", n)
		}
		if inWest.cluster(admin) != nil || inWest.cluster(queue) != nil {
			t.Error("more is exported than was chosen")
		}

		// A service that has lost its endpoints is offered without: nobody is sent to the former ones.
		f.mark()
		eastAPI.setEndpoints("shop", "db", tcp)
		inWest.waitEndpoints(db)
		if inWest.cluster(db) == nil {
			t.Error("db has gone")
		}
		if got := f.events(); got != "+shop/synthetic-db" {
			t.Errorf("the relay sent %q, want that ServiceEntry alone", got)
		}
		eastAPI.setEndpoints("shop", "db", tcp, pods("db", "10.1.0.5")...)
		inWest.waitEndpoints(db, "10.1.0.5:5432")
	})
}

// lacks names the ServiceEntries of a relay that an istiod does not have, or has differently.
func (i *istiod) lacks(r *relay, names ...string) error {
	have, want := i.configs(), r.configs()
	for _, name := range names {
		key := "networking.istio.io/ServiceEntry " + name
		if want[key] == "" || withoutProvenance(have[key]) != withoutProvenance(want[key]) {
			return fmt.Errorf("%s is\n%s\nwant\n%s", key, have[key], want[key])
		}
	}
	return nil
}
