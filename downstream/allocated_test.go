package downstream

import (
	"slices"
	"testing"

	networking "istio.io/api/networking/v1alpha3"

	"meshrelay/downstream/views"
	"meshrelay/internal/wire"
	"meshrelay/mirror"
)

// allocated returns a ServiceEntry with an allocated address.
func allocated(name, host, address string) *mirror.Resource {
	s := build(kindSE, "shop", name, &networking.ServiceEntry{Hosts: []string{host}, Addresses: []string{address}}).Spec()
	s.Annotations = map[string]string{mirror.AllocatedAnnotation: address}
	return must(mirror.New(s))
}

// TestAClientIsNotSentAnAddressThatItsClusterHasForAnotherHost, also if the cluster becomes known
// later.
func TestAClientIsNotSentAnAddressThatItsClusterHasForAnotherHost(t *testing.T) {
	r := startRelay(t, true, func(c *Config, _ *Deps) { c.Views = []views.View{{Name: "all", Default: true}} })
	a := east(allocated("a", "a.x", "240.240.0.1"))
	r.put(a)
	has := func(cluster string) bool {
		x := r.server.views.known.Narrow((&views.Rule{}).Selection(views.Client{ClusterID: cluster}))
		shown := r.server.views.resources.Select(a.Key(), x.Cluster, r.server.views.shows(x))
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
}
