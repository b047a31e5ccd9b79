package services

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	networking "istio.io/api/networking/v1alpha3"

	"meshrelay/mirror"
)

// TestEachSetOfPortsHasAnEntry: that with the most endpoints is the service, of several that with the most ports.
func TestEachSetOfPortsHasAnEntry(t *testing.T) {
	at := func(from, to int, port uint32) (all []Endpoint) {
		for i := from; i < to; i++ {
			all = append(all, Endpoint{Addr: netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), Port: port})
		}
		return all
	}
	for name, tc := range map[string]struct {
		all  Assignments
		want []string
	}{
		"one set":            {Assignments{80: at(0, 3, 81), 9090: at(0, 3, 91)}, []string{"[http admin] 3"}},
		"a port that is new": {Assignments{80: at(0, 11, 81), 9090: at(10, 11, 91)}, []string{"[http] 10", "[http admin] 1"}},
		"most have it":       {Assignments{80: at(0, 11, 81), 9090: at(4, 11, 91)}, []string{"[http admin] 7", "[http] 4"}},
		"as many":            {Assignments{80: at(0, 2, 81), 9090: at(1, 2, 91)}, []string{"[http admin] 1", "[http] 1"}},
		"a renamed port":     {Assignments{80: at(0, 3, 81), 9090: at(3, 6, 91)}, []string{"[http] 3", "[admin] 3"}},
		"all sets":           {Assignments{80: at(0, 4, 81), 9090: at(2, 10, 91)}, []string{"[admin] 6", "[http admin] 2", "[http] 2"}},
	} {
		served, siblings, err := WithEndpoints(synthetic(t, nil), tc.all, "")
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		names := map[string]bool{}
		for i, r := range append([]*mirror.Resource{served}, siblings...) {
			se, ports := sound(t, r), []string{}
			for _, p := range se.Ports {
				ports = append(ports, p.Name)
			}
			got = append(got, fmt.Sprint(ports, " ", len(se.Endpoints)))
			if i > 0 {
				if r, err = AsSibling(r, served.Key()); err != nil || !IsMade(r) || !r.HasAnnotation(mirror.SiblingAnnotation) || !strings.HasPrefix(r.Key().Name, "synthetic-db-") {
					t.Errorf("%s: %v, %v", name, r, err)
				}
			}
			names[r.Key().Name] = true
		}
		if !slices.Equal(got, tc.want) || len(names) != len(tc.want) {
			t.Errorf("%s: %q of %v, want %q", name, got, names, tc.want)
		}
	}
	many, all := synthetic(t, func(se *networking.ServiceEntry) {
		se.Ports = nil
		for n := range uint32(8) {
			se.Ports = append(se.Ports, &networking.ServicePort{Number: n + 1, Name: fmt.Sprint("p", n)})
		}
	}), Assignments{}
	for i := range 256 {
		for n := range uint32(8) {
			if i&(1<<n) != 0 {
				all[n+1] = append(all[n+1], at(i, i+1, 80)...)
			}
		}
	}
	if _, siblings, err := WithEndpoints(many, all, ""); err != nil || len(siblings) != maxSets-1 {
		t.Errorf("%d siblings, %v", len(siblings), err)
	}
}

// TestAnAuthorTellsNoSiblings: relays are believed alone.
func TestAnAuthorTellsNoSiblings(t *testing.T) {
	r, err := AsSibling(synthetic(t, nil), mirror.Key{Name: "synthetic-db"})
	if err != nil {
		t.Fatal(err)
	}
	if r, err = Untold(r); err != nil || r.HasAnnotation(mirror.SiblingAnnotation) {
		t.Errorf("%v, %v", r, err)
	}
}
