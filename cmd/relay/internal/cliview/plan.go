package cliview

import (
	"cmp"
	"fmt"
	"strings"

	"meshrelay/admin/view"
	"meshrelay/internal/text"
)

// Plan returns a plan as text: a table of the shown changes, and their differences in at most most bytes.
func Plan(c view.Changes, most int, shown []view.Change) string {
	var p page
	for _, v := range c.Views {
		if v.Opens > 0 {
			p.WriteString(CleanLines(fmt.Sprintf("%s would lose %s, without which something may be open:\n  %s\n", v.View, fmt.Sprint(v.Opens, view.Agree(v.Opens, " policy", " policies")), strings.Join(v.Policies, "\n  "))))
			if more := v.Opens - len(v.Policies); more > 0 {
				p.printf("  and %d more\n", more)
			}
			p.WriteString("\n")
		}
	}
	switch {
	case len(c.Changes) > 0:
		p.changes(shown, nil, titled("ACTION", "KIND", "NAMESPACE", "NAME", "FROM", "TO"), "now", "planned", most)
		p.printf("\n%d to add, %d to change, %d to remove\n", c.Added, c.Changed, c.Removed)
	case len(c.Sinks)+len(c.Views) > 0:
		p.WriteString("No resource would change.\n")
	default:
		p.WriteString("Nothing would change.\n")
	}
	if len(c.Views) > 0 {
		t, notes := titled("VIEW", "NOW", "PLANNED", "ANEW", "NO LONGER", "FROM ELSEWHERE"), ""
		for _, v := range c.Views {
			t.add(v.View, v.Now, v.Planned, v.Gained, v.Lost, v.Changed)
			if v.Note != "" {
				notes += v.View + ": " + v.Note + "\n"
			}
		}
		p.WriteString("\nViews, and the present resources that their clients see now, as planned, anew, no longer, and from elsewhere:\n")
		p.table(t)
		p.WriteString(CleanLines(notes))
	}
	if len(c.Sinks) > 0 {
		p.WriteString("\nSinks, and the present resources that they write now, as planned, anew, and no longer:\n")
		t, notes := titled("SINK", "CHANGED", "NOW", "PLANNED", "ANEW", "NO LONGER"), ""
		for _, s := range c.Sinks {
			t.add(text.Name(s.Sink), strings.Join(s.Changed, ", "), s.Now, s.Planned, s.Gained, s.Lost)
			for _, note := range s.Notes {
				notes += "sink " + s.Sink + ": " + note + "\n"
			}
		}
		p.table(t)
		p.WriteString(CleanLines(notes))
	}
	return p.String()
}

// changes prints changes in a table, with words for their actions, and their differences in at most most bytes.
func (p *page) changes(all []view.Change, words map[string]string, t *table, before, after string, most int) {
	for _, c := range all {
		t.add(cmp.Or(words[c.Action], c.Action), c.Kind, text.Name(c.Namespace), text.Name(c.Name), c.From, c.To)
	}
	p.table(t)
	p.WriteString(CleanLines(view.Differences(all, before, after, most)))
}
