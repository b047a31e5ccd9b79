package ui

import (
	"fmt"

	"meshrelay/admin/view"
	"meshrelay/mirror"
	"meshrelay/upstreams"
	"meshrelay/upstreams/intake"
)

// hold shows the held deletions of an upstream, and what a release of them would do. It returns nothing without a hold.
func (p *Pages) hold(u upstreams.Status, r *request) ([]Section, error) {
	all, err := p.data.Held(u.Name)
	if err != nil || len(all) == 0 {
		return nil, err
	}
	h := all[0]
	several := map[mirror.Key]bool{} // keys that another upstream also has
	for _, c := range p.data.Contests() {
		several[c.Key] = true
	}
	kept := countIf(h.Deletions, func(d intake.HeldDeletion) bool {
		key, ok := keyOf(d.Kind, d.Namespace, d.Name)
		return ok && several[key]
	})
	gone := len(h.Deletions) - kept
	return []Section{
		{
			ID: "hold", Title: "Hold: deletions that wait for a decision",
			Text: []State{
				{Level: view.OKIf(gone == 0, view.Bad), Text: fmt.Sprintf("A release would delete %s at every client: no other upstream has %s.", view.Count(gone, "resource"), view.Agree(gone, "it", "them"))},
				{Level: view.None, Text: fmt.Sprintf("%s would be served from another upstream that also has %s.", view.Count(kept, "resource"), view.Agree(kept, "it", "them"))},
			},
			Facts: []Fact{
				{"Hold", cell(h.ID)}, {"Why", leveled(view.Warn, h.Reason)}, {"Held for", at(h.Since)}, {"Ends", cell(view.EndOfHold(h.Held, r.now))},
				{"Goes through at", Cell{Cell: view.Cell{Until: h.Until}}},
			},
		},
		{ID: "deletions", Title: "What would be deleted", Search: r.search(upstreamHref(u.Name)), Table: p.deletions(h, r)},
	}, nil
}

var deletionColumns = view.Deletions.Pick("Name", "Namespace", "Kind", "Age", "Held")

// maxDeletions is the most held deletions on the page of an upstream.
const maxDeletions = maxRows / 4

// deletions lists the first held deletions that match.
func (p *Pages) deletions(h intake.HeldUpstream, r *request) *Table {
	t := &Table{Caption: "Held deletions", Head: append(headOf(deletionColumns), "Then served from"), Empty: "Nothing matches."}
	n := 0
	for _, d := range h.Deletions {
		if !r.named(d.Kind, d.Namespace, d.Name) {
			continue
		}
		if n++; n <= maxDeletions {
			t.Rows = append(t.Rows, append(rowOf(deletionColumns, d, r.now, resourceHref(d.Kind, d.Namespace, d.Name)), p.takenOver(h.Upstream, d)))
		}
	}
	t.Summary = fmt.Sprintf("%d of %s that match are shown; to list all: %s", len(t.Rows), view.Count(n, "deletion"), p.here("relay upstreams --held "+word(h.Upstream)))
	return t
}

// takenOver returns another upstream that would serve a resource, or "nobody".
func (p *Pages) takenOver(upstream string, d intake.HeldDeletion) Cell {
	if key, ok := keyOf(d.Kind, d.Namespace, d.Name); ok {
		for _, c := range p.data.Resources.Resolve(key).Copies {
			if c.Source != upstream {
				return leveled(view.OK, c.Source)
			}
		}
	}
	return leveled(view.Bad, "nobody")
}
