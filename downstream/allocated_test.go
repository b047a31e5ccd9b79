package downstream

import (
	"fmt"
	"slices"
	"testing"

	networking "istio.io/api/networking/v1alpha3"

	"meshrelay/internal/wire"
	"meshrelay/mirror"
)

// allocated returns a ServiceEntry with an allocated address.
func allocated(name, host, address string) *mirror.Resource {
	s := build(kindSE, "shop", name, &networking.ServiceEntry{Hosts: []string{host}, Addresses: []string{address}}).Spec()
	s.Annotations = map[string]string{mirror.AllocatedAnnotation: address}
	return must(mirror.New(s))
}

// TestAClientIsNotSentAnAddressThatItsClusterHasForAnotherHost, whether it is sent what its cluster has or not, and also if the
// cluster becomes known later.
func TestAClientIsNotSentAnAddressThatItsClusterHasForAnotherHost(t *testing.T) {
	for _, exclude := range []bool{true, false} {
		t.Run(fmt.Sprint("excludeOwn ", exclude), func(t *testing.T) {
			r := startRelay(t, true, func(c *Config, _ *Deps) { c.Views = []View{{Name: "all", Default: true, ExcludeOwn: exclude}} })
			a := east(allocated("a", "a.x", "240.240.0.1"))
			r.put(a)
			has := func(cluster string) bool {
				rule := must(r.server.newestRules(t.Context())).byName["all"]
				x := r.server.views.known.narrow(variantOf(rule, client{clusterID: cluster}))
				shown := r.server.views.resources.Select(a.Key(), x.cluster, r.server.views.shows(x))
				return shown != nil && slices.Contains(wire.Texts(shown.BodyValue(), 2), "240.240.0.1")
			}
			own, other := r.deltaAs(seV1, "CLUSTER_ID", "west"), r.deltaAs(seV1, "CLUSTER_ID", "north")
			first, second := own.next(), other.next()
			if first.Resources[0].Version != second.Resources[0].Version || !has("west") || !has("north") {
				t.Fatal("they are not sent the address")
			}
			r.west.Put(west(allocated("b", "b.x", "240.240.0.1")))
			r.eventually(t, "its address is left out for the cluster that has it", func() bool { return !has("west") && has("north") })
			for sent := false; !sent; {
				for _, res := range own.next().Resources {
					sent = sent || res.Name == "shop/a" && res.Version != first.Resources[0].Version
				}
			}
		})
	}
}

// TestMadeUpClustersShareAViewWithThoseWhoClaimNone where nothing is left out for them.
func TestMadeUpClustersShareAViewWithThoseWhoClaimNone(t *testing.T) {
	k := newKnown()
	r := &rule{}
	for _, name := range []string{"", "a", "b"} {
		if x := k.narrow(variantOf(r, client{clusterID: name})); x != (variant{}) {
			t.Errorf("%q has the variant %+v", name, x)
		}
	}
}
