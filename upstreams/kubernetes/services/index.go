package services

import (
	"iter"
	"strings"
)

// maxAlike bounds the selectors of a namespace that begin with the same label: of Services, and of selections.
const maxAlike = 1000

// index finds what selects a workload of a namespace, and what a selector selects, without a look at all pairs of them: others
// may write both. A label is a line of EncodeLabels.
type index struct {
	services map[string]map[string]*service  // by the first label of the selector, and by name
	entries  map[string]map[string]*workload // WorkloadEntries by each label, and by name
	pods     map[string]map[string]*workload // Pods by the labels with which selections begin, and by name
}

func newIndex() index {
	return index{map[string]map[string]*service{}, map[string]map[string]*workload{}, map[string]map[string]*workload{}}
}

// labels returns each label of a workload.
func (w *workload) lines() iter.Seq[string] { return strings.Lines(w.labels.String()) }

// firstOf returns the first label of a selector, and nothing for one without labels.
func firstOf(selector string) string { return selector[:strings.IndexByte(selector, '\n')+1] }

func put[T any](to map[string]map[string]T, label, name string, of T) {
	if to[label] == nil {
		to[label] = map[string]T{}
	}
	to[label][name] = of
}

func drop[T any](from map[string]map[string]T, label, name string) {
	if delete(from[label], name); len(from[label]) == 0 {
		delete(from, label)
	}
}

// replace replaces an object, which may be nil before or after. It returns the Services that begin or cease to select
// WorkloadEntries, because there are too many like them or no more.
func (x *index) replace(in Input, name string, old, now any) (others map[string]*service) {
	if v, is := old.(*service); is && v.selector != "" {
		drop(x.services, firstOf(v.selector), name)
		if some := x.services[firstOf(v.selector)]; len(some) == maxAlike {
			others = some
		}
	}
	if v, is := now.(*service); is && v.selector != "" {
		put(x.services, firstOf(v.selector), name, v)
		if some := x.services[firstOf(v.selector)]; len(some) == maxAlike+1 {
			others = some
		}
	}
	if w, is := old.(*workload); is {
		for label := range w.lines() {
			if in == Workloads {
				drop(x.entries, label, name)
			} else {
				delete(x.pods[label], name)
			}
		}
	}
	if w, is := now.(*workload); is {
		for label := range w.lines() {
			if in == Workloads {
				put(x.entries, label, name, w)
			} else if some := x.pods[label]; some != nil {
				some[name] = w
			}
		}
	}
	return others
}

// keep keeps the Pods by exactly some labels. all are those of the namespace.
func (x *index) keep(labels map[string]struct{}, all map[string]any) {
	fresh := false
	for label := range x.pods {
		if _, is := labels[label]; !is {
			delete(x.pods, label)
		}
	}
	for label := range labels {
		if x.pods[label] == nil {
			x.pods[label], fresh = map[string]*workload{}, true
		}
	}
	if !fresh {
		return
	}
	for name, w := range all {
		for label := range w.(*workload).lines() {
			if some := x.pods[label]; some != nil {
				some[name] = w.(*workload)
			}
		}
	}
}

// selecting calls f with each Service that selects a WorkloadEntry.
func (x *index) selecting(w *workload, f func(name string, v *service)) {
	for label := range w.lines() {
		for name, v := range x.services[label] {
			if x.selects(v, w) {
				f(name, v)
			}
		}
	}
}

// selects reports whether a Service selects a WorkloadEntry.
func (x *index) selects(v *service, w *workload) bool {
	return v.selector != "" && len(x.services[firstOf(v.selector)]) <= maxAlike && w.host == symbol{} && w.has(v.selector)
}
