package kubernetes

import (
	"strings"
	"testing"
)

func TestNotesTellWhatOfAClusterIsLeftOut(t *testing.T) {
	d := Detail{
		Namespaces: 80, Selected: 12, UnknownFields: []string{"networking.istio.io/Sidecar"},
		NamespaceProblems: []string{"Namespace shop: metadata.labels is no object"}, NamespaceProblemsTotal: 2,
		ServiceProblems: []string{"Service shop/a: spec.ports: it is a text"}, ServiceProblemsTotal: 1,
		Ingress: &IngressDetail{Problems: []string{"Ingress shop/a: spec.defaultBackend: not converted"}, ProblemsTotal: 3},
	}
	const want = `12 of 80 namespaces selected
Namespace shop: metadata.labels is no object
problems of its namespaces that are not listed: 1
Service shop/a: spec.ports: it is a text
Ingress shop/a: spec.defaultBackend: not converted
problems of its Ingresses that are not listed: 2
unknown fields in objects of networking.istio.io/Sidecar: this build leaves them out`
	if got := strings.Join(d.notes(), "\n"); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if none := (&Detail{Ingress: &IngressDetail{Ingresses: 3, Converted: 3}}).notes(); len(none) > 0 {
		t.Errorf("where nothing is left out: %q", none)
	}
}
