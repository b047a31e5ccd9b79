package conflicts

import (
	"testing"
	"time"

	networking "istio.io/api/networking/v1alpha3"

	"meshrelay/federation"
	"meshrelay/internal/wire"
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
