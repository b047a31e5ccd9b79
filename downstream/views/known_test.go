package views

import (
	"fmt"
	"testing"
)

// TestKnownNamesAreBounded: whatever upstreams make up.
func TestKnownNamesAreBounded(t *testing.T) {
	k := NewKnown()
	nobody := func() bool { return false }
	for i := range maxKnown + 10 {
		knows := k.Note(Origin{Cluster: fmt.Sprint("c", i)}, nobody)
		if knows != (i < maxKnown) {
			t.Fatalf("%d is known: %v", i, knows)
		}
	}
}

// TestResourcesOfAKnownClusterCostNoAllocation: they are looked at with each change.
func TestResourcesOfAKnownClusterCostNoAllocation(t *testing.T) {
	k := NewKnown()
	two := []Origin{{Cluster: "east"}, {Cluster: "west"}}
	i := 0
	if n := testing.AllocsPerRun(100, func() {
		i++
		k.Note(two[i%2], func() bool { return false })
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestMadeUpClustersShareAView(t *testing.T) {
	k := NewKnown()
	r := &Rule{}
	for _, name := range []string{"a", "b"} {
		if x := k.Narrow(r.Selection(Client{ClusterID: name})); x != (Selection{strangeCluster: true}) {
			t.Errorf("%q sees %+v", name, x)
		}
	}
}
