package registry

import (
	"bytes"
	"cmp"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
)

// listed takes all entries.
func (r *Registry) listed(entries []Entry) {
	if r.failure != "" {
		r.note(slog.LevelInfo, "clusters can be read again")
	}
	r.read, r.failure = true, ""
	known := len(r.clusters)
	former := r.refused
	r.refused, r.unfollowed = nil, 0
	groups := map[string][]Entry{}
	for _, e := range entries {
		switch {
		case slices.Contains(r.policy.Ignore, e.ID):
		case e.ID == "": // the clusters of the origin are unknown
			r.refuse(e, e.Problem)
			for _, c := range r.clusters {
				if c.Origin == e.Origin {
					groups[c.ID] = append(groups[c.ID], Entry{ID: c.ID, Origin: c.Origin, Problem: e.Problem, Priority: c.Priority})
				}
			}
		default:
			groups[e.ID] = append(groups[e.ID], e)
		}
	}
	var gone []*Cluster
	for _, id := range r.order() {
		if len(groups[id]) == 0 {
			gone = append(gone, r.clusters[id])
		}
	}
	for _, id := range slices.Sorted(maps.Keys(groups)) {
		all := groups[id]
		slices.SortStableFunc(all, func(a, b Entry) int { return strings.Compare(a.Origin, b.Origin) })
		one := r.choose(id, all)
		for i, e := range all {
			if i != one {
				r.refuse(e, "cluster "+id+" is that of "+all[one].Origin+" already")
			}
		}
		if c := r.clusters[id]; c != nil {
			r.again(c, all[one])
		} else {
			r.add(all[one])
		}
	}
	r.judge(gone, known)
	r.tell(former)
}

// choose returns the index of the entry to use of several for one cluster: that of the present origin, else
// the first without a problem.
func (r *Registry) choose(id string, all []Entry) int {
	if c := r.clusters[id]; c != nil {
		if i := slices.IndexFunc(all, func(e Entry) bool { return e.Origin == c.Origin }); i >= 0 {
			return i
		}
	}
	return max(0, slices.IndexFunc(all, func(e Entry) bool { return e.Problem == "" }))
}

func (r *Registry) refuse(e Entry, why string) {
	if r.unfollowed++; r.unfollowed <= maxRefused {
		r.refused = append(r.refused, Refused{e.ID, e.Origin, why})
	}
}

// tell logs newly refused entries.
func (r *Registry) tell(former []Refused) {
	r.out.Changed = r.out.Changed || !slices.Equal(former, r.refused)
	for _, one := range r.refused {
		if !slices.Contains(former, one) {
			r.note(slog.LevelWarn, "cluster not followed", "cluster", one.ID, "origin", one.Origin, "reason", one.Reason)
		}
	}
}

// again updates a followed cluster from its entry.
func (r *Registry) again(c *Cluster, e Entry) {
	before := *c
	if c.State != Found {
		r.note(slog.LevelInfo, "cluster is found again", "cluster", c.ID, "origin", e.Origin)
		c.State, c.Since, c.Released = Found, r.now, false
	}
	c.Origin, c.Priority, c.Note = e.Origin, e.Priority, e.Note
	switch c.Problem = e.Problem; {
	case c.Problem != "" && c.Problem != before.Problem:
		r.note(slog.LevelWarn, "new kubeconfig not used, the last good one stays", "cluster", c.ID, "origin", e.Origin, "reason", c.Problem)
	case c.Problem == "" && !bytes.Equal(c.Kubeconfig, e.Kubeconfig):
		if len(c.Kubeconfig) > 0 {
			c.Rotations++
			r.note(slog.LevelInfo, "cluster has another kubeconfig", "cluster", c.ID, "origin", e.Origin)
		}
		c.Kubeconfig = e.Kubeconfig
		r.out.Changed = true
	}
	r.out.Changed = r.out.Changed || c.Problem != before.Problem || c.Origin != before.Origin || c.Note != before.Note || c.State != before.State
}

// add follows the cluster of a new entry, or refuses the entry.
func (r *Registry) add(e Entry) {
	name := NameOf(e.ID)
	for _, c := range r.clusters {
		if c.Name == name {
			r.refuse(e, fmt.Sprintf("its upstream would be %q, which is that of cluster %s", name, c.ID))
			return
		}
	}
	taken := cmp.Or(r.taken(e.ID, name), r.elsewhere(e.ID, name))
	switch {
	case !idShape.MatchString(e.ID), name == "":
		r.refuse(e, "it has no ID that can be used: 1 to 253 letters, digits, dots, dashes and underscores, with a letter or a digit")
	case e.Problem != "":
		r.refuse(e, e.Problem)
	case taken != "":
		r.refuse(e, taken)
	case len(r.clusters) >= r.policy.Max:
		r.refuse(e, fmt.Sprintf("there are more than %d clusters", r.policy.Max))
	default:
		r.clusters[e.ID] = &Cluster{
			ID: e.ID, Name: name, Origin: e.Origin, State: Found, Since: r.now, Priority: e.Priority, Note: e.Note, Kubeconfig: e.Kubeconfig,
		}
		r.note(slog.LevelInfo, "cluster found", "cluster", e.ID, "origin", e.Origin)
	}
}

// maxName bounds the name of an upstream, in bytes.
const maxName = 63

// NameOf returns the name of the upstream of a cluster: its ID in lower case, with dashes instead of
// characters that a name can not have. It is empty for an ID without letters and digits.
func NameOf(id string) string {
	name := strings.Map(func(c rune) rune {
		switch {
		case c >= 'a' && c <= 'z', c >= '0' && c <= '9':
			return c
		case c >= 'A' && c <= 'Z':
			return c - 'A' + 'a'
		}
		return '-'
	}, id)
	name = strings.Trim(name, "-")
	return strings.TrimRight(name[:min(len(name), maxName)], "-")
}
