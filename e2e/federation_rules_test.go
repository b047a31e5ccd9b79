package e2e

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
)

// newRelayOf returns a relay, not yet started. rest is its config file without its addresses.
func newRelayOf(t *testing.T, name, rest string) *relay {
	t.Helper()
	r := &relay{t: t, name: name, xds: freePort(t), admin: freePort(t)}
	r.config = filepath.Join(t.TempDir(), "relay.yaml")
	writeFile(t, r.config, fmt.Sprintf(`node: {id: %s}
admin: {address: %q}
downstream:
  listeners: [{address: %q, plaintext: true}]
  startupTimeout: 2s
`, name, r.admin, r.xds)+rest)
	return r
}

// rejections returns how often a relay's clients have refused what they were sent.
func (r *relay) rejections() (n uint64) {
	r.t.Helper()
	body, err := httpGet("http://" + r.admin + "/debug/connections")
	if err != nil {
		r.t.Fatal(err)
	}
	var clients []struct {
		Types []struct{ NACKs uint64 }
	}
	if err := json.Unmarshal(body, &clients); err != nil {
		r.t.Fatal(err)
	}
	for _, c := range clients {
		for _, t := range c.Types {
			n += t.NACKs
		}
	}
	return n
}

// TestAnIstiodTakesWhatIsRewritten rewrites all kinds that an istiod has, in every way, and
// gives them to another.
func TestAnIstiodTakesWhatIsRewritten(t *testing.T) {
	t.Parallel()
	east := newIstiod(t, "east")
	copySamples(t, "east", east.configDir)
	copySamples(t, "west", east.configDir)
	east.start().ready()
	r := newRelayOf(t, "hub", fmt.Sprintf(`upstreams:
- name: east
  xds: {addresses: [%q], plaintext: true}
  rewrite:
    namespaces: {shop: shop-east}
    namespacePrefix: e-
    namePrefix: e-
    labels: {set: {from: east}}
    hosts: {cluster.local: east.example}
    exportTo: ["*"]
    endpoints: {network: east-net, locality: north/a, cluster: east}
`, east.grpc)).start().ready()
	third := newIstiod(t, "third", r.xds).start().ready()

	renamed := map[string]string{} // the new key of each, by its old key
	for key := range east.configs() {
		kind, rest, _ := strings.Cut(key, " ")
		namespace, name, _ := strings.Cut(rest, "/")
		if namespace = "e-" + namespace; namespace == "e-shop" {
			namespace = "shop-east"
		}
		renamed[key] = kind + " " + namespace + "/e-" + name
	}
	eventually(t, "the third istiod has all under other names", func() error {
		have := third.configs()
		for old, key := range renamed {
			if c, ok := have[key]; !ok || !strings.Contains(c, `"from":"east"`) {
				return fmt.Errorf("%s, which was %s, is %q", key, old, c)
			}
		}
		if len(have) != len(renamed) {
			return fmt.Errorf("there are %d, want %d", len(have), len(renamed))
		}
		return nil
	})
	// EnvoyFilters are free-form, and are left as they are.
	for key, c := range third.configs() {
		if strings.Contains(c, ".svc.cluster.local") && !strings.Contains(key, "/EnvoyFilter ") {
			t.Errorf("%s still names a host of the source: %s", key, c)
		}
	}
	if n := r.rejections(); n > 0 {
		t.Errorf("the istiod refused %d responses", n)
	}
}

