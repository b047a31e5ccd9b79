package services

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	endpoints "meshrelay/federation/services"
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
	// alike has them by namespace, and by the first label of the selector, which may be empty. Those beyond maxAlike of a
	// kind, in alphabetical order, are left out.
	alike   map[[2]string][]selection
	first   map[string]map[string]struct{} // the first labels of the selectors, by namespace
	leftOut int
}

// Want notes the clusters that somebody reads: Flush names only those clusters of selectors, and only those have
// endpoints.
func (s *State) Want(clusters map[string]struct{}) {
	r := selections{byCluster: map[string]selection{}, alike: map[[2]string][]selection{}, first: map[string]map[string]struct{}{}}
	for cluster := range clusters {
		if sel, ok := selectionOf(cluster); ok {
			key := [2]string{sel.namespace, firstOf(sel.labels)}
			r.alike[key] = append(r.alike[key], sel)
		}
	}
	for key, some := range r.alike {
		slices.SortFunc(some, func(a, b selection) int { return strings.Compare(a.cluster, b.cluster) })
		r.leftOut += max(len(some)-maxAlike, 0)
		r.alike[key] = some[:min(len(some), maxAlike)]
		for _, sel := range r.alike[key] {
			r.byCluster[sel.cluster] = sel
		}
		if r.first[key[0]] == nil {
			r.first[key[0]] = map[string]struct{}{}
		}
		r.first[key[0]][key[1]] = struct{}{}
	}
	s.reads = r
	s.quota.retain(clusters)
	for namespace, sp := range s.spaces {
		sp.index.keep(r.first[namespace], sp.objects[Pods])
	}
}

// each calls f with each cluster that selects a workload of a namespace.
func (r *selections) each(namespace string, w *workload, f func(cluster string)) {
	if len(r.first[namespace]) == 0 {
		return
	}
	some := func(first string) {
		for _, sel := range r.alike[[2]string{namespace, first}] {
			if w.has(sel.labels) {
				f(sel.cluster)
			}
		}
	}
	some("")
	for label := range w.lines() {
		some(label)
	}
}

// selected returns the workloads that a selection has as endpoints.
func (s *State) selected(sel selection) []endpoints.Endpoint {
	sp := s.in(sel.namespace)
	return s.bounded(sel.namespace, sel.cluster, func(yield func(endpoints.Endpoint) bool) {
		one := func(w *workload) bool {
			return !w.usable || !w.has(sel.labels) || yield(s.endpoint(w, symbol{}, cmp.Or(w.port(sel.port), sel.target)))
		}
		if sel.labels == "" {
			for _, in := range [...]Input{Pods, Workloads} {
				for _, w := range sp.objects[in] {
					if !one(w.(*workload)) {
						return
					}
				}
			}
			return
		}
		for _, some := range [...]map[string]*workload{sp.index.pods[firstOf(sel.labels)], sp.index.entries[firstOf(sel.labels)]} {
			for _, w := range some {
				if !one(w) {
					return
				}
			}
		}
	})
}

// bounded returns the workloads that a cluster selects, and none if there is no room for all of them.
func (s *State) bounded(namespace, cluster string, found func(yield func(endpoints.Endpoint) bool)) (all []endpoints.Endpoint) {
	of, fits := &s.in(namespace).objects, true
	room := s.quota.room(namespace, cluster, len(of[Pods])+len(of[Workloads]))
	found(func(e endpoints.Endpoint) bool {
		if fits = len(all) < room; fits {
			all = append(all, e)
		}
		return fits
	})
	if !fits {
		all = nil
	}
	s.quota.take(cluster, share{namespace, len(all), !fits})
	return all
}
