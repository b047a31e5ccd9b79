package cliview

import (
	"time"

	"meshrelay/admin/view"
	"meshrelay/upstreams"
	"meshrelay/upstreams/kubernetes/clusters"
	"meshrelay/upstreams/kubernetes/clusters/registry"
)

var clusterColumns = view.Clusters.Pick("Cluster", "Clusters", "State", "Since", "Upstream", "Upstream state", "Resources", "Found in")

// Clusters returns found clusters as a table with their upstreams, and the commands for an operator. Ages are
// relative to now.
func Clusters(parts []clusters.Status, ups []upstreams.Status, now time.Time) string {
	if len(parts) == 0 {
		return "The config has no clusters.\n"
	}
	var p page
	if all := view.ClustersOf(parts, ups); len(all) > 0 {
		p.table(tableOf(clusterColumns, all, now))
		p.WriteString("\n")
	}
	for _, part := range parts {
		clustersPart(&p, part, now)
	}
	return p.String()
}

// clustersPart describes one part of the config.
func clustersPart(p *page, part clusters.Status, now time.Time) {
	text, _ := view.Part(part, now)
	p.printf("%s\n", text)
	held := 0
	for _, c := range part.Clusters {
		switch {
		case c.State == registry.Held:
			held++
		case c.State == registry.Orphaned:
			end := "It stays."
			if !c.RemoveAt.IsZero() {
				end = "It is removed in " + view.Age(max(c.RemoveAt.Sub(now), 0)) + "."
			}
			p.printf("  %s: its kubeconfig is gone, and its resources are still served. %s To remove it now: relay release cluster/%s/%[1]s\n", c.ID, end, part.Name)
		case c.Problem != "":
			p.printf("  %s: the new kubeconfig is wrong, and the last good one stays in use: %s\n", c.ID, view.OneLine(c.Problem))
		}
		if c.Note != "" {
			p.printf("  %s: %s\n", c.ID, view.OneLine(c.Note))
		}
	}
	if held > 0 {
		p.printf("  %s %s gone together and held: their resources are still served. If that is intended: relay release cluster/%s\n",
			view.Count(held, "cluster"), view.Agree(held, "is", "are"), part.Name)
	}
	for _, r := range part.Refused {
		p.printf("  %s\n", view.NotFollowed(r))
	}
	if more := part.RefusedTotal - len(part.Refused); more > 0 {
		p.printf("  and %d more\n", more)
	}
}
