package cliview

import (
	"testing"

	"meshrelay/upstreams"
)

func TestWhatOfAClusterIsNotFollowedIsNamed(t *testing.T) {
	k := &upstreams.KubernetesStatus{
		Kinds: []upstreams.FollowedKind{
			{Kind: "networking.istio.io/Gateway", State: "following"},
			{Kind: "networking.istio.io/Sidecar", State: "denied", Namespace: "shop", Reason: "no\nright"},
			{Kind: "apiextensions.k8s.io/CustomResourceDefinition", State: "polled", Reason: "forbidden"},
		},
		Namespaces: 80, Selected: 12, UnknownFields: 1,
		Ingress: &upstreams.IngressStatus{Problems: []string{"Ingress shop/a: spec.defaultBackend: not converted"}, ProblemsTotal: 3},
	}
	const want = `east: networking.istio.io/Sidecar in shop denied: no right
east: 12 of 80 namespaces selected
east: Ingress shop/a: spec.defaultBackend: not converted
east: and 2 more problems of its Ingresses
east: 1 object has fields that this build does not know, and leaves out
`
	if got := unfollowed("east", k); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}
