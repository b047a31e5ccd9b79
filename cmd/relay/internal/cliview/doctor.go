package cliview

import (
	"meshrelay/admin/view"
	"meshrelay/internal/doctor"
)

// aboutOf returns the subject of a finding: the relay, an upstream or clusters.
func aboutOf(f doctor.Finding) string {
	switch {
	case f.Upstream != "":
		return "upstream " + f.Upstream
	case f.Clusters != "":
		return "clusters " + f.Clusters
	}
	return "relay"
}

// signOf returns the sign and the level of a finding. The sign shows the level without colors.
func signOf(l doctor.Level) (string, view.Level) {
	switch l {
	case doctor.OK:
		return "✔", view.OK
	case doctor.Warning:
		return "!", view.Warn
	}
	return "✘", view.Bad
}

// Doctor returns findings as text, grouped by subject: one line each, then why and fix if it is not OK. The last
// line has the result.
func Doctor(found []doctor.Finding) string {
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
		sign, level := signOf(f.Level)
		p.WriteString(Colored(level, sign))
		target := f.Target
		if target != "" {
			target += ": "
		}
		p.printf(" %-11s %s%s\n", f.Check, target, f.What)
		for _, line := range [][2]string{{"why", f.Why}, {"fix", f.Fix}} {
			if line[1] != "" {
				p.printf("  %-11s %s: %s\n", "", line[0], view.OneLine(line[1]))
			}
		}
	}
	bad, doubts := doctor.Count(found, doctor.Failed), doctor.Count(found, doctor.Warning)
	switch {
	case bad > 0:
		p.printf("\n%s failed, %s. Correct these before you start the relay.\n", view.Count(bad, "check"), view.Count(doubts, "warning"))
	case doubts > 0:
		p.printf("\nEverything works, with %s.\n", view.Count(doubts, "warning"))
	default:
		p.printf("\nEverything works: %s passed.\n", view.Count(len(found), "check"))
	}
	return p.String()
}
