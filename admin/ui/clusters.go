package ui

import (
	"fmt"
	"slices"
	"strings"

	"meshrelay/internal/cliview"
	"meshrelay/upstreams"
	"meshrelay/upstreams/kubernetes/clusters"
	"meshrelay/upstreams/kubernetes/clusters/registry"
)

// clusterSections shows the found clusters, and is empty where the config has no "clusters".
func (p *Pages) clusterSections(r *request) []Section {
	parts := p.data.Clusters()
	if len(parts) == 0 {
		return nil
	}
	all := Section{ID: "clusters", Title: "Found clusters", Table: p.clusterTable(parts, r)}
	decide := Section{ID: "decide", Title: "What you can do about clusters"}
	for i, part := range parts {
		if i == maxReasons {
			all.Text = append(all.Text, say(None, fmt.Sprintf("and %s more: %s", count(len(parts)-i, "part"), p.here("relay clusters"))))
			break
		}
		all.Text = append(all.Text, partState(part, r))
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

// partState returns the state of one element of "clusters".
func partState(part clusters.Status, r *request) State {
	text := fmt.Sprintf("%s: %s from %s, ", part.Name, count(len(part.Clusters), "cluster"), part.From)
	switch {
	case part.Error != "" && part.ReadAt.IsZero():
		return say(Bad, text+"never read: "+part.Error)
	case part.Error != "":
		return say(Warn, text+"last read "+cliview.Ago(part.ReadAt, r.now)+" ago, and not now: "+part.Error)
	case part.ReadAt.IsZero():
		return say(Warn, text+"not read yet")
	}
	return say(OK, text+"read "+cliview.Ago(part.ReadAt, r.now)+" ago")
}

// notFollowed lists what was found and is not followed.
func (p *Pages) notFollowed(part clusters.Status) (list []State) {
	for _, one := range part.Refused[:min(len(part.Refused), maxReasons)] {
		list = append(list, say(Warn, strings.TrimSpace(one.ID+" in "+one.Origin)+" is not followed: "+one.Reason))
	}
	if more := max(part.RefusedTotal, len(part.Refused)) - len(list); more > 0 {
		list = append(list, say(None, fmt.Sprintf("and %d more that are not followed: %s", more, p.here("relay clusters"))))
	}
	return list
}

// found is a cluster with the part of the config that has found it.
type found struct {
	part string
	clusters.ClusterStatus
}

// clusterTable lists the clusters, those that need a look first.
func (p *Pages) clusterTable(parts []clusters.Status, r *request) *Table {
	t := &Table{
		Caption: "Found clusters, those that need a look first", Empty: "No cluster is found.",
		Head: []string{"Cluster", "Clusters", "State", "Since", "Upstream", "Its state", "Removed at", "Found in", "Remark"},
	}
	var all []found
	for _, part := range parts {
		for _, c := range part.Clusters {
			all = append(all, found{part.Name, c})
		}
	}
	slices.SortStableFunc(all, func(a, b found) int { return clusterRank(a.ClusterStatus) - clusterRank(b.ClusterStatus) })
	ups := make(map[string]upstreams.Status, len(r.upstreams()))
	for _, u := range r.upstreams() {
		ups[u.Name] = u
	}
	for _, c := range all[:min(len(all), maxSummary)] {
		name, state := cell(c.Name), Cell{}
		if u, runs := ups[c.Name]; runs {
			name, state = linked(c.Name, "/upstreams/"+pathOf(c.Name)), leveled(upstreamLevel(u), cliview.UpstreamState(u, r.now))
		}
		remark := c.Note
		if c.Problem != "" {
			remark = "The new kubeconfig is not used, the last good one is: " + c.Problem
		}
		t.Rows = append(t.Rows, []Cell{
			cell(c.ID), cell(c.part), leveled(goodIf(c.State == registry.Found, Warn), string(c.State)), at(c.Since), name, state, {Until: c.RemoveAt}, cell(c.Origin), cell(remark),
		})
	}
	t.Summary = count(len(all), "cluster")
	if more := len(all) - len(t.Rows); more > 0 {
		t.Summary += fmt.Sprintf("; %d are shown, all of them: %s", len(t.Rows), p.here("relay clusters"))
	}
	return t
}

// clusterRank orders clusters by how much they need a look.
func clusterRank(c clusters.ClusterStatus) int {
	switch {
	case c.State == registry.Held:
		return 0
	case c.State == registry.Orphaned:
		return 1
	case c.Problem != "":
		return 2
	}
	return 3
}

// clusterActions are what a person can do about the clusters of a part.
func clusterActions(part clusters.Status) (list []Action) {
	held := 0
	for _, c := range part.Clusters {
		switch c.State {
		case registry.Held:
			held++
		case registry.Orphaned:
			command := "relay clusters remove " + word(part.Name) + " " + word(c.ID)
			list = append(list, Action{
				Title: "Remove " + cut(c.ID), Command: command,
				Why: "Its kubeconfig is gone, and what it gave is served. It goes with its resources, state and history.",
			})
		}
	}
	if held == 0 {
		return list
	}
	release := Action{
		Title: fmt.Sprintf("Release %s of %s", count(held, "held cluster"), part.Name), Command: "relay clusters release " + word(part.Name),
		Why: "Their kubeconfigs are gone together, and what they gave is served. If that is meant, they are orphaned from then on, and removed after removeAfter.",
	}
	return append([]Action{release}, list...)
}
