package docs_test

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"meshrelay/state/local"
	"meshrelay/upstreams/kubernetes/discovery"
)

// TestVersionsInCompatibilityAreThoseOfTheCode: of Kubernetes, the oldest and that of the tests, and of the files on disk.
func TestVersionsInCompatibilityAreThoseOfTheCode(t *testing.T) {
	tested := regexp.MustCompile(`k8s\.io/kubernetes v(1\.\d+)`).FindStringSubmatch(read(t, "../tools/kube/go.mod"))
	if tested == nil {
		t.Fatal("tools/kube/go.mod has no k8s.io/kubernetes")
	}
	page := read(t, "compatibility.md")
	for _, want := range []string{
		"Kubernetes " + discovery.Oldest + " and later",
		"tests run " + tested[1] + " |",
		fmt.Sprintf("have format %d.", local.FormatVersion),
	} {
		if !strings.Contains(page, want) {
			t.Errorf("compatibility.md does not have %q", want)
		}
	}
}
