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
	// usualSelections is by how many selections a workload of a namespace is selected, on average, at most; moreSelections is
	// what all of them may exceed that. Without these bounds, the endpoints of all selections would be the product of the
	// ServiceEntries and workloads of a cluster. Each namespace has its own, since others write what is in others.
	usualSelections, moreSelections = 16, 1000
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
	// counts has the number of endpoints that each cluster has, all their sum by namespace. refused are clusters without
	// endpoints, because there would be too many.
	counts, all map[string]int
	refused     map[string]struct{}
	left        int                 // clusters beyond maxAlike
	freed       map[string]struct{} // namespaces in which a cluster has fewer endpoints than at the last Flush
}

// Want notes the clusters that somebody reads: Flush names only those clusters of selectors, and only those have
// endpoints.
func (s *State) Want(clusters map[string]struct{}) {
	before := s.reads
	s.reads = selections{byCluster: map[string]selection{}, alike: map[[2]string][]selection{}, counts: map[string]int{}, all: map[string]int{}, refused: map[string]struct{}{}, freed: map[string]struct{}{}}
	for cluster := range clusters {
		if sel, ok := selectionOf(cluster); ok {
			key := [2]string{sel.namespace, firstLine(sel.labels)}
			s.reads.alike[key] = append(s.reads.alike[key], sel)
		}
	}
	for key, some := range s.reads.alike {
		slices.SortFunc(some, func(a, b selection) int { return strings.Compare(a.cluster, b.cluster) })
		s.reads.left += max(len(some)-maxAlike, 0)
		some = some[:min(len(some), maxAlike)]
		s.reads.alike[key] = some
		for _, sel := range some {
			s.reads.byCluster[sel.cluster] = sel
			s.reads.counts[sel.cluster] = before.counts[sel.cluster]
			s.reads.all[sel.namespace] += before.counts[sel.cluster]
			if _, was := before.refused[sel.cluster]; was {
				s.reads.refused[sel.cluster] = struct{}{}
				s.clusters[sel.cluster] = struct{}{} // there may be room now
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

// room returns how many endpoints a selection may have beside those of all others of its namespace.
func (s *State) room(sel selection) int {
	workloads := 0
	if sp := s.spaces[sel.namespace]; sp != nil {
		workloads = len(sp.objects[Pods]) + len(sp.objects[Workloads])
	}
	return usualSelections*workloads + moreSelections - (s.reads.all[sel.namespace] - s.reads.counts[sel.cluster])
}

// note notes the endpoints of a selection. There are none if it would have more than its room. If it has fewer than before,
// flushFreed has those of its namespace that had no room looked at again.
func (s *State) note(sel selection, endpoints int, fits bool) {
	r := &s.reads
	before := r.counts[sel.cluster]
	if endpoints < before {
		r.freed[sel.namespace] = struct{}{}
	}
	if delete(r.refused, sel.cluster); !fits {
		r.refused[sel.cluster] = struct{}{}
	}
	r.all[sel.namespace] += endpoints - before
	r.counts[sel.cluster] = endpoints
}

// flushFreed notes the selections without room in namespaces where others have fewer endpoints now.
func (s *State) flushFreed() {
	r := &s.reads
	if len(r.freed) > 0 {
		for cluster := range r.refused {
			if _, is := r.freed[r.byCluster[cluster].namespace]; is {
				s.clusters[cluster] = struct{}{}
			}
		}
		clear(r.freed)
	}
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
	if s.reads.left > 0 {
		all = append(all, fmt.Sprintf("%d ports of ServiceEntries have no endpoints: more than %d selectors of their namespace begin with the same label: let fewer do so", s.reads.left, maxAlike))
	}
	if len(s.reads.refused) > 0 {
		all = append(all, fmt.Sprintf("%d ports of ServiceEntries have no endpoints: all of their namespace that select workloads have more than %d a workload on average: let them select less", len(s.reads.refused), usualSelections))
	}
	return all
}
