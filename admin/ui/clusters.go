package ui

import (
	"fmt"

	"meshrelay/admin/view"
)

// clusterSections shows the found clusters. It is empty if the config has no "clusters".
func (p *Pages) clusterSections(r *request) []Section {
	parts := p.data.Clusters()
	if len(parts) == 0 {
		return nil
	}
	found := Section{ID: "clusters", Title: "Found clusters"}
	decide := Section{ID: "decide", Title: "What you can do about clusters"}
	var remarks []State
	for _, part := range parts {
		text, level := view.Part(part, r.now)
		found.Text = append(found.Text, say(level, text))
		for _, one := range view.PartRemarks(part, r.now) {
			if one.Command != "" {
				decide.Actions = append(decide.Actions, Action{cut(one.About), cut(one.Text), cut(one.Command)})
			} else {
				remarks = append(remarks, say(one.Level, one.About+": "+one.Text))
			}
		}
	}
	found.Text = append(found.Text, remarks...)
	more := func(n int) State { return say(view.None, fmt.Sprintf("and %d more: %s", n, p.here("relay clusters"))) }
	if n := len(found.Text) - maxSummary; n > 0 {
		found.Text = append(found.Text[:maxSummary], more(n))
	}
	all := view.ClustersOf(parts, r.ups)
	found.Table = tableOf("Found clusters, those with problems first", "No cluster is found.", view.Clusters, all, maxSummary, r.now, func(c view.Cluster) string {
		if c.Upstream == nil {
			return ""
		}
		return upstreamHref(c.Name)
	})
	found.Table.Summary = fmt.Sprintf("%d of %s", len(found.Table.Rows), view.Count(len(all), "cluster"))
	if len(decide.Actions) == 0 {
		return []Section{found}
	}
	if n := len(decide.Actions) - maxReasons; n > 0 {
		decide.Actions, decide.Text = decide.Actions[:maxReasons], []State{more(n)}
	}
	return []Section{found, decide}
}
