package cliview

import (
	"strings"

	"meshrelay/admin"
	"meshrelay/admin/view"
	"meshrelay/internal/kube"
	"meshrelay/mirror"
)

// Checked returns the result of a check of resources as text: one line a finding, and what rules would change. as has the
// resources as they were sent.
func Checked(c admin.Checked, as map[mirror.Key]*kube.Object) string {
	var p page
	name := func(k mirror.Key) string {
		if k == (mirror.Key{}) {
			return "upstream " + c.Upstream
		}
		return view.KeyText(k)
	}
	for _, f := range c.Findings {
		what := string(f.Outcome)
		if f.Reason != "" {
			what += " (" + f.Reason + ")"
		}
		p.printf("%s: %s: %s\n", name(f.Key), what, f.Detail)
	}
	for _, change := range c.Changes {
		p.printf("%s: would be changed: %s\n", name(change.Key), strings.Join(change.Changes, ", "))
		if from := as[change.Key]; from != nil && change.Served != nil {
			p.WriteString(CleanLines(view.Difference("as written", from, "as served", change.Served)))
		}
	}
	p.printf("%s checked as those of upstream %s: %s.\n", view.Count(c.Resources, "resource"), c.Upstream, view.Count(len(c.Findings), "finding"))
	return p.String()
}
