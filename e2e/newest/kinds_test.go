// Package newest has the newest istiod, and the kinds of the newest Gateway API and of the newest Istio.
package newest

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	_ "sigs.k8s.io/gateway-api/pkg/consts" // its module has the definitions
	"sigs.k8s.io/yaml"

	"meshrelay/mirror"
)

// definition is a part of a CustomResourceDefinition.
type definition struct {
	Kind string
	Spec struct {
		Group, Scope string
		Names        struct {
			Kind, Plural string
			ShortNames   []string
		}
		Versions []struct{ Name string }
	}
}

// definitions returns those that a module has in files.
func definitions(t *testing.T, module, pattern string) (all []definition) {
	t.Helper()
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", module).Output()
	if err != nil {
		t.Fatal(err)
	}
	paths, err := filepath.Glob(filepath.Join(strings.TrimSpace(string(dir)), pattern))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for document := range strings.SplitSeq(string(text), "\n---\n") {
			var d definition
			if err := yaml.Unmarshal([]byte(document), &d); err != nil {
				t.Fatalf("%s: %v", path, err)
			}
			if d.Kind == "CustomResourceDefinition" {
				all = append(all, d)
			}
		}
	}
	if len(all) < 10 {
		t.Fatalf("%s has %d definitions in %s", module, len(all), pattern)
	}
	return all
}

// TestEveryKindThatIsDefinedIsKnown: in each version, by each of its names, with the scope that it has.
func TestEveryKindThatIsDefinedIsKnown(t *testing.T) {
	for _, d := range slices.Concat(
		definitions(t, "sigs.k8s.io/gateway-api", "config/crd/experimental/*.yaml"),
		definitions(t, "istio.io/api", "kubernetes/customresourcedefinitions.gen.yaml"),
	) {
		kind := mirror.Kind{Group: d.Spec.Group, Kind: d.Spec.Names.Kind}
		known, ok := mirror.LookupKind(kind)
		if !ok {
			t.Errorf("%s is not known", kind)
			continue
		}
		for _, v := range d.Spec.Versions {
			if !slices.Contains(known.Versions, v.Name) {
				t.Errorf("%s has no version %s", kind, v.Name)
			}
		}
		if known.Plural != d.Spec.Names.Plural || known.ClusterScoped != (d.Spec.Scope == "Cluster") {
			t.Errorf("%s is %s, cluster-scoped %t: want %s, %s", kind, known.Plural, known.ClusterScoped, d.Spec.Names.Plural, d.Spec.Scope)
		}
		for _, short := range d.Spec.Names.ShortNames {
			if !slices.Contains(known.ShortNames, short) {
				t.Errorf("%s has no short name %s", kind, short)
			}
		}
	}
}
