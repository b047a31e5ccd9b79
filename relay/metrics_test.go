package relay

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
)

// TestMetricsAreThoseOfTheCode: docs/metrics.md has a row for each metric that the parts of a relay describe,
// and there are not too many.
func TestMetricsAreThoseOfTheCode(t *testing.T) {
	r := idle(t, "state: {dir: state}\n", nil)
	described := make(chan *prometheus.Desc)
	go func() { defer close(described); r.metrics.Describe(described) }()
	exist, name := map[string]bool{}, regexp.MustCompile(`fqName: "(relay_\w+)"`)
	for d := range described {
		if m := name.FindStringSubmatch(d.String()); m != nil {
			exist[m[1]] = true
		}
	}
	if most := 60; len(exist) > most {
		t.Errorf("%d metrics, want at most %d: those that an alert, a rule, the dashboard or a step of a guide uses", len(exist), most)
	}
	page, err := os.ReadFile("../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	var rows []string
	for _, m := range regexp.MustCompile("(?m)^\\| `(relay_[a-z_]+)` \\|").FindAllStringSubmatch(string(page), -1) {
		rows = append(rows, m[1])
	}
	slices.Sort(rows)
	if d := cmp.Diff(slices.Sorted(maps.Keys(exist)), rows); d != "" {
		t.Errorf("docs/metrics.md has other metrics (-code +metrics.md):\n%s", d)
	}
}
