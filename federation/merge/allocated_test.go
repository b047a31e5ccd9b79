package merge

import (
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"

	"meshrelay/mirror"
)

// TestUnionHasTheAllocatedAddressesOfTheFirstCopyOnly: the cluster of the first one may have those of the others for another host. A
// relay has united some of them with addresses that somebody wrote.
func TestUnionHasTheAllocatedAddressesOfTheFirstCopyOnly(t *testing.T) {
	allocated := func(source, address, endpoint string, more ...string) mirror.Copy {
		return copyOf(t, source, func(i *item, se *networking.ServiceEntry) {
			i.annotations = map[string]string{mirror.AllocatedAnnotation: address}
			se.Addresses, se.Endpoints = append(more, address), endpoints(endpoint)
		})
	}
	plain := copyOf(t, "north", func(_ *item, se *networking.ServiceEntry) {
		se.Addresses, se.Endpoints = []string{"10.0.0.1"}, endpoints("192.0.2.3")
	})
	d := Union{}.Merge([]mirror.Copy{allocated("east", "240.240.0.1", "192.0.2.1"), allocated("west", "240.240.0.2", "192.0.2.2", "10.0.0.2"), plain})
	se := &networking.ServiceEntry{}
	if err := proto.Unmarshal(d.Served.BodyValue(), se); err != nil {
		t.Fatal(err)
	}
	if want := []string{"240.240.0.1", "10.0.0.2", "10.0.0.1"}; !slices.Equal(se.Addresses, want) || len(se.Endpoints) != 3 {
		t.Errorf("it has %v and %v", se.Addresses, se.Endpoints)
	}
	if got := d.Served.Allocated(); !slices.Equal(got, []string{"240.240.0.1"}) {
		t.Errorf("the annotation names %v", got)
	}
}
