package cliview

import (
	"maps"
	"slices"
	"strings"

	"meshrelay/admin/view"
	"meshrelay/internal/text"
)

// Plan returns a plan as text: a table of the shown changes and, with diffs, their differences. If there are many
// changes, a summary by kind comes first.
func Plan(c view.Changes, diffs view.Diffs, shown []view.Change) string {
	var p page
	switch {
	case len(c.Changes) > 0:
		p.changes(c, diffs, shown)
	case len(c.Sinks) > 0:
		p.WriteString("No resource would change.\n")
	default:
		p.WriteString("Nothing would change.\n")
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

// changes prints the changes of resources.
func (p *page) changes(c view.Changes, diffs view.Diffs, shown []view.Change) {
	if len(c.Changes) > maxRows {
		p.table(planSummary(c.Changes))
		p.WriteString("\n")
	}
	t := titled("ACTION", "KIND", "NAMESPACE", "NAME", "FROM", "TO")
	for _, change := range shown {
		t.add(change.Action, change.Kind, text.Name(change.Namespace), text.Name(change.Name), change.From, change.To)
	}
	p.table(t)
	p.WriteString(CleanLines(view.Differences(shown, "now", "planned", diffs)))
	p.printf("\n%d to add, %d to change, %d to remove\n", c.Added, c.Changed, c.Removed)
}

// planSummary counts changes by kind and action.
func planSummary(changes []view.Change) *table {
	counts := map[string]map[string]int{}
	for _, c := range changes {
		if counts[c.Kind] == nil {
			counts[c.Kind] = map[string]int{}
		}
		counts[c.Kind][c.Action]++
	}
	t := titled("KIND", "ADD", "CHANGE", "REMOVE")
	for _, kind := range slices.Sorted(maps.Keys(counts)) {
		n := counts[kind]
		t.add(kind, n["add"], n["change"], n["remove"])
	}
	return t
}
