package cliview

import (
	"maps"
	"slices"

	"meshrelay/internal/kube"
	"meshrelay/mirror"
)

// Changes are the differences between the served resources and those of a plan.
type Changes struct {
	Added   int `json:"added"`
	Changed int `json:"changed"`
	Removed int `json:"removed"`
	// Changes are sorted by kind, namespace and name.
	Changes []Change `json:"changes"`
}

// Change is the change of one object.
type Change struct {
	// Action is "add", "change" or "remove".
	Action    string `json:"action"`
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	// From and To are the upstreams of the old and the new object, where known.
	From string       `json:"from,omitempty"`
	To   string       `json:"to,omitempty"`
	Old  *kube.Object `json:"old,omitempty"`
	New  *kube.Object `json:"new,omitempty"`
}

type objectKey [3]string // kind, namespace and name

// Compare returns the differences between the objects of now and next.
func Compare(now, next []kube.Object) Changes {
	index := func(objects []kube.Object) map[objectKey]*kube.Object {
		out := make(map[objectKey]*kube.Object, len(objects))
		for i := range objects {
			o := &objects[i]
			out[objectKey{kube.KindOf(o), o.Metadata.Namespace, o.Metadata.Name}] = o
		}
		return out
	}
	old, cur := index(now), index(next)
	keys := maps.Clone(cur)
	maps.Copy(keys, old)
	all := Changes{Changes: []Change{}}
	for _, k := range slices.SortedFunc(maps.Keys(keys), func(a, b objectKey) int { return slices.Compare(a[:], b[:]) }) {
		c := Change{Kind: k[0], Namespace: k[1], Name: k[2], Old: old[k], New: cur[k], From: sourceOf(old[k]), To: sourceOf(cur[k])}
		switch {
		case c.Old == nil:
			c.Action = "add"
			all.Added++
		case c.New == nil:
			c.Action = "remove"
			all.Removed++
		case c.Old.Metadata.ResourceVersion == c.New.Metadata.ResourceVersion:
			continue
		default:
			c.Action = "change"
			all.Changed++
		}
		all.Changes = append(all.Changes, c)
	}
	return all
}

func sourceOf(o *kube.Object) string {
	if o == nil {
		return ""
	}
	return mirror.ParseProvenance(o.Metadata.Annotations[mirror.ProvenanceAnnotation]).Source
}

// Plan returns the shown ones of all changes as a table, and as differences. It counts many changes first.
func Plan(c Changes, diffs Diffs, shown []Change) string {
	if len(c.Changes) == 0 {
		return "Nothing would change.\n"
	}
	var p page
	details := differences{wanted: diffs}
	if len(c.Changes) > maxRows {
		p.table(planSummary(c.Changes))
		p.WriteString("\n")
	}
	t := titled("ACTION", "KIND", "NAMESPACE", "NAME", "FROM", "TO")
	for _, change := range shown {
		t.add(change.Action, change.Kind, change.Namespace, change.Name, change.From, change.To)
		name := change.Kind + " " + change.Namespace + "/" + change.Name
		details.add("now "+name, change.Old, "planned "+name, change.New)
	}
	p.table(t)
	p.WriteString(details.String() + details.rest())
	p.printf("\n%d to add, %d to change, %d to remove\n", c.Added, c.Changed, c.Removed)
	return p.String()
}

// planSummary counts changes by kind and action.
func planSummary(changes []Change) *table {
	counts := map[string]map[string]int{}
	for _, c := range changes {
		if counts[c.Kind] == nil {
			counts[c.Kind] = map[string]int{}
		}
		counts[c.Kind][c.Action]++
	}
	t := titled("KIND", "ADD", "CHANGE", "REMOVE")
	for _, kind := range slices.Sorted(maps.Keys(counts)) {
		n := counts[kind]
		t.add(kind, n["add"], n["change"], n["remove"])
	}
	return t
}
