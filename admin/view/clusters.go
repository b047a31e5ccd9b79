package view

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"time"

	"meshrelay/admin"
	words "meshrelay/internal/text"
	"meshrelay/upstreams"
	"meshrelay/upstreams/kubernetes/clusters"
	"meshrelay/upstreams/kubernetes/clusters/registry"
)

// Cluster is a found cluster with its upstream.
type Cluster struct {
	// Part is the name of the part of the config that has found the cluster.
	Part string
	clusters.ClusterStatus
	// Upstream is nil while the upstream does not run.
	Upstream *upstreams.Status
}

// Clusters are the columns of a table of found clusters.
var Clusters = Columns[Cluster]{
	text("Cluster", func(c Cluster) string { return c.ID }),
	text("Clusters", func(c Cluster) string { return c.Part }),
	level("State", func(c Cluster, _ time.Time) (string, Level) {
		return string(c.State), OKIf(c.State == registry.Found, Warn)
	}),
	age("Since", func(c Cluster) time.Time { return c.Since }),
	text("Upstream", func(c Cluster) string { return c.Name }),
	level("Upstream state", func(c Cluster, now time.Time) (string, Level) {
		if c.Upstream == nil {
			return "", ""
		}
		return UpstreamState(*c.Upstream, now), UpstreamLevel(*c.Upstream)
	}),
	{"Resources", func(c Cluster, _ time.Time) Cell {
		if c.Upstream == nil {
			return Cell{Number: true}
		}
		return Cell{Text: strconv.Itoa(admin.Total(c.Upstream.Resources)), Number: true}
	}},
	text("Found in", func(c Cluster) string { return c.Origin }),
}

// ClustersOf returns the found clusters with their upstreams: held ones first, then orphaned ones, then those
// with a problem.
func ClustersOf(parts []clusters.Status, ups []upstreams.Status) (all []Cluster) {
	byName := make(map[string]*upstreams.Status, len(ups))
	for i := range ups {
		byName[ups[i].Name] = &ups[i]
	}
	for _, part := range parts {
		for _, c := range part.Clusters {
			all = append(all, Cluster{part.Name, c, byName[c.Name]})
		}
	}
	slices.SortStableFunc(all, func(a, b Cluster) int { return cmp.Compare(rank(a), rank(b)) })
	return all
}

func rank(c Cluster) int {
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

// Part describes a part of the config: how many clusters it has found, and when it was read.
func Part(part clusters.Status, now time.Time) (string, Level) {
	text := fmt.Sprintf("%s: %s from %s, ", part.Name, Count(len(part.Clusters), "cluster"), part.From)
	switch {
	case part.Error != "" && part.ReadAt.IsZero():
		return text + "never read: " + OneLine(part.Error), Bad
	case part.Error != "":
		return text + "last read " + Ago(part.ReadAt, now) + " ago, now it fails: " + OneLine(part.Error), Warn
	case part.ReadAt.IsZero():
		return text + "not read yet", Warn
	}
	return text + "read " + Ago(part.ReadAt, now) + " ago", OK
}

// Remark tells something about a cluster, or several, and the command that decides, if there is something to decide.
type Remark struct {
	Level                Level
	About, Text, Command string
}

// PartRemarks tells what is wrong with the clusters of a part of the config. Those that are held together come first.
func PartRemarks(part clusters.Status, now time.Time) (list []Remark) {
	release, held := "relay release cluster/"+words.Word(part.Name), 0
	for _, c := range part.Clusters {
		switch {
		case c.State == registry.Held:
			held++
		case c.State == registry.Orphaned:
			end := "It stays."
			if !c.RemoveAt.IsZero() {
				end = "It is removed in " + Age(max(c.RemoveAt.Sub(now), 0)) + "."
			}
			text := "its kubeconfig is gone, and its resources are still served. " + end + " To remove it now, with its state and history:"
			list = append(list, Remark{Warn, c.ID, text, release + "/" + words.Word(c.ID)})
		case c.Problem != "":
			list = append(list, Remark{Warn, c.ID, "the new kubeconfig is wrong, and the last good one stays in use: " + OneLine(c.Problem), ""})
		}
		if c.Note != "" {
			list = append(list, Remark{None, c.ID, OneLine(c.Note), ""})
		}
	}
	if held > 0 {
		list = slices.Insert(list, 0, Remark{Warn, Count(held, "cluster"), "gone together and held: their resources are still served. If that is intended:", release})
	}
	for _, r := range part.Refused {
		list = append(list, Remark{Warn, cmp.Or(r.ID, "all") + " in " + r.Origin, "not followed: " + OneLine(r.Reason), ""})
	}
	if more := part.RefusedTotal - len(part.Refused); more > 0 {
		list = append(list, Remark{Warn, fmt.Sprintf("%d more", more), "not followed", ""})
	}
	return list
}
