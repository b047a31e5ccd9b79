package upstreams_test

import (
	"os"
	"path/filepath"
	"testing"

	"meshrelay/federation/filter"
	"meshrelay/upstreams/intake"
)

// TestTheServedMeshConfigNamesTheRootNamespaceOfAllUpstreams, also of those that come later, and beside the ones that their
// own MeshConfig names.
func TestTheServedMeshConfigNamesTheRootNamespaceOfAllUpstreams(t *testing.T) {
	mesh := func(dir, root string) {
		text := "apiVersion: core/v1alpha1\nkind: MeshConfig\nmetadata: {name: mesh}\nspec: {rootNamespace: " + root + "}\n"
		if err := os.WriteFile(filepath.Join(dir, "mesh.yaml"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	first, team := t.TempDir(), t.TempDir()
	mesh(first, "roots")
	mesh(team, "team")
	entry := func(namespace string) string {
		return "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: a, namespace: " + namespace + "}\nspec: {hosts: [" + namespace + ".example]}\n---\n"
	}
	if err := os.WriteFile(filepath.Join(team, "all.yaml"), []byte(entry("roots")+entry("team")+entry("istio-system")+entry("shop")), 0o600); err != nil {
		t.Fatal(err)
	}
	b, c := fileUpstream("b", team), fileUpstream("c", team)
	b.Import.Profile, c.Import.Profile = filter.ProfileServices, filter.ProfileServices
	r := runManager(t, nil, fileUpstream("a", first), b)
	r.awaitServed("shop/a=shop.example@b")
	if err := errorOf(r.m.Order(t.Context(), "b", "release", intake.Order{All: true})); err != nil {
		t.Fatal(err)
	}
	r.awaitServed("istio-system/a=istio-system.example@b shop/a=shop.example@b")
	r.mustApply(fileUpstream("a", first), c)
	r.awaitServed("shop/a=shop.example@c")
	mesh(first, "shop")
	r.awaitServed("")
}
