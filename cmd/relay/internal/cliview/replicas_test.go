package cliview

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"meshrelay/peers"
)

func TestReplicasAreATableAndTheirDifferencesAreSentences(t *testing.T) {
	of := func(node string, serving bool, held int) peers.Status {
		return peers.Status{
			Node: node, Version: "1.4.0", Config: "9c41e0aa33bb", Decisions: 7, Serving: serving, Clients: 3, Synced: 2,
			Upstreams: []peers.Upstream{{Name: "east", Held: held}, {Name: "west"}},
		}
	}
	all := []peers.Replica{
		{Reached: true, Since: testNow.Add(-time.Hour), Status: of("relay-0", true, 0)},
		{
			Peer: "10.0.0.1:15016", Reached: true, Since: testNow.Add(-time.Minute), Status: of("relay-1", true, 2),
			Differences: []peers.Difference{{Upstream: "east", Here: 98, There: 100}},
		},
		{Peer: "10.0.0.2:15016", Reached: true, Since: testNow, Status: of("relay-2", false, 0)},
		{Peer: "10.0.0.3:15016", Problem: "connection\nrefused", Since: testNow.Add(-2 * time.Minute)},
	}
	want := `
REPLICA          STATE               SINCE   VERSION   CONFIG         DECISIONS   CLIENTS SYNCED
relay-0          this one            60m     1.4.0     9c41e0aa33bb   7           2 of 3
relay-1          differs             60s     1.4.0     9c41e0aa33bb   7           2 of 3
relay-2          holds its clients   0s      1.4.0     9c41e0aa33bb   7           2 of 3
10.0.0.3:15016   unreachable         2m      -         -              0           0 of 0
relay-1 serves another content of upstream east: 100 resources, and here 98
10.0.0.3:15016 (10.0.0.3:15016) is unreachable for 2m: connection refused
`
	if diff := cmp.Diff(want, Plain(Replicas(all, testNow))); diff != "" {
		t.Error(diff)
	}
	if got := Replicas(nil, testNow); got != "" {
		t.Errorf("without others: %q", got)
	}
}
