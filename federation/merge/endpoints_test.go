package merge

import (
	"slices"
	"testing"

	networking "istio.io/api/networking/v1alpha3"
	"pgregory.net/rapid"

	"meshrelay/federation"
	"meshrelay/federation/services"
	"meshrelay/mirror"
)

func TestACopyWithoutEndpointsStandsBehindTheNextOneThatHasSome(t *testing.T) {
	type edit = func(*item, *networking.ServiceEntry)
	has := withEndpoints("192.0.2.1")
	and := func(a edit, b edit) edit {
		return func(it *item, se *networking.ServiceEntry) { a(it, se); b(it, se) }
	}
	old := func(it *item, _ *networking.ServiceEntry) { it.created = monday }
	young := func(it *item, _ *networking.ServiceEntry) { it.created = tuesday }
	none := func(it *item, _ *networking.ServiceEntry) {
		it.annotations = map[string]string{services.EndpointsAnnotation: "none"}
	}
	const behind = "first in order, but east has no endpoints"
	for _, test := range []struct {
		name   string
		policy mirror.Policy
		east   edit
		others []edit
		winner int
		reason string
	}{
		{"the first has some", mirror.First{}, has, []edit{has}, 0, "first in order"},
		{"nobody has some", mirror.First{}, none, []edit{none}, 0, "first in order"},
		{"the next has some", mirror.First{}, none, []edit{none, has, has}, 2, behind},
		{"a host that nobody serves", mirror.First{}, nil, []edit{has}, 0, "first in order"},
		{"the order is that of the policy", Newest{}, and(has, old), []edit{and(none, young), and(has, old)}, 0, "newest, but west has no endpoints"},
		{"another host", mirror.First{}, none, []edit{and(has, func(_ *item, se *networking.ServiceEntry) { se.Hosts = []string{"other.example"} })}, 0, "first in order"},
		{"a host in another case", mirror.First{}, none, []edit{and(has, func(_ *item, se *networking.ServiceEntry) { se.Hosts = []string{"DB.example"} })}, 1, behind},
		{"a port without endpoints", mirror.First{}, none, []edit{and(has, func(_ *item, se *networking.ServiceEntry) { se.Ports = se.Ports[:1] })}, 1, behind},
		{"another port", mirror.First{}, none, []edit{and(has, func(_ *item, se *networking.ServiceEntry) { se.Ports[0].Number++ })}, 0, "first in order"},
		{"another identity", mirror.First{}, none, []edit{and(has, func(_ *item, se *networking.ServiceEntry) { se.SubjectAltNames = []string{"spiffe://x"} })}, 0, "first in order"},
		{"another visibility", mirror.First{}, none, []edit{and(has, func(_ *item, se *networking.ServiceEntry) { se.ExportTo = []string{"."} })}, 0, "first in order"},
		{"nothing is chosen", Reject{}, none, []edit{has}, -1, "several upstreams have it"},
	} {
		t.Run(test.name, func(t *testing.T) {
			copies := []mirror.Copy{copyOf(t, "east", test.east)}
			for i, other := range test.others {
				copies = append(copies, copyOf(t, []string{"west", "north", "south"}[i], other))
			}
			d := ForEntries(test.policy).Merge(copies)
			if d.Winner != test.winner || d.Reason != test.reason {
				t.Errorf("%+v", d)
			}
			if d.Winner >= 0 && d.Served != copies[d.Winner].Resource {
				t.Error("what is served is not the winner's copy")
			}
		})
	}
	if ForEntries(nil) != (Entries{mirror.First{}}) || ForEntries(Union{SameHost: true}) != (Union{SameHost: true}) {
		t.Error("union unites endpoints by itself")
	}
}

// TestNoCopyIsServedForAnotherService: whatever the copies are, the one that is served describes the service of the one
// that the policy chooses, and it is without endpoints only if each such copy is.
func TestNoCopyIsServedForAnotherService(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		var copies []mirror.Copy
		for i := range rapid.IntRange(1, 5).Draw(r, "copies") {
			host := rapid.SampledFrom([]string{"a.example", "A.example", "b.example"}).Draw(r, "host")
			some := rapid.Bool().Draw(r, "endpoints")
			copies = append(copies, copyOf(t, string(rune('a'+i)), func(it *item, se *networking.ServiceEntry) {
				if se.Hosts = []string{host}; some {
					se.Endpoints = endpoints("192.0.2.1")
				} else {
					it.annotations = map[string]string{services.EndpointsAnnotation: "none"}
				}
			}))
		}
		plain, d := mirror.First{}.Merge(copies), ForEntries(mirror.First{}).Merge(copies)
		same := func(c mirror.Copy) bool {
			return hostSet(entryOf(t, c.Resource).Hosts) == hostSet(entryOf(t, plain.Served).Hosts)
		}
		if !same(copies[d.Winner]) || d.Served != copies[d.Winner].Resource {
			r.Fatalf("%+v", d)
		}
		for i, c := range copies {
			if i < d.Winner && same(c) && federation.HasEndpoints(c.Resource.BodyValue()) ||
				!federation.HasEndpoints(d.Served.BodyValue()) && same(c) && federation.HasEndpoints(c.Resource.BodyValue()) {
				r.Fatalf("copy %d: %+v", i, d)
			}
		}
	})
}

func TestAUnionBeginsWithTheFirstCopyThatHasEndpoints(t *testing.T) {
	east := copyOf(t, "east", func(it *item, _ *networking.ServiceEntry) {
		it.annotations = map[string]string{services.EndpointsAnnotation: "none"}
	})
	west := copyOf(t, "west", func(_ *item, se *networking.ServiceEntry) {
		se.Resolution, se.Endpoints, se.Ports = networking.ServiceEntry_DNS, endpoints("gateway.west"), se.Ports[:1]
	})
	north := copyOf(t, "north", func(_ *item, se *networking.ServiceEntry) {
		se.Resolution, se.Endpoints, se.Ports = networking.ServiceEntry_DNS, endpoints("gateway.north"), se.Ports[:1]
	})
	d := Union{}.Merge([]mirror.Copy{east, west, north})
	se := entryOf(t, d.Served)
	if d.Winner != 0 || !slices.Equal(d.United, []int{1, 2}) || !slices.Equal(addressesOf(t, d.Served), []string{"gateway.west", "gateway.north"}) ||
		se.Resolution != networking.ServiceEntry_DNS || len(se.Ports) != 1 || d.Served.HasAnnotation(services.EndpointsAnnotation) {
		t.Errorf("%+v: %v", d, se)
	}
	abroad := copyOf(t, "abroad", func(_ *item, se *networking.ServiceEntry) {
		se.Location, se.Endpoints = networking.ServiceEntry_MESH_INTERNAL, endpoints("198.51.100.66")
	})
	if d := (Union{}).Merge([]mirror.Copy{east, abroad}); d.Served != east.Resource || d.United != nil {
		t.Errorf("a copy that is not united brings its endpoints: %+v: %v", d, addressesOf(t, d.Served))
	}
	if d := (Union{}).Merge([]mirror.Copy{west, east}); d.Served != west.Resource || addressesOf(t, d.Served)[0] != "gateway.west" {
		t.Errorf("%+v", d)
	}
}
