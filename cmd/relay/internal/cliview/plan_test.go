package cliview

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"meshrelay/admin/view"
)

func TestAPlanWithManyChangesCountsThemFirst(t *testing.T) {
	var all view.Changes
	for i := range 30 {
		all.Changes = append(all.Changes, view.Change{Action: []string{"add", "remove"}[i%2], Kind: "a/B", Namespace: "shop", Name: fmt.Sprintf("r%d", i)})
	}
	all.Changes = append(all.Changes, view.Change{Action: "change", Kind: "a/C", Name: "c"})
	all.Added, all.Removed, all.Changed = 15, 15, 1
	got, rest, _ := strings.Cut(Plan(all, view.NoDiffs, all.Changes), "\n\n")
	want := `KIND   ADD   CHANGE   REMOVE
a/B    15    0        15
a/C    0     1        0`
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
	if !strings.HasPrefix(rest, "ACTION ") || !strings.HasSuffix(rest, "\n15 to add, 1 to change, 15 to remove\n") {
		t.Errorf("after the counts:\n%s", rest)
	}
	all.Changes = all.Changes[:3]
	if got := Plan(all, view.NoDiffs, all.Changes); !strings.HasPrefix(got, "ACTION ") {
		t.Errorf("few changes:\n%s", got)
	}
}