// TestRelaysInARingDoNotKeepWhatIsDeleted: each of two relays has an istiod and the other
// relay. What one is told comes to both once, and goes when it goes.
func TestRelaysInARingDoNotKeepWhatIsDeleted(t *testing.T) {
	t.Parallel()
	east, west := newIstiod(t, "east"), newIstiod(t, "west")
	east.write(t, "e", "e.example")
	east.write(t, "both", "both.east.example")
	west.write(t, "w", "w.example")
	west.write(t, "both", "both.west.example")
	east.start().ready()
	west.start().ready()
	upstream := func(name, address string) string {
		return fmt.Sprintf("- name: %s\n  xds: {addresses: [%q], plaintext: true}\n", name, address)
	}
	one, two := newRelayOf(t, "one", ""), newRelayOf(t, "two", "")
	more := func(r *relay, upstreams string) {
		*r = *newRelayOf(t, r.name, "upstreams:\n"+upstreams)
	}
	more(two, upstream("west", west.grpc)+upstream("one", "127.0.0.1:1"))
	more(one, upstream("east", east.grpc)+upstream("two", two.xds))
	change(t, two.config, "127.0.0.1:1\"", one.xds+"\"")
	one.start()
	two.start()
	third := newIstiod(t, "third", two.xds).start().ready()
	one.ready()
	two.ready()

	const se = "networking.istio.io/ServiceEntry shop/"
	serves := func(r *relay, want map[string]string) {
		t.Helper()
		eventually(t, "relay "+r.name+" serves what there is", func() error {
			have := r.configs()
			for name, part := range want {
				if c := have[se+name]; !strings.Contains(c, part) {
					return fmt.Errorf("%s is %q, want %s", name, c, part)
				}
			}
			if len(have) != len(want) {
				return fmt.Errorf("there are %d configs, want %d", len(have), len(want))
			}
			return nil
		})
	}
	serves(one, map[string]string{"e": "e.example", "w": "w.example", "both": "both.east.example"})
	serves(two, map[string]string{"e": "e.example", "w": "w.example", "both": "both.west.example"})
	third.has(se+"e", "e.example")

	east.remove(t, "e")
	west.remove(t, "both")
	serves(one, map[string]string{"w": "w.example", "both": "both.east.example"})
	serves(two, map[string]string{"w": "w.example", "both": "both.east.example"})
	east.remove(t, "both")
	west.remove(t, "w")
	serves(one, nil)
	serves(two, nil)
	eventually(t, "nothing is left", func() error {
		if c := third.configs(); len(c) > 0 {
			return fmt.Errorf("there is %v", c)
		}
		return nil
	})
}

// TestAServiceOfTwoMeshesIsReachedAtBothGateways: clients in a third cluster get the union of a
// service of two clusters.
func TestAServiceOfTwoMeshesIsReachedAtBothGateways(t *testing.T) {
	t.Parallel()
	east, west := newIstiod(t, "east"), newIstiod(t, "west")
	// As an istiod tells of a Kubernetes service; each cluster has chosen an address.
	writeShop(t, east, "  addresses: [10.96.0.1]\n")
	writeShop(t, west, "  addresses: [10.97.0.1]\n")
	east.start().ready()
	west.start().ready()
	upstream := `- name: %[1]s
  xds: {addresses: [%[2]q], plaintext: true}
  services: {mode: gateway, gateways: [%[3]s], network: %[1]s-net}
`
	near := newRelayOf(t, "near", "merge: [{kinds: [ServiceEntry], policy: union}]\nupstreams:\n"+
		fmt.Sprintf(upstream, "east", east.grpc, "192.0.2.1")+fmt.Sprintf(upstream, "west", west.grpc, "192.0.2.2")).start().ready()
	// A service that a relay has made reachable stays so through another relay.
	far := newRelayOf(t, "far", fmt.Sprintf("upstreams:\n- name: near\n  xds: {addresses: [%q], plaintext: true}\n", near.xds)).start().ready()
	third := newIstiod(t, "third", far.xds).start().ready()

	e := dial(t, third.grpc).envoy(proxy{network: "third-net", cluster: "third"})
	// Of a service with two addresses an istiod 1.23 makes two, and so has each endpoint
	// twice. They weigh the same.
	e.waitEndpoints(shopCluster, "192.0.2.1:15443", "192.0.2.1:15443", "192.0.2.2:15443", "192.0.2.2:15443")
	if sni := e.sni(shopCluster); sni != shopSNI {
		t.Errorf("the server name is %q, want %q", sni, shopSNI)
	}
	east.remove(t, "shop")
	e.waitEndpoints(shopCluster, "192.0.2.2:15443")
	west.remove(t, "shop")
	e.wait("the service goes", func() error {
		if e.cluster(shopCluster) != nil {
			return fmt.Errorf("it is there")
		}
		return nil
	})
}
