package cliview

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"meshrelay/adsclient"
	"meshrelay/downstream"
	"meshrelay/upstreams"
	"meshrelay/upstreams/intake"
	"meshrelay/upstreams/intake/records"
)

// TestCommandsAreNamedInPlaceOfAVersion: the version in their node is only what istiods demand.
func TestCommandsAreNamedInPlaceOfAVersion(t *testing.T) {
	tool := adsclient.Node(adsclient.NodeConfig{Name: downstream.ToolName, Namespace: "istio-system", IP: "127.0.0.1"})
	clients := []downstream.ClientStatus{
		{NodeID: tool.GetId(), IstioVersion: "1.32.0"}, {NodeID: "sidecar~10.0.0.1~relay-getter.shop~domain", IstioVersion: "1.32.0"},
	}
	if table := Plain(Clients(clients, testNow)); strings.Count(table, "relay get") != 1 || strings.Count(table, "1.32.0") != 1 {
		t.Error(table)
	}
}

func TestOneClientIsShownByType(t *testing.T) {
	c := downstream.ClientStatus{
		Connection: "id-1", NodeID: "sidecar~10.0.0.1~istiod-1.istio-system~domain", ClusterID: "c1", Protocol: "delta",
		Types: []downstream.TypeStatus{
			{TypeURL: "a/v1/B", Synced: true, SentAt: testNow.Add(-time.Minute), AckedAt: testNow.Add(-time.Minute), Pushes: 2, Bytes: 300},
			{TypeURL: "a/v1/C", LastNACK: "bad\nhost", NACKs: 1},
			{TypeURL: "a/v1/D"},
		},
	}
	want := `CLIENT                  CLUSTER   VIEW   VERSION   PROTOCOL   TYPES   STATE             NACKS   CONNECTED   ADDRESS
istiod-1.istio-system   c1        -      -         delta      3       1 type rejected   1       -           -

Node:       sidecar~10.0.0.1~istiod-1.istio-system~domain
Connection: id-1

TYPE     STATE      SENT   ACKNOWLEDGED   RESPONSES   BYTES   NACKS
a/v1/B   synced     60s    60s            2           300     0
a/v1/C   rejected   -      -              0           0       1
a/v1/D   behind     -      -              0           0       0

It rejects a/v1/C: bad host
`
	if d := cmp.Diff(want, Plain(Client(c, testNow))); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
	all := []downstream.ClientStatus{{NodeID: "other"}, c}
	for _, name := range []string{"istiod-1.istio-system", "id-1", c.NodeID} {
		if found := MatchClients(all, name); len(found) != 1 || found[0].Connection != "id-1" {
			t.Errorf("%s finds %v", name, found)
		}
	}
	if found := MatchClients(all, "istiod-1"); len(found) > 0 {
		t.Errorf("part of a name finds %v", found)
	}
}

func TestOneUpstreamIsShownWithItsKindsAndRefusals(t *testing.T) {
	u := upstreams.Status{
		Name: "east", Type: "xds", State: upstreams.StateSyncing, Resources: map[string]int{"a/B": 3}, LastError: "connection refused",
		Status: intake.Status{
			Pending: []string{"a/v1/C"}, Expired: map[string]int{"a/D": 1},
			Summary: records.Summary{
				NotOffered: []string{"a/v1/E", "a/v1/F"}, LeftOut: map[string]int{"loop": 2},
				Refused: []records.Refusal{{Resource: "a/B x/y", Reason: "no hosts"}}, RefusedTotal: 4,
			},
		},
	}
	got := Plain(Upstream(u, testNow))
	for _, want := range []string{
		"\nLast error: connection refused\n", "\nTypes without an answer:\n  a/v1/C\n\nTypes that are not offered:\n  a/v1/E\n  a/v1/F\n\n",
		"\nKIND   RESOURCES   EXPIRED   DRIFT\na/B    3           0         0\na/D    0           1         0\n",
		"\nREASON   LEFT OUT\nloop     2\nTo list them: relay explain --left-out --upstream east\n",
		"\nREFUSED   REASON\na/B x/y   no hosts\nand 3 more\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("want %q in\n%s", want, got)
		}
	}
	if got := Plain(Upstream(upstreams.Status{Name: "lab"}, testNow)); !strings.Contains(got, "It has no resources.") {
		t.Error(got)
	}
}
