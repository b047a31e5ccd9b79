package main

import (
	"fmt"
	"reflect"
	"slices"
	"testing"

	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
)

// TestKustomizationsMakeWhatTheChartMakes: base is the chart with its defaults, and ha and dr the
// chart with the values of the same name.
func TestKustomizationsMakeWhatTheChartMakes(t *testing.T) {
	for name, values := range map[string]map[string]any{"base": nil, "ha": examples(t)["ha"], "dr": examples(t)["dr"]} {
		t.Run(name, func(t *testing.T) {
			built, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), "../../deploy/kustomize/"+name)
			if err != nil {
				t.Fatal(err)
			}
			have := map[string]object{}
			for _, r := range built.Resources() {
				text, err := r.AsYAML()
				if err != nil {
					t.Fatal(err)
				}
				o := decode(t, text)
				if namespace := at(o, "metadata", "namespace"); namespace != "istio-system" {
					t.Errorf("%s is in %v", nameOf(o), namespace)
				}
				have[nameOf(o)] = o
			}
			want := objects(t, mustRender(t, values).Documents)
			for key, o := range want {
				o["metadata"].(object)["namespace"] = "istio-system"
				if got := have[key]; !reflect.DeepEqual(comparable(t, got), comparable(t, o)) {
					t.Errorf("%s: kustomize makes\n%v\nand the chart\n%v", key, comparable(t, got), comparable(t, o))
				}
				delete(have, key)
			}
			for key := range have {
				t.Errorf("kustomize makes %s, which the chart does not", key)
			}
		})
	}
}

// comparable returns an object with the config as a value, and with volumes and mounts in order.
func comparable(t *testing.T, o object) object {
	t.Helper()
	if text, ok := at(o, "data", "relay.yaml").(string); ok {
		o["data"] = object{"relay.yaml": decode(t, []byte(text))}
	}
	pod, container := at(o, "spec", "template", "spec"), at(o, "spec", "template", "spec", "containers", 0)
	for _, list := range []any{at(pod, "volumes"), at(container, "volumeMounts")} {
		if list, ok := list.([]any); ok {
			slices.SortFunc(list, func(a, b any) int {
				return slices.Compare([]byte(fmt.Sprint(at(a, "name"))), []byte(fmt.Sprint(at(b, "name"))))
			})
		}
	}
	return o
}
