package merge

import (
	"slices"
	"testing"

	networking "istio.io/api/networking/v1alpha3"

	"meshrelay/mirror"
)

// TestUnionComparesHostsWithoutRegardToCase, and serves those of the first copy as they came.
func TestUnionComparesHostsWithoutRegardToCase(t *testing.T) {
	host := func(source, name, host, address string) mirror.Copy {
		return copyOf(t, source, func(it *item, se *networking.ServiceEntry) {
			it.name, se.Hosts, se.Endpoints = name, []string{host}, endpoints(address)
		})
	}
	east := host("east", "consumers:cn.example.Service::.DEFAULT-GROUP.public", "Consumers.DEFAULT-GROUP.public.nacos", "10.0.0.1")
	west := host("west", "b", "consumers.default-group.PUBLIC.nacos", "10.0.0.2")
	u := Union{SameHost: true}
	if a, b := u.Group(east.Resource), u.Group(west.Resource); a != b || a == "" {
		t.Errorf("groups %q and %q", a, b)
	}
	d := u.Merge([]mirror.Copy{east, west})
	if got := entryOf(t, d.Served).Hosts; !slices.Equal(got, []string{"Consumers.DEFAULT-GROUP.public.nacos"}) {
		t.Errorf("hosts %q", got)
	}
	if got := addressesOf(t, d.Served); len(got) != 2 || d.Served.FullName() != east.Resource.FullName() {
		t.Errorf("%s has the endpoints %q: %s", d.Served.FullName(), got, d.Reason)
	}
}
