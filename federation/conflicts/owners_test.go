package conflicts

import (
	"strings"
	"testing"
	"testing/synctest"

	"google.golang.org/protobuf/types/known/structpb"
	networking "istio.io/api/networking/v1alpha3"

	"meshrelay/federation"
	"meshrelay/federation/merge"
	"meshrelay/mirror"
)

// TestAResourceWhoseHostIsOfOthersIsListed, also with one copy, until it is served.
func TestAResourceWhoseHostIsOfOthersIsListed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "first", "owner", "east")
		a, owner, taker, tr := w.resources, w.stores["owner"], w.stores["east"], w.Tracker
		mine := build(t, federation.ServiceEntry, "bank", "x", "east", &networking.ServiceEntry{Hosts: []string{"pay.example"}})
		mine = must(mirror.New(func() mirror.Spec { s := mine.Spec(); s.Source = "owner"; return s }()))
		taken := build(t, federation.VirtualService, "team", "x", "east", &networking.VirtualService{Hosts: []string{"Pay.example"}, Gateways: []string{"team/gw"}})
		gateway := build(t, mirror.Kind{Group: "networking.istio.io", Kind: "Gateway"}, "team", "gw", "east", &networking.Gateway{Servers: []*networking.Server{{Hosts: []string{"pay.example"}}}})
		owner.Put(mine)
		taker.Put(taken)
		taker.Put(gateway)
		synctest.Wait()
		all := tr.KeyConflicts()
		if len(all) != 1 || all[0].Outcome != Unowned || all[0].Winner != "" || len(all[0].Losers) != 1 || all[0].Losers[0] != "east" ||
			all[0].Reason != "host pay.example is also claimed by networking.istio.io/ServiceEntry bank/x from owner (hostConflicts: first)" {
			t.Errorf("%+v", all)
		}
		if a.Get(gateway.Key()) == nil {
			t.Error("a kind that owns no hosts yields")
		}
		owner.Remove(mine.Key())
		synctest.Wait()
		if all := tr.KeyConflicts(); len(all) != 0 || a.Get(taken.Key()) == nil {
			t.Errorf("without the owner: %+v", all)
		}
	})
}

// TestRoutesAreJudgedByTheHostsOfTheirParentsAsMerged, by hostConflicts and in the list of conflicts alike. A parent that
// is not served claims nothing.
func TestRoutesAreJudgedByTheHostsOfTheirParentsAsMerged(t *testing.T) {
	type object = map[string]any
	route := func(source, name, hostname, parent string) *mirror.Resource {
		ref := object{"name": "gw"}
		if parent != "" {
			ref = object{"group": "networking.istio.io", "kind": "ServiceEntry", "name": parent}
		}
		spec, err := structpb.NewStruct(object{"hostnames": []any{hostname}, "parentRefs": []any{ref}})
		if err != nil {
			t.Fatal(err)
		}
		s := build(t, mirror.Kind{Group: "gateway.networking.k8s.io", Kind: "HTTPRoute"}, "shop", "x", "east", spec).Spec()
		s.Name, s.Source = name, source
		return must(mirror.New(s))
	}
	entry := func(source, name, host string) *mirror.Resource {
		s := build(t, federation.ServiceEntry, "shop", "x", "east", &networking.ServiceEntry{Hosts: []string{host}}).Spec()
		s.Name, s.Source = name, source
		return must(mirror.New(s))
	}
	service := func(source, name string, gateways ...string) *mirror.Resource {
		s := build(t, federation.VirtualService, "shop", "x", "east", &networking.VirtualService{Hosts: []string{"pay.example"}, Gateways: gateways}).Spec()
		s.Name, s.Source = name, source
		return must(mirror.New(s))
	}
	for name, tc := range map[string]struct {
		given []*mirror.Resource
		then  *mirror.Resource
		want  string // the host of two claims
	}{
		"hostnames of gateways":             {given: []*mirror.Resource{route("east", "a", "Pay.example", ""), route("west", "b", "pay.example", "")}, want: "pay.example"},
		"those of one upstream":             {given: []*mirror.Resource{route("east", "a", "pay.example", ""), route("east", "b", "pay.example", "")}},
		"one parent":                        {given: []*mirror.Resource{route("east", "a", "a.example", "se"), route("west", "b", "b.example", "se"), entry("east", "se", "pay.example")}, want: "pay.example"},
		"hostnames beside a parent":         {given: []*mirror.Resource{route("east", "a", "pay.example", "se"), route("west", "b", "pay.example", "")}},
		"no parent":                         {given: []*mirror.Resource{route("east", "a", "pay.example", "se"), route("west", "b", "pay.example", "se")}},
		"a parent that comes later":         {given: []*mirror.Resource{route("east", "a", "pay.example", ""), route("west", "b", "b.example", "se")}, then: entry("west", "se", "pay.example"), want: "pay.example"},
		"a parent that changes":             {given: []*mirror.Resource{route("east", "a", "pay.example", ""), route("west", "b", "b.example", "se"), entry("west", "se", "pay.example")}, then: entry("west", "se", "b.example")},
		"the first copy of a parent counts": {given: []*mirror.Resource{route("east", "a", "pay.example", ""), route("west", "b", "b.example", "se"), entry("west", "se", "b.example")}, then: entry("east", "se", "pay.example"), want: "pay.example"},
		"VirtualServices of gateways":       {given: []*mirror.Resource{service("east", "a", "ingress/gw"), service("west", "b", "ingress/gw")}, want: "pay.example"},
		"one of sidecars":                   {given: []*mirror.Resource{service("east", "a"), service("west", "b", "ingress/gw")}, want: "pay.example"},
		"one of each in one upstream":       {given: []*mirror.Resource{service("east", "a"), service("east", "b", "ingress/gw")}},
	} {
		for _, owned := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				setting := "serve"
				if owned {
					setting = "first"
				}
				w := newWorld(t, setting, "east", "west")
				a, stores, tr := w.resources, w.stores, w.Tracker
				for _, r := range tc.given {
					stores[r.Source()].Put(r)
				}
				synctest.Wait()
				if tc.then != nil {
					stores[tc.then.Source()].Put(tc.then)
					synctest.Wait()
				}
				var hosts []string
				for _, c := range tr.HostConflicts() {
					hosts = append(hosts, c.Host)
				}
				if got := strings.Join(hosts, " "); got != tc.want && !owned || got != "" && owned {
					t.Errorf("%s: conflicts about %q, want %q, owned: %v", name, got, tc.want, owned)
				}
				a.SetOwners(must(merge.OwnersByName("first")))
				synctest.Wait()
				lost := 0
				for _, k := range tr.KeyConflicts() {
					if k.Outcome == Unowned && k.Namespace+"/"+k.Name == "shop/b" {
						lost++
					}
				}
				if lost != min(len(tc.want), 1) {
					t.Errorf("%s: %d are not served: %+v, owned: %v", name, lost, tr.KeyConflicts(), owned)
				}
			})
		}
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
