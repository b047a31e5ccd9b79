package statusview

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"meshrelay/admin"
	"meshrelay/downstream"
	"meshrelay/upstreams"
)

var now = time.Date(2024, 2, 3, 4, 5, 6, 0, time.UTC)

func TestTables(t *testing.T) {
	ups := []upstreams.Status{
		{
			Name: "east", Type: "xds", Protocol: "delta", State: upstreams.StateSynced, Since: now.Add(-time.Hour), Synced: true, Address: "east:15010",
			LastUpdate: now.Add(-5 * time.Second), Resources: map[string]int{"a/B": 2, "a/C": 3}, Dropped: map[string]int{"generated": 4},
		},
		{Name: "west", Type: "file", State: upstreams.StateFailed, RefusedTotal: 1},
	}
	synced := downstream.TypeStatus{SentNonce: "1", Synced: true, NACKs: 2}
	client := func(id string, types ...downstream.TypeStatus) downstream.ClientStatus {
		return downstream.ClientStatus{NodeID: id, Protocol: "sotw", Address: "10.0.0.1:5", Connected: now.Add(-time.Minute), Types: types}
	}
	held := client("held")
	held.Held = true
	full := client("istiod", synced, synced)
	full.ClusterID, full.View, full.IstioVersion = "c1", "east", "1.23.0"
	clients := []downstream.ClientStatus{
		full, client("behi\nd", synced, downstream.TypeStatus{SentNonce: "1"}), client("bad", synced, downstream.TypeStatus{LastNACK: "no"}), held,
	}
	var out strings.Builder
	if err := Print(&out, admin.Readiness{Ready: true, Reasons: []string{"upstream west:\n\x1bfailed"}}, ups, clients, now); err != nil {
		t.Fatal(err)
	}
	want := `ready, degraded
- upstream west: ?failed

UPSTREAM   TYPE        STATE        SYNCED   RESOURCES   REFUSED   DROPPED   UPDATED   ADDRESS
east       xds/delta   synced 60m   yes      5           0         4         5s        east:15010
west       file        failed -     no       0           1         0         -         -

CLIENT   CLUSTER   VIEW   VERSION   PROTOCOL   TYPES   STATE                   NACKS   CONNECTED   ADDRESS
istiod   c1        east   1.23.0    sotw       2       synced                  4       60s         10.0.0.1:5
behi?d   -         -      -         sotw       2       1 types behind          2       60s         10.0.0.1:5
bad      -         -      -         sotw       2       1 types rejected        2       60s         10.0.0.1:5
held     -         -      -         sotw       0       waiting for upstreams   0       60s         10.0.0.1:5
`
	if d := cmp.Diff(want, out.String()); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
	out.Reset()
	if err := Print(&out, admin.Readiness{}, nil, nil, now); err != nil || !strings.HasPrefix(out.String(), "not ready\n") || !strings.Contains(out.String(), "No clients are connected.") {
		t.Errorf("%v %s", err, out.String())
	}
}
