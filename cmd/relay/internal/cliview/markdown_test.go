package cliview

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"meshrelay/admin/view"
	"meshrelay/internal/kube"
)

func TestAPlanInMarkdownIsASentenceAndATable(t *testing.T) {
	c := view.Changes{Added: 1, Removed: 1, Changes: []view.Change{
		{Action: "add", Kind: "networking.istio.io/ServiceEntry", Namespace: "shop", Name: "db", To: "east"},
		{Action: "remove", Kind: "a|b", Name: "<b>@all`x`", From: "west"},
	}}
	want := "**1 to add, 0 to change, 1 to remove** in the resources that the relay serves.\n\n" +
		"| Action | Kind | Namespace | Name | From | To |\n" +
		"| --- | --- | --- | --- | --- | --- |\n" +
		"| add | `networking.istio.io/ServiceEntry` | `shop` | `db` | - | `east` |\n" +
		"| remove | `a\\|b` | - | `<b>@all'x'` | `west` | - |\n"
	if d := cmp.Diff(want, PlanMarkdown(c, view.NoDiffs, c.Changes)); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
	if got := PlanMarkdown(view.Changes{}, view.SomeDiffs, nil); got != "**Nothing would change** in the resources that the relay serves.\n" {
		t.Errorf("no change: %s", got)
	}
}

func TestAPlanInMarkdownIsCutWithACount(t *testing.T) {
	var c view.Changes
	for i := range 5000 {
		c.Changes = append(c.Changes, view.Change{Action: "add", Kind: "a/B", Namespace: "shop", Name: fmt.Sprintf("r%d", i), New: object(fmt.Sprintf("r%d", i), "x```y")})
	}
	c.Added = len(c.Changes)
	got := PlanMarkdown(c, view.SomeDiffs, c.Changes[:400])
	if !strings.Contains(got, "\nLeft out: 4600 more changes. `relay plan --limit 0` lists all.\n") {
		t.Errorf("no count of changes:\n%.3000s", got)
	}
	if !strings.Contains(got, " more differences. `relay plan --diff --limit 0` lists all.\n") || !strings.Contains(got, "\n````diff\n") || !strings.Contains(got, "<details><summary>add <code>a/B shop/r0</code></summary>\n") {
		t.Errorf("differences:\n%s", got[strings.Index(got, "Left out"):][:600])
	}
	if n := len(got); n > maxMarkdown+200 {
		t.Errorf("%d bytes", n)
	}
	got = PlanMarkdown(c, view.NoDiffs, c.Changes)
	if n := len(got); n > maxMarkdown+200 || !strings.Contains(got, " more changes.") {
		t.Errorf("all rows: %d bytes", n)
	}
}

// object returns an object with a text in its annotations.
func object(name, text string) *kube.Object {
	o := &kube.Object{Spec: json.RawMessage("{}")}
	o.Metadata.Name, o.Metadata.Annotations = name, map[string]string{"note": text}
	return o
}
