package cliview

import (
	"encoding/json"
	"fmt"
	"maps"

	"github.com/zeebo/xxh3"

	"meshrelay/internal/kube"
	"meshrelay/mirror"
)

// Differences returns the differences between the objects of two servers, whose versions tell
// nothing about each other: equal are objects of the same labels, annotations and spec. The time of
// creation and the marks of the way do not count, and with bare no annotation does. An object that is only
// in a or b needs no spec.
func Differences(a, b []kube.Object, bare bool) (Changes, error) {
	for _, objects := range [][]kube.Object{a, b} {
		for i := range objects {
			if objects[i].Spec == nil {
				continue
			}
			if err := contentVersion(&objects[i], bare); err != nil {
				return Changes{}, err
			}
		}
	}
	return Compare(a, b), nil
}

// contentVersion makes the content of an object its version.
func contentVersion(o *kube.Object, bare bool) error {
	plain := *o
	plain.APIVersion, plain.Metadata.ResourceVersion, plain.Metadata.CreationTimestamp = "", "", ""
	plain.Metadata.Annotations = maps.Clone(o.Metadata.Annotations)
	delete(plain.Metadata.Annotations, mirror.ProvenanceAnnotation)
	if bare {
		plain.Metadata.Annotations = nil
	}
	text, err := json.Marshal(plain)
	o.Metadata.ResourceVersion = fmt.Sprintf("%x", xxh3.Hash128(text).Bytes())
	return err
}

// Diff returns differences between two servers as a table, and as differences.
func Diff(c Changes, nameA, nameB string, diffs Diffs) string {
	if len(c.Changes) == 0 {
		return "Both have the same.\n"
	}
	var p page
	details := differences{wanted: diffs}
	words := map[string]string{"add": "only in B", "remove": "only in A", "change": "differs"}
	p.printf("A is %s, B is %s\n\n", Clean(nameA), Clean(nameB))
	t := titled("DIFFERENCE", "KIND", "NAMESPACE", "NAME", "UPSTREAM IN A", "UPSTREAM IN B")
	for _, change := range c.Changes {
		t.add(words[change.Action], change.Kind, change.Namespace, change.Name, change.From, change.To)
		name := change.Kind + " " + change.Namespace + "/" + change.Name
		details.add("A "+name, change.Old, "B "+name, change.New)
	}
	p.table(t)
	p.WriteString(details.String() + details.rest())
	p.printf("\n%d only in A, %d only in B, %d differ\n", c.Removed, c.Added, c.Changed)
	return p.String()
}
