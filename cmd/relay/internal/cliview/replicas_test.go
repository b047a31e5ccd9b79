package cliview

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"meshrelay/orders"
)

func TestReplicasAreATableAndOrdersThatAreNotInForceAreSentences(t *testing.T) {
	lacks := map[string]string{"east": "it is frozen\nas it was"}
	all := []orders.Replica{
		{Name: "relay-0", Self: true, Heard: testNow, Report: orders.Report{Follows: 7, Lacks: map[string]string{}}},
		{Name: "relay-1", Heard: testNow.Add(-time.Minute), Report: orders.Report{Follows: 7, Lacks: lacks, Holds: []orders.Hold{{Upstream: "east", ID: "4kq3vx2a"}}}},
		{Name: "relay-2", Heard: testNow, Report: orders.Report{Follows: 6}},
		{Name: "relay-3", Away: true, Heard: testNow.Add(-3 * time.Minute), Report: orders.Report{Follows: 5}},
	}
	want := `
REPLICA   STATE          HEARD   FOLLOWS   NOT IN FORCE   HOLDS
relay-0   this one       0s      7         0              0
relay-1   lacks orders   60s     7         1              1
relay-2   follows        0s      6         0              0
relay-3   away           3m      5         0              0
relay-1: upstream east: it is frozen as it was
`
	if diff := cmp.Diff(want, Plain(Replicas(all, testNow))); diff != "" {
		t.Error(diff)
	}
	if got := Replicas(nil, testNow); got != "" {
		t.Errorf("without others: %q", got)
	}
}
