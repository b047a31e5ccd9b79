package conflicts

import (
	"testing"
	"time"

	networking "istio.io/api/networking/v1alpha3"

	"meshrelay/federation"
	"meshrelay/internal/wire"
	"meshrelay/mirror"
)

// TestHostsInAnotherCaseAreInConflict, of ServiceEntries and of VirtualServices, also short ones.
func TestHostsInAnotherCaseAreInConflict(t *testing.T) {
	h := NewHosts(time.Now)
	upper := build(t, federation.ServiceEntry, "public", "consumers:cn.example.Service::.DEFAULT-GROUP.public", "east", &networking.ServiceEntry{Hosts: []string{"Consumers.DEFAULT-GROUP.public.nacos"}})
	h.Update(nil, upper)
	if changed := h.Update(nil, build(t, federation.ServiceEntry, "shop", "b", "west", &networking.ServiceEntry{Hosts: []string{"consumers.default-group.public.NACOS"}})); len(changed) != 1 || changed[0].Host != "consumers.default-group.public.nacos" {
		t.Errorf("ServiceEntries: %+v", changed)
	}
	h.Update(nil, build(t, federation.VirtualService, "shop", "a", "east", &networking.VirtualService{Hosts: []string{"Reviews"}}))
	if changed := h.Update(nil, build(t, federation.VirtualService, "shop", "b", "west", &networking.VirtualService{Hosts: []string{"REVIEWS.shop.SVC.cluster.local"}})); len(changed) != 1 {
		t.Errorf("VirtualServices: %+v", changed)
	}
	if got := wire.Texts(upper.BodyValue(), 1); len(got) != 1 || got[0] != "Consumers.DEFAULT-GROUP.public.nacos" {
		t.Errorf("the resource has the hosts %q", got)
	}
}

// TestASiblingOfAServiceIsNoRival: it has other ports of the same host.
func TestASiblingOfAServiceIsNoRival(t *testing.T) {
	h := NewHosts((&clock{monday}).now)
	service := build(t, federation.ServiceEntry, "shop", "synthetic-web", "east", &networking.ServiceEntry{Hosts: []string{"web.example"}})
	s := build(t, federation.ServiceEntry, "shop", "synthetic-web-00000001", "east", &networking.ServiceEntry{Hosts: []string{"web.example"}}).Spec()
	s.Annotations = map[string]string{mirror.SiblingAnnotation: "synthetic-web"}
	sibling, err := mirror.New(s)
	if got := append(h.Update(nil, service), h.Update(nil, sibling)...); err != nil || len(got) > 0 {
		t.Errorf("%v, %v", got, err)
	}
}
