package cliview

import (
	"encoding/json"
	"fmt"
	"maps"

	"github.com/zeebo/xxh3"

	"meshrelay/admin/view"
	"meshrelay/internal/kube"
	"meshrelay/mirror"
)

// CompareContent compares the objects of two servers by labels, annotations and spec, because the versions of
// two servers are unrelated. It ignores creation times and provenance, and with bare all annotations. An object
// that only one side has needs no spec.
func CompareContent(a, b []kube.Object, bare bool) (view.Changes, error) {
	for _, objects := range [][]kube.Object{a, b} {
		for i := range objects {
			if objects[i].Spec == nil {
				continue
			}
			if err := contentVersion(&objects[i], bare); err != nil {
				return view.Changes{}, err
			}
		}
	}
	return view.Compare(a, b), nil
}

// contentVersion replaces the resourceVersion of an object by a hash of its content.
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

// Diff returns the changes between two servers as a table, and their differences in at most most bytes.
func Diff(c view.Changes, nameA, nameB string, most int) string {
	if len(c.Changes) == 0 {
		return "No differences.\n"
	}
	var p page
	words := map[string]string{"add": "only in B", "remove": "only in A", "change": "differs"}
	p.printf("A is %s, B is %s\n\n", nameA, nameB)
	p.changes(c.Changes, words, titled("DIFFERENCE", "KIND", "NAMESPACE", "NAME", "UPSTREAM IN A", "UPSTREAM IN B"), "A", "B", most)
	p.printf("\n%d only in A, %d only in B, %d differ\n", c.Removed, c.Added, c.Changed)
	return p.String()
}
