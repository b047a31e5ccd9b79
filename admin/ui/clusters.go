package ui

import (
	"fmt"

	"meshrelay/admin/view"
	"meshrelay/upstreams/kubernetes/clusters"
	"meshrelay/upstreams/kubernetes/clusters/registry"
)

// clusterSections shows the found clusters. It is empty if the config has no "clusters".
func (p *Pages) clusterSections(r *request) []Section {
	parts := p.data.Clusters()
	if len(parts) == 0 {
		return nil
	}
	all := Section{ID: "clusters", Title: "Found clusters", Table: p.clusterTable(parts, r)}
	decide := Section{ID: "decide", Title: "What you can do about clusters"}
	for i, part := range parts {
		if i == maxReasons {
			all.Text = append(all.Text, say(None, fmt.Sprintf("and %s more: %s", view.Count(len(parts)-i, "part"), p.here("relay clusters"))))
			break
		}
		text, level := view.Part(part, r.now)
		all.Text = append(all.Text, say(level, text))
		all.Text = append(all.Text, p.notFollowed(part)...)
		decide.Actions = append(decide.Actions, clusterActions(part)...)
	}
	if len(decide.Actions) == 0 {
		return []Section{all}
	}
	if more := len(decide.Actions) - maxReasons; more > 0 {
		decide.Actions = decide.Actions[:maxReasons]
		decide.Text = []State{say(None, fmt.Sprintf("and %d more: %s", more, p.here("relay clusters")))}
	}
	return []Section{all, decide}
}

// notFollowed lists found clusters that are not followed.
func (p *Pages) notFollowed(part clusters.Status) (list []State) {
	for _, one := range part.Refused[:min(len(part.Refused), maxReasons)] {
		list = append(list, say(Warn, view.NotFollowed(one)))
	}
	if more := max(part.RefusedTotal, len(part.Refused)) - len(list); more > 0 {
		list = append(list, say(None, fmt.Sprintf("and %d more that are not followed: %s", more, p.here("relay clusters"))))
	}
	return list
}

// clusterTable lists found clusters.
func (p *Pages) clusterTable(parts []clusters.Status, r *request) *Table {
	all := view.ClustersOf(parts, r.ups)
	t := tableOf("Found clusters, those with problems first", "No cluster is found.", view.Clusters, all, maxSummary, r.now, func(c view.Cluster) string {
		if c.Upstream == nil {
			return ""
		}
		return upstreamHref(c.Name)
	})
	t.Summary = view.Count(len(all), "cluster")
	if more := len(all) - len(t.Rows); more > 0 {
		t.Summary += fmt.Sprintf("; %d are shown, all of them: %s", len(t.Rows), p.here("relay clusters"))
	}
	return t
}

// clusterActions returns the actions for the clusters of a part.
func clusterActions(part clusters.Status) (list []Action) {
	held := 0
	for _, c := range part.Clusters {
		switch c.State {
		case registry.Held:
			held++
		case registry.Orphaned:
			command := "relay release cluster/" + word(part.Name) + "/" + word(c.ID)
			list = append(list, Action{
				Title: "Remove " + cut(c.ID), Command: command,
				Why: "Its kubeconfig is gone, and its resources are still served. This removes them, with its state and history.",
			})
		}
	}
	if held == 0 {
		return list
	}
	release := Action{
		Title: fmt.Sprintf("Release %s of %s", view.Count(held, "held cluster"), part.Name), Command: "relay release cluster/" + word(part.Name),
		Why: "Their kubeconfigs are gone together, and their resources are still served. If this is intended, release them: they become orphaned, and are removed after removeAfter.",
	}
	return append([]Action{release}, list...)
}
