package docs_test

import (
	"regexp"
	"strings"
	"testing"
)

// TestVersionsInCompatibilityAreThoseOfTheCode: of Kubernetes, the oldest and that of the tests, and of the files on disk.
func TestVersionsInCompatibilityAreThoseOfTheCode(t *testing.T) {
	page := read(t, "compatibility.md")
	for _, v := range []struct{ path, pattern, shown string }{
		{"../upstreams/kubernetes/discovery/discovery.go", `older than (Kubernetes 1\.\d+)`, "% and later"},
		{"../tools/kube/go.mod", `k8s\.io/kubernetes v(1\.\d+)`, "tests run % |"},
		{"../state/local/log.go", `formatVersion = (\d+)`, "have format %."},
	} {
		m := regexp.MustCompile(v.pattern).FindStringSubmatch(read(t, v.path))
		if m == nil {
			t.Errorf("%s has no %s", v.path, v.pattern)
		} else if want := strings.Replace(v.shown, "%", m[1], 1); !strings.Contains(page, want) {
			t.Errorf("compatibility.md does not have %q, as %s has it", want, v.path)
		}
	}
}
