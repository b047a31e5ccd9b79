package ui

import (
	"strings"
	"testing"
	"time"

	"meshrelay/upstreams/kubernetes/clusters"
	"meshrelay/upstreams/kubernetes/clusters/registry"
)

func TestFoundClustersAreOnThePageOfUpstreams_WithTheCommandForThoseThatAreGone(t *testing.T) {
	f := newFixture(t, 10)
	if _, body, _ := f.get(t, "/upstreams"); strings.Contains(body, "Found clusters") {
		t.Error("a relay that looks for no clusters has some")
	}
	one := func(id string, state registry.State) clusters.ClusterStatus {
		return clusters.ClusterStatus{Cluster: registry.Cluster{ID: id, Name: id, Origin: "secret istio-system/" + id, State: state, Since: testNow.Add(-time.Minute)}}
	}
	orphan := one("south", registry.Orphaned)
	orphan.RemoveAt = testNow.Add(time.Hour)
	rotated := one("east", registry.Found)
	rotated.Problem = "it is not a kubeconfig"
	f.clusters = []clusters.Status{
		{Name: "fleet", From: "secrets in istio-system", ReadAt: testNow.Add(-time.Minute), Clusters: []clusters.ClusterStatus{rotated, orphan, one("north", registry.Held), one("west", registry.Held)}, Refused: []registry.Refused{{ID: "bad", Origin: "secret istio-system/bad", Reason: "no kubeconfig"}}, RefusedTotal: 3},
		{Name: "mounted", From: "directory /clusters", Error: "no such directory"},
	}
	_, body, _ := f.get(t, "/upstreams")
	for _, want := range []string{
		"Found clusters", "fleet: 4 clusters from secrets in istio-system, read 60s ago", "mounted: 0 clusters from directory /clusters, never read: no such directory",
		"bad in secret istio-system/bad: not followed: no kubeconfig", "2 more: not followed",
		"<code>relay release cluster/fleet</code>", "<code>relay release cluster/fleet/south</code>", "2 clusters</h3><p>gone together and held",
		`href="/ui/upstreams/west"`, "the new kubeconfig is wrong, and the last good one stays in use: it is not a kubeconfig", "4 clusters",
	} {
		if !strings.Contains(body, want) {
			t.Errorf("no %q in\n%s", want, body)
		}
	}
	_, table, _ := strings.Cut(body, "those with problems first")
	last := -1
	for _, id := range []string{"north", "west", "south", "east"} {
		at := strings.Index(table, `<td>`+id+`</td>`)
		if at < last || at < 0 {
			t.Errorf("%s is not in its place: held, orphaned, those with a problem, others", id)
		}
		last = at
	}
}
