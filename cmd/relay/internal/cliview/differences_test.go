package cliview

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"meshrelay/admin"
	"meshrelay/admin/view"
	"meshrelay/internal/kube"
)

// Each command that prints differences bounds them, prints how many it leaves out, and prints all with --limit 0.
func TestDifferencesAreBoundedAndTheRestIsCounted(t *testing.T) {
	const n = 500
	var before, after []kube.Object
	for i := range n {
		o := kube.Object{APIVersion: "a/v1", Kind: "B", Metadata: kube.Metadata{Namespace: "shop", Name: fmt.Sprintf("r%03d", i), ResourceVersion: "1"}, Spec: []byte(`{"hosts":["` + strings.Repeat("x", 300) + `"]}`)}
		before = append(before, o)
		o.Metadata.ResourceVersion, o.Spec = "2", []byte(`{"hosts":["y"]}`)
		after = append(after, o)
	}
	changes := view.Compare(before, after)
	for name, text := range map[string]func(int) string{
		"history --diff": func(d int) string {
			return view.RevisionDiff(admin.RevisionDiff{Before: before, After: after}, d)
		},
		"plan --diff": func(d int) string { return Plan(changes, d, changes.Changes) },
		"diff --diff": func(d int) string { return Diff(changes, "a", "b", d) },
	} {
		some := text(60_000)
		shown := strings.Count(some, "\n--- ")
		if len(some) > 100_000 || shown < 50 || !strings.Contains(some, fmt.Sprintf("\nleft out: %d more differences; --limit 0 prints all\n", n-shown)) {
			t.Errorf("%s prints %d bytes and %d differences: …%s", name, len(some), shown, some[max(0, len(some)-200):])
		}
		if all := text(math.MaxInt); strings.Count(all, "\n--- ") != n || strings.Contains(all, "left out") {
			t.Errorf("%s with all leaves some out", name)
		}
		if none := text(0); strings.Contains(none, "\n--- ") || strings.Contains(none, "left out") {
			t.Errorf("%s without differences has some", name)
		}
	}
}

func TestAPlanNamesThePoliciesThatWouldGoFirst(t *testing.T) {
	changes := view.Changes{Changes: []view.Change{{Action: "remove", Kind: "a/B", Name: "c"}}, Removed: 1}
	changes.Views = []admin.ViewChange{
		{View: "view bank", Lost: 30, Policies: []string{"d/E x/f"}, Opens: 22}, {View: "view shop", Lost: 1, Policies: []string{"d/E x/f"}, Opens: 1},
	}
	const want = "view bank would lose 22 policies, without which something may be open:\n  d/E x/f\n  and 21 more\n\n" +
		"view shop would lose 1 policy, without which something may be open:\n  d/E x/f\n\n"
	if got := Plain(Plan(changes, 0, changes.Changes)); !strings.HasPrefix(got, want) {
		t.Error(got)
	}
}
