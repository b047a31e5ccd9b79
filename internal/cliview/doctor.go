package cliview

import (
	"strings"

	"meshrelay/internal/doctor"
)

// marks are a sign and a word for each level, so that nothing is only colour.
var marks = map[doctor.Level]string{doctor.OK: "✔", doctor.Warning: "!", doctor.Failed: "✘"}

// aboutOf returns what a finding is about.
func aboutOf(f doctor.Finding) string {
	switch {
	case f.Upstream != "":
		return "upstream " + Clean(f.Upstream)
	case f.Clusters != "":
		return "clusters " + Clean(f.Clusters)
	}
	return "relay"
}

// Doctor returns findings as text: a line each, with cause and cure under those that are not ok,
// grouped by what they are about, and a last line with the result.
func Doctor(found []doctor.Finding, paint Paint) string {
	var p page
	group := ""
	for _, f := range found {
		if about := aboutOf(f); about != group {
			if group != "" {
				p.WriteString("\n")
			}
			group = about
			p.printf("%s\n", group)
		}
		target := Clean(f.Target)
		if target != "" {
			target += ": "
		}
		p.printf("%s %-11s %s%s\n", paint.Level(f.Level, marks[f.Level]), f.Check, target, Clean(f.What))
		for _, line := range [][2]string{{"why", f.Why}, {"fix", f.Fix}} {
			if line[1] != "" {
				p.printf("  %-11s %s: %s\n", "", line[0], Clean(strings.Join(strings.Fields(line[1]), " ")))
			}
		}
	}
	bad, doubts := doctor.Count(found, doctor.Failed), doctor.Count(found, doctor.Warning)
	switch {
	case bad > 0:
		p.printf("\n%s failed, %s. Correct these before you start the relay.\n", Count(bad, "check"), Count(doubts, "warning"))
	case doubts > 0:
		p.printf("\nEverything works. %s to look at.\n", Count(doubts, "warning"))
	default:
		p.printf("\nEverything works: %s passed.\n", Count(len(found), "check"))
	}
	return p.String()
}
