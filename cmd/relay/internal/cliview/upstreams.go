package cliview

import (
	"time"

	"meshrelay/admin/view"
	"meshrelay/state"
	"meshrelay/upstreams"
	"meshrelay/upstreams/intake"
	"meshrelay/upstreams/intake/records"
)

// Upstreams returns upstreams as a table, with advice about them. Ages are relative to now.
func Upstreams(ups []upstreams.Status, now time.Time) string {
	var p page
	p.table(tableOf(view.Upstreams, ups, now))
	p.advice(ups, now)
	return p.String()
}

// Upstream describes one upstream in full. Ages are relative to now.
func Upstream(u upstreams.Status, now time.Time) string {
	var p page
	p.WriteString(Upstreams([]upstreams.Status{u}, now) + "\n")
	if f := u.Found; f != nil {
		p.printf("Cluster %s, found by clusters %s in %s. See: relay clusters\n\n", u.ClusterID, f.Clusters, f.Origin)
	}
	if u.LastError != "" {
		p.printf("Last error: %s\n\n", u.LastError)
	}
	for _, list := range []struct {
		title string
		types []string
	}{{"Types without an answer", u.Pending}, {"Types that are not offered", u.NotOffered}} {
		if len(list.types) > 0 {
			p.printf("%s:\n", list.title)
			for _, t := range list.types {
				p.printf("  %s\n", t)
			}
			p.WriteString("\n")
		}
	}
	p.WriteString(listed("It has no resources.\n", view.KindCounts, view.Kinds(u), now))
	if rules := view.Rules(u); len(rules) > 0 {
		p.WriteString("\n")
		p.table(tableOf(view.RuleCounts, rules, now))
		p.printf("To list them: relay explain --left-out --upstream %s\n", u.Name)
	}
	if u.RefusedTotal > 0 {
		p.WriteString("\n")
		p.table(tableOf(view.Refusals, u.Refused, now))
		if more := u.RefusedTotal - len(u.Refused); more > 0 {
			p.printf("and %d more\n", more)
		}
	}
	return p.String()
}

// LeftOut returns a table of resources that import rules leave out.
func LeftOut(all []records.LeftOut) string {
	return listed("Nothing is left out.\n", view.LeftOut, all, time.Time{})
}

// History returns revisions as a table. Ages are relative to now.
func History(revisions []state.Revision, now time.Time) string {
	return listed("No revisions are kept.\n", view.Revisions, revisions, now)
}

// Held describes held deletions: for each upstream its hold, a table of the deletions, and the command that
// releases them. Ages are relative to now.
func Held(held []intake.HeldUpstream, now time.Time) string {
	if len(held) == 0 {
		return "No deletions are held.\n"
	}
	var p page
	for i, h := range held {
		if i > 0 {
			p.WriteString("\n")
		}
		p.printf("upstream %s: hold %s\n  %s of %s, held for %s\n", h.Upstream, h.ID,
			view.Count(h.Removals, "deletion"), view.Count(h.Of, "resource"), view.Ago(h.Since, now))
		p.printf("  reason: %s\n  ends:   %s\n\n", h.Reason, view.EndOfHold(h.Held, now))
		p.table(tableOf(view.Deletions, h.Deletions, now))
		p.printf("\nAll of these are still served. To delete them: relay release %s --hold %s\n", h.Upstream, h.ID)
	}
	return p.String()
}
