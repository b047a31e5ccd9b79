package cliview

import (
	"strings"
	"testing"
	"time"

	"meshrelay/admin/view"
	"meshrelay/upstreams"
	"meshrelay/upstreams/kubernetes/clusters"
	"meshrelay/upstreams/kubernetes/clusters/registry"
)

func TestClustersAreShownWithTheirUpstreamsAndWhatToDo(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	of := func(id string, state registry.State, more func(*clusters.ClusterStatus)) clusters.ClusterStatus {
		c := clusters.ClusterStatus{Cluster: registry.Cluster{ID: id, Name: strings.ToLower(id), Origin: "secret istio-system/" + id, State: state, Since: now.Add(-time.Hour)}}
		if more != nil {
			more(&c)
		}
		return c
	}
	parts := []clusters.Status{
		{Name: "fleet", From: "secrets in istio-system", ReadAt: now.Add(-5 * time.Second), Clusters: []clusters.ClusterStatus{
			of("East", registry.Found, func(c *clusters.ClusterStatus) {
				c.Problem, c.Note = "it is not\na kubeconfig", "its control plane is not healthy: \x1b[31m"
			}),
			of("north", registry.Orphaned, func(c *clusters.ClusterStatus) { c.RemoveAt = now.Add(2 * time.Hour) }),
			of("south", registry.Orphaned, nil),
			of("west", registry.Held, nil), of("far-west", registry.Held, nil),
		}, Refused: []registry.Refused{{ID: "bad", Origin: "secret istio-system/x", Reason: "the kubeconfig is empty"}, {Origin: "secret istio-system/y", Reason: "rotten"}}},
		{Name: "new", From: "/etc/clusters", Clusters: []clusters.ClusterStatus{}},
		{Name: "down", From: "secrets in fleet", ReadAt: now.Add(-time.Minute), Error: "connection refused"},
	}
	ups := []upstreams.Status{{Name: "east", State: upstreams.StateSynced, Since: now.Add(-3 * time.Minute), Resources: map[string]int{"a/B": 7}}}
	want := `CLUSTER    CLUSTERS   STATE      SINCE   UPSTREAM   UPSTREAM STATE   RESOURCES   FOUND IN
west       fleet      held       60m     west       -                -           secret istio-system/west
far-west   fleet      held       60m     far-west   -                -           secret istio-system/far-west
north      fleet      orphaned   60m     north      -                -           secret istio-system/north
south      fleet      orphaned   60m     south      -                -           secret istio-system/south
East       fleet      found      60m     east       in sync for 3m   7           secret istio-system/East

fleet: 5 clusters from secrets in istio-system, read 5s ago
  2 clusters: gone together and held: their resources are still served. If that is intended: relay release cluster/fleet
  East: the new kubeconfig is wrong, and the last good one stays in use: it is not a kubeconfig
  East: its control plane is not healthy: ?[31m
  north: its kubeconfig is gone, and its resources are still served. It is removed in 120m. To remove it now, with its state and history: relay release cluster/fleet/north
  south: its kubeconfig is gone, and its resources are still served. It stays. To remove it now, with its state and history: relay release cluster/fleet/south
  bad in secret istio-system/x: not followed: the kubeconfig is empty
  all in secret istio-system/y: not followed: rotten
new: 0 clusters from /etc/clusters, not read yet
down: 0 clusters from secrets in fleet, last read 60s ago, now it fails: connection refused
`
	squeeze := func(text string) string {
		var lines []string
		for line := range strings.Lines(text) {
			lines = append(lines, strings.Join(strings.Fields(line), " "))
		}
		return strings.Join(lines, "\n")
	}
	if got := Plain(Clusters(parts, ups, now)); squeeze(got) != squeeze(want) {
		t.Errorf("%s\nwant\n%s", got, want)
	}
	if got := Plain(Clusters(nil, nil, now)); got != "The config has no clusters.\n" {
		t.Error(got)
	}
	orphan := upstreams.Status{Name: "north", ClusterID: "North", Type: "kubernetes", State: upstreams.StateSynced, Found: &upstreams.FoundStatus{Clusters: "fleet", Origin: "secret a/b", State: "orphaned"}}
	text := Plain(Upstream(orphan, now))
	if !strings.Contains(text, ", cluster orphaned") || !strings.Contains(text, "Cluster North, found by clusters fleet in secret a/b.") || view.IsHealthy(orphan) {
		t.Error(text)
	}
}
