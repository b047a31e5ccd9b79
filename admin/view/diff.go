package view

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/rogpeppe/go-internal/diff"

	"meshrelay/admin"
	"meshrelay/internal/kube"
	words "meshrelay/internal/text"
	"meshrelay/mirror"
)

// Changes are the differences between two sets of objects, such as those of a running relay and of a plan.
type Changes struct {
	Added   int `json:"added"`
	Changed int `json:"changed"`
	Removed int `json:"removed"`
	// Changes are sorted by kind, namespace and name.
	Changes []Change `json:"changes"`
	admin.Preview
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

// Compare returns the changes that turn the objects before into the objects after. Objects with the same
// resourceVersion count as equal.
func Compare(before, after []kube.Object) Changes {
	index := func(objects []kube.Object) map[objectKey]*kube.Object {
		out := make(map[objectKey]*kube.Object, len(objects))
		for i := range objects {
			o := &objects[i]
			out[objectKey{kube.KindOf(o), o.Metadata.Namespace, o.Metadata.Name}] = o
		}
		return out
	}
	old, cur := index(before), index(after)
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

// Differences returns the differences of changes as diff -u prints them, in at most most bytes, and the number that it
// leaves out. Where most is 0, it returns nothing. before and after are the names of the two sides.
func Differences(all []Change, before, after string, most int) string {
	if most == 0 {
		return ""
	}
	var out strings.Builder
	for i, c := range all {
		name := " " + c.Kind + " " + words.Name(c.Namespace+"/"+c.Name)
		one := Difference(before+name, c.Old, after+name, c.New)
		if out.Len()+len(one) > most {
			return out.String() + "\nleft out: " + Count(len(all)-i, "more difference") + "; --limit 0 prints all\n"
		}
		out.WriteString(one)
	}
	return out.String()
}

// Difference returns the difference between two objects as diff -u prints it, without versions and
// provenance. Either object may be nil.
func Difference(oldName string, old *kube.Object, newName string, cur *kube.Object) string {
	a, aErr := objectText(old)
	b, bErr := objectText(cur)
	d := diff.Diff(oldName, a, newName, b)
	switch err := errors.Join(aErr, bErr); {
	case err != nil:
		return fmt.Sprintf("\n%s and %s can not be compared: %v\n", oldName, newName, err)
	case len(d) == 0:
		return fmt.Sprintf("\n%s and %s are equal\n", oldName, newName)
	}
	return "\n" + string(d)
}

// objectText returns an object as YAML, or nil for nil.
func objectText(o *kube.Object) ([]byte, error) {
	if o == nil {
		return nil, nil
	}
	plain := *o
	plain.Metadata.ResourceVersion = ""
	plain.Metadata.Annotations = maps.Clone(o.Metadata.Annotations)
	delete(plain.Metadata.Annotations, mirror.ProvenanceAnnotation)
	return plain.YAML()
}

// RevisionDiff describes a revision: its differences, in at most most bytes, and their numbers.
func RevisionDiff(d admin.RevisionDiff, most int) string {
	var out strings.Builder
	r := d.Revision
	fmt.Fprintf(&out, "revision %d of %s, by %s\n", r.ID, r.Time.UTC().Format(time.RFC3339), cmp.Or(r.By, "upstream"))
	if d.Oldest {
		out.WriteString("This is the oldest kept revision: all its resources are shown as added.\n")
	}
	all := Compare(d.Before, d.After)
	out.WriteString(Differences(all.Changes, "before", "after", most))
	fmt.Fprintf(&out, "\n%d added, %d changed, %d removed", all.Added, all.Changed, all.Removed)
	if d.More > 0 {
		fmt.Fprintf(&out, ", and %d more are left out (\"relay get -o yaml\" has the current resources)", d.More)
	}
	out.WriteString("\n")
	return out.String()
}
