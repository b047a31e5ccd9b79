package services

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	endpoints "meshrelay/federation/services"
)

const (
	// maxAlike bounds the selections of a namespace whose selectors begin with the same label, in alphabetical order.
	maxAlike = 1000
	// usualSelections is by how many selections a workload is selected, on average, at most; moreSelections is what all
	// workloads may exceed that. Without these bounds, the endpoints of all selections would be the product of the
	// ServiceEntries and workloads of a cluster.
	usualSelections, moreSelections = 16, 10_000
)

// selection is a cluster of a selector.
type selection struct {
	cluster, namespace, labels, port string // labels are as EncodeLabels returns them
	target                           uint32
}

func selectionOf(cluster string) (sel selection, ok bool) {
	parts := strings.Split(cluster, "|")
	if len(parts) != 5 || !strings.HasPrefix(cluster, endpoints.SelectedPrefix) {
		return sel, false
	}
	target, err := strconv.ParseUint(parts[4], 10, 16)
	lines := strings.ReplaceAll(parts[2], ",", "\n")
	if lines != "" {
		lines += "\n"
	}
	return selection{cluster, parts[1], lines, parts[3], uint32(target)}, err == nil
}

// selections are the clusters of selectors that somebody reads.
type selections struct {
	byCluster map[string]selection
	// alike has them by namespace, and by the first label of the selector, which may be empty.
	alike map[[2]string][]selection
	// workloads is the number of all workloads. counts has the number of endpoints that each cluster has, all their sum.
	// refused are clusters without endpoints, because there would be too many.
	workloads int
	counts    map[string]int
	all       int
	refused   map[string]struct{}
}

// Want notes the clusters that somebody reads: Flush names only those clusters of selectors, and only those have
// endpoints.
func (s *State) Want(clusters map[string]struct{}) {
	before := s.reads
	s.reads = selections{byCluster: map[string]selection{}, alike: map[[2]string][]selection{}, workloads: before.workloads, counts: map[string]int{}, refused: map[string]struct{}{}}
	for cluster := range clusters {
		if sel, ok := selectionOf(cluster); ok {
			key := [2]string{sel.namespace, firstLine(sel.labels)}
			s.reads.alike[key] = append(s.reads.alike[key], sel)
		}
	}
	for key, some := range s.reads.alike {
		slices.SortFunc(some, func(a, b selection) int { return strings.Compare(a.cluster, b.cluster) })
		some = some[:min(len(some), maxAlike)]
		s.reads.alike[key] = some
		for _, sel := range some {
			s.reads.byCluster[sel.cluster] = sel
			s.reads.counts[sel.cluster] = before.counts[sel.cluster]
			s.reads.all += before.counts[sel.cluster]
			if _, was := before.refused[sel.cluster]; was {
				s.reads.refused[sel.cluster] = struct{}{}
			}
		}
	}
}

func firstLine(lines string) string {
	first, _, _ := strings.Cut(lines, "\n")
	return first
}

func (r *selections) of(cluster string) (sel selection, ok bool) {
	sel, ok = r.byCluster[cluster]
	return sel, ok
}

// each calls f with each cluster that selects a workload of a namespace.
func (r *selections) each(namespace string, w *workload, f func(cluster string)) {
	some := func(first string) {
		for _, sel := range r.alike[[2]string{namespace, first}] {
			if w.has(sel.labels) {
				f(sel.cluster)
			}
		}
	}
	if len(r.alike) == 0 {
		return
	}
	some("")
	for line := range strings.Lines(w.labels.String()) {
		some(strings.TrimSuffix(line, "\n"))
	}
}

// room returns how many endpoints a cluster may have beside those of all others.
func (r *selections) room(cluster string) int {
	return usualSelections*r.workloads + moreSelections - (r.all - r.counts[cluster])
}

// note notes the endpoints of a cluster. There are none if the cluster would have more than its room.
func (r *selections) note(cluster string, endpoints int, fits bool) {
	if delete(r.refused, cluster); !fits {
		r.refused[cluster] = struct{}{}
	}
	r.all += endpoints - r.counts[cluster]
	r.counts[cluster] = endpoints
}

// Problems returns what is served without endpoints because there would be too many, at most two lines.
func (s *State) Problems() (all []string) {
	crowded := 0
	for namespace, sp := range s.spaces {
		for name, v := range sp.objects[Services] {
			if sp.crowded(Name{namespace, name}, v.(*service)) {
				crowded++
			}
		}
	}
	if crowded > 0 {
		all = append(all, fmt.Sprintf("%d Services have no endpoints: they have more than %d ports, or their ports times the addresses, ports of EndpointSlices and WorkloadEntries for them are more than %d: split them", crowded, maxPorts, maxServed))
	}
	if len(s.reads.refused) > 0 {
		all = append(all, fmt.Sprintf("%d ports of ServiceEntries have no endpoints: all that select workloads have more than %d a workload on average: let them select less", len(s.reads.refused), usualSelections))
	}
	return all
}
