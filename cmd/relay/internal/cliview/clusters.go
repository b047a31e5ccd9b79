package cliview

import (
	"strings"
	"time"

	"meshrelay/admin/view"
	"meshrelay/upstreams"
	"meshrelay/upstreams/kubernetes/clusters"
)

// Clusters returns found clusters as a table with their upstreams, and the commands for an operator. Ages are
// relative to now.
func Clusters(parts []clusters.Status, ups []upstreams.Status, now time.Time) string {
	if len(parts) == 0 {
		return "The config has no clusters.\n"
	}
	var p page
	if all := view.ClustersOf(parts, ups); len(all) > 0 {
		p.table(tableOf(view.Clusters, all, now))
		p.WriteString("\n")
	}
	for _, part := range parts {
		text, _ := view.Part(part, now)
		p.printf("%s\n", text)
		for _, r := range view.PartRemarks(part, now) {
			p.printf("  %s\n", strings.TrimSpace(r.About+": "+r.Text+" "+r.Command))
		}
	}
	return p.String()
}
