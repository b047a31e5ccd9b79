package cliview

import (
	"testing"

	"meshrelay/upstreams"
)

func TestKindsThatAreNotFollowedAndNotesAreListed(t *testing.T) {
	u := upstreams.Status{
		Name: "east",
		Following: []upstreams.FollowedKind{
			{Kind: "networking.istio.io/Gateway", State: "following"},
			{Kind: "networking.istio.io/Sidecar", State: "denied", Namespace: "shop", Reason: "no\nright"},
			{Kind: "apiextensions.k8s.io/CustomResourceDefinition", State: "polled", Reason: "forbidden"},
		},
		Notes: []string{"12 of 80 namespaces selected", "Ingress shop/\x1b: not converted"},
	}
	const want = `
east: networking.istio.io/Sidecar in shop denied: no right
east: 12 of 80 namespaces selected
east: Ingress shop/?: not converted
`
	var p page
	p.advice([]upstreams.Status{u}, testNow)
	if got := p.String(); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}
