package conflicts

import (
	"slices"
	"testing"

	networking "istio.io/api/networking/v1alpha3"

	"meshrelay/federation"
	"meshrelay/internal/wire"
	"meshrelay/mirror"
)

// TestHostsInAnotherCaseAreInConflict, of ServiceEntries and of VirtualServices, also short ones.
func TestHostsInAnotherCaseAreInConflict(t *testing.T) {
	w := newWorld(t, "serve", "east", "west")
	upper := build(t, federation.ServiceEntry, "public", "consumers:cn.example.Service::.DEFAULT-GROUP.public", "east", &networking.ServiceEntry{Hosts: []string{"Consumers.DEFAULT-GROUP.public.nacos"}})
	w.put(upper, build(t, federation.ServiceEntry, "shop", "b", "west", &networking.ServiceEntry{Hosts: []string{"consumers.default-group.public.NACOS"}}),
		build(t, federation.VirtualService, "shop", "a", "east", &networking.VirtualService{Hosts: []string{"Reviews"}}),
		build(t, federation.VirtualService, "shop", "b", "west", &networking.VirtualService{Hosts: []string{"REVIEWS.shop.SVC.cluster.local"}}))
	var hosts []string
	for _, c := range w.conflicts() {
		hosts = append(hosts, c.Host)
	}
	if slices.Sort(hosts); !slices.Equal(hosts, []string{"consumers.default-group.public.nacos", "reviews.shop.svc.cluster.local"}) {
		t.Errorf("conflicts about %q", hosts)
	}
	if got := wire.Texts(upper.BodyValue(), 1); len(got) != 1 || got[0] != "Consumers.DEFAULT-GROUP.public.nacos" {
		t.Errorf("the resource has the hosts %q", got)
	}
}

// TestASiblingOfAServiceIsNoRival: it has other ports of the same host.
func TestASiblingOfAServiceIsNoRival(t *testing.T) {
	w := newWorld(t, "serve", "east")
	w.put(build(t, federation.ServiceEntry, "shop", "synthetic-web", "east", &networking.ServiceEntry{Hosts: []string{"web.example"}}))
	s := build(t, federation.ServiceEntry, "shop", "synthetic-web-00000001", "east", &networking.ServiceEntry{Hosts: []string{"web.example"}}).Spec()
	s.Annotations = map[string]string{mirror.SiblingAnnotation: "synthetic-web"}
	w.put(must(mirror.New(s)))
	if got := w.conflicts(); len(got) > 0 {
		t.Errorf("%v", got)
	}
}
