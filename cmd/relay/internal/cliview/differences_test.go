package cliview

import (
	"fmt"
	"strings"
	"testing"

	"meshrelay/admin"
	"meshrelay/internal/kube"
)

// Each command that prints differences prints some of many, tells how many it leaves out, and prints all when
// that is asked for.
func TestDifferencesAreBoundedAndTheRestIsCounted(t *testing.T) {
	const n = 500
	var before, after []kube.Object
	for i := range n {
		o := kube.Object{APIVersion: "a/v1", Kind: "B", Metadata: kube.Metadata{Namespace: "shop", Name: fmt.Sprintf("r%03d", i), ResourceVersion: "1"}, Spec: []byte(`{"hosts":["` + strings.Repeat("x", 300) + `"]}`)}
		before = append(before, o)
		o.Metadata.ResourceVersion, o.Spec = "2", []byte(`{"hosts":["y"]}`)
		after = append(after, o)
	}
	changes := Compare(before, after)
	for name, text := range map[string]func(Diffs) string{
		"history --diff": func(d Diffs) string { return RevisionDiff(admin.RevisionDiff{Before: before, After: after}, d) },
		"plan --diff":    func(d Diffs) string { return Plan(changes, d, changes.Changes) },
		"diff --diff":    func(d Diffs) string { return Diff(changes, "a", "b", d) },
	} {
		some := text(SomeDiffs)
		shown := strings.Count(some, "\n--- ")
		if len(some) > 100_000 || shown < 50 || !strings.Contains(some, fmt.Sprintf("\nleft out: %d more differences; --limit 0 prints all\n", n-shown)) {
			t.Errorf("%s prints %d bytes and %d differences: …%s", name, len(some), shown, some[max(0, len(some)-200):])
		}
		if all := text(AllDiffs); strings.Count(all, "\n--- ") != n || strings.Contains(all, "left out") {
			t.Errorf("%s with all leaves some out", name)
		}
		if none := text(NoDiffs); strings.Contains(none, "\n--- ") || strings.Contains(none, "left out") {
			t.Errorf("%s without differences has some", name)
		}
	}
}
