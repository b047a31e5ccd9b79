package tracker

import (
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"

	"google.golang.org/protobuf/types/known/structpb"
	networking "istio.io/api/networking/v1alpha3"

	"meshrelay/federation"
	"meshrelay/federation/conflicts"
	"meshrelay/federation/merge"
	"meshrelay/mirror"
)

// TestAResourceWhoseHostIsOfOthersIsListed, also with one copy, until it is served.
func TestAResourceWhoseHostIsOfOthersIsListed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, owner, taker, tr := mirror.NewAggregate(), mirror.NewStore(), mirror.NewStore(), New(slog.New(slog.DiscardHandler))
		if err := tr.Follow(a); err != nil {
			t.Fatal(err)
		}
		a.SetSources([]mirror.Source{{Name: "owner", Store: owner}, {Name: "east", Store: taker}}) // claim makes resources of east
		owners, err := merge.OwnersByName("first")
		if err != nil {
			t.Fatal(err)
		}
		a.SetOwners(owners)
		go a.Run(t.Context()) //nolint:errcheck // it returns nil
		mine := claim(t, federation.ServiceEntry, "bank", &networking.ServiceEntry{Hosts: []string{"pay.example"}})
		mine, err = mirror.New(func() mirror.Spec { s := mine.Spec(); s.Source = "owner"; return s }())
		if err != nil {
			t.Fatal(err)
		}
		taken := claim(t, federation.VirtualService, "team", &networking.VirtualService{Hosts: []string{"Pay.example"}, Gateways: []string{"team/gw"}})
		owner.Put(mine)
		taker.Put(taken)
		synctest.Wait()
		all := tr.KeyConflicts()
		if len(all) != 1 || all[0].Outcome != conflicts.Unowned || all[0].Winner != "" || len(all[0].Losers) != 1 || all[0].Losers[0] != "east" ||
			all[0].Reason != "host pay.example is also claimed by networking.istio.io/ServiceEntry bank/x from owner (hostConflicts: first)" {
			t.Errorf("%+v", all)
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
		s := claim(t, mirror.Kind{Group: "gateway.networking.k8s.io", Kind: "HTTPRoute"}, "shop", spec).Spec()
		s.Name, s.Source = name, source
		return must(mirror.New(s))
	}
	entry := func(source, name, host string) *mirror.Resource {
		s := claim(t, federation.ServiceEntry, "shop", &networking.ServiceEntry{Hosts: []string{host}}).Spec()
		s.Name, s.Source = name, source
		return must(mirror.New(s))
	}
	service := func(source, name string, gateways ...string) *mirror.Resource {
		s := claim(t, federation.VirtualService, "shop", &networking.VirtualService{Hosts: []string{"pay.example"}, Gateways: gateways}).Spec()
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
				stores := map[string]*mirror.Store{"east": mirror.NewStore(), "west": mirror.NewStore()}
				a, tr := mirror.NewAggregate(), New(slog.New(slog.DiscardHandler))
				if err := tr.Follow(a); err != nil {
					t.Fatal(err)
				}
				a.SetSources([]mirror.Source{{Name: "east", Store: stores["east"]}, {Name: "west", Store: stores["west"]}})
				owners := must(merge.OwnersByName("first"))
				if owned {
					a.SetOwners(owners)
				}
				go a.Run(t.Context()) //nolint:errcheck // it returns nil
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
				a.SetOwners(owners)
				synctest.Wait()
				lost := 0
				for _, k := range tr.KeyConflicts() {
					if k.Outcome == conflicts.Unowned && k.Namespace+"/"+k.Name == "shop/b" {
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
