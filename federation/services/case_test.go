package services

import (
	"slices"
	"testing"

	networking "istio.io/api/networking/v1alpha3"
)

// TestAHostInUpperCaseIsAskedForAndServedAsItCame: the names of clusters are no hosts of DNS.
func TestAHostInUpperCaseIsAskedForAndServedAsItCame(t *testing.T) {
	const host = "Consumers.DEFAULT-GROUP.public.nacos"
	r := synthetic(t, func(se *networking.ServiceEntry) { se.Hosts, se.Ports = []string{host}, se.Ports[:1] })
	clusters, err := Clusters(r)
	if want := []Cluster{{80, "outbound|80||" + host}}; err != nil || !slices.Equal(clusters, want) {
		t.Errorf("clusters %v, %v", clusters, err)
	}
	served, _, err := WithEndpoints(r, byPort{80: assignment(in("r", "z", "", lb("10.0.0.1", 8080)))}.assignments(), "net-west")
	if err != nil {
		t.Fatal(err)
	}
	if got := sound(t, served).Hosts; !slices.Equal(got, []string{host}) {
		t.Errorf("hosts %q", got)
	}
}
