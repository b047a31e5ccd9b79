package cliview

import (
	"strings"
	"time"

	"meshrelay/admin"
	"meshrelay/upstreams"
	"meshrelay/upstreams/kubernetes/clusters"
	"meshrelay/upstreams/kubernetes/clusters/registry"
)

// Clusters returns the clusters that were found as a table with their upstreams, and what is wrong
// with them. now is for ages.
func Clusters(parts []clusters.Status, ups []upstreams.Status, now time.Time) string {
	if len(parts) == 0 {
		return "The config has no clusters.\n"
	}
	byName := map[string]upstreams.Status{}
	for _, u := range ups {
		byName[u.Name] = u
	}
	var p page
	t := titled("CLUSTERS", "CLUSTER", "STATE", "UPSTREAM", "UPSTREAM STATE", "RESOURCES", "FOUND IN")
	for _, part := range parts {
		for _, c := range part.Clusters {
			state := string(c.State) + " " + Ago(c.Since, now)
			u, follows := byName[c.Name]
			if !follows {
				t.add(part.Name, c.ID, state, c.Name, "", "", c.Origin)
				continue
			}
			t.add(part.Name, c.ID, state, c.Name, string(u.State)+" "+Ago(u.Since, now), admin.Total(u.Resources), c.Origin)
		}
	}
	if len(t.rows) > 1 {
		p.table(t)
		p.WriteString("\n")
	}
	for _, part := range parts {
		clustersPart(&p, part, now)
	}
	return p.String()
}

// clustersPart tells how a part of the config fares.
func clustersPart(p *page, part clusters.Status, now time.Time) {
	p.printf("%s: %s from %s", Clean(part.Name), Count(len(part.Clusters), "cluster"), Clean(part.From))
	switch {
	case part.Error != "" && part.ReadAt.IsZero():
		p.printf(", never read: %s\n", oneLine(part.Error))
	case part.Error != "":
		p.printf(", last read %s ago, and not now: %s\n", Ago(part.ReadAt, now), oneLine(part.Error))
	case part.ReadAt.IsZero():
		p.printf(", not read yet\n")
	default:
		p.printf(", read %s ago\n", Ago(part.ReadAt, now))
	}
	held := 0
	for _, c := range part.Clusters {
		id := Clean(c.ID)
		switch {
		case c.State == registry.Held:
			held++
		case c.State == registry.Orphaned:
			end := "It stays."
			if !c.RemoveAt.IsZero() {
				end = "It is removed in " + Age(max(c.RemoveAt.Sub(now), 0)) + "."
			}
			p.printf("  %s: its kubeconfig is gone, what it gave is served. %s To remove it now: relay clusters remove %s %s\n", id, end, Clean(part.Name), id)
		case c.Problem != "":
			p.printf("  %s: the new kubeconfig is not used, the last good one is: %s\n", id, oneLine(c.Problem))
		}
		if c.Note != "" {
			p.printf("  %s: %s\n", id, oneLine(c.Note))
		}
	}
	if held > 0 {
		p.printf("  %s %s gone together and held: what they gave is served. If that is meant: relay clusters release %s\n", Count(held, "cluster"), Agree(held, "is", "are"), Clean(part.Name))
	}
	for _, r := range part.Refused {
		id := Clean(r.ID)
		if id == "" {
			id = "all"
		}
		p.printf("  %s in %s is not followed: %s\n", id, Clean(r.Origin), oneLine(r.Reason))
	}
	if more := part.RefusedTotal - len(part.Refused); more > 0 {
		p.printf("  and %d more\n", more)
	}
}

func oneLine(text string) string { return Clean(strings.Join(strings.Fields(text), " ")) }
