package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"istio.io/istio/pilot/pkg/config/kube/crd"
	"sigs.k8s.io/yaml"
)

// manifest is one config of a set, as in a file.
type manifest struct {
	APIVersion string           `json:"apiVersion"`
	Kind       string           `json:"kind"`
	Metadata   manifestMetadata `json:"metadata"`
	Spec       json.RawMessage  `json:"spec"`
}

type manifestMetadata struct {
	Name              string            `json:"name"`
	Namespace         string            `json:"namespace"`
	CreationTimestamp string            `json:"creationTimestamp"`
	Labels            map[string]string `json:"labels,omitempty"`
	Annotations       map[string]string `json:"annotations,omitempty"`
}

func (m manifest) key() string {
	group, _, _ := strings.Cut(m.APIVersion, "/")
	return group + "/" + m.Kind + " " + m.Metadata.Namespace + "/" + m.Metadata.Name
}

// readManifests reads the YAML files of a directory.
func readManifests(t *testing.T, dir string) (all []manifest) {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("no YAML in %s: %v", dir, err)
	}
	for _, path := range paths {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for n, doc := range strings.Split(string(b), "\n---\n") {
			var m manifest
			if err := yaml.UnmarshalStrict([]byte(doc), &m); err != nil {
				t.Fatalf("%s, document %d: %v", path, n+1, err)
			}
			if m.Metadata.CreationTimestamp == "" {
				t.Fatalf("%s, document %d: no creationTimestamp: each istiod would give one of its own", path, n+1)
			}
			all = append(all, m)
		}
	}
	return all
}

// document returns the set as one YAML file, in which each config is marked with the set.
func document(set []manifest, marker string) (string, error) {
	var b strings.Builder
	for _, m := range set {
		annotations := map[string]string{markerKey: marker}
		for k, v := range m.Metadata.Annotations {
			annotations[k] = v
		}
		m.Metadata.Annotations = annotations
		y, err := yaml.Marshal(m)
		if err != nil {
			return "", fmt.Errorf("%s: %w", m.key(), err)
		}
		fmt.Fprintf(&b, "---\n%s", y)
	}
	return b.String(), nil
}

// invalid tells why an istiod would refuse it.
func (m manifest) invalid() error {
	y, err := yaml.Marshal(m)
	if err != nil {
		return err
	}
	_, unknown, err := crd.ParseInputs(string(y))
	if err == nil && len(unknown) > 0 {
		err = fmt.Errorf("an istiod does not know the kind of %s", m.key())
	}
	return err
}

// full returns the host of an app's service.
func full(app, namespace string) string { return app + "." + namespace + ".svc.cluster.local" }
