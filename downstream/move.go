package downstream

import (
	"cmp"
	"slices"
	"time"

	"meshrelay/downstream/snapshot"
	"meshrelay/downstream/subscription"
	"meshrelay/downstream/views"
)

// When the view of a client changes, the client keeps the history of its old view. So its cursors stay valid,
// and it gets only the difference. The largest group of clients of a view keeps the view, which changes its
// selection. Each other group gets a fork of the view.

// move gives a client another selection, or the one that it has.
type move struct {
	from *view
	to   views.Selection
	who  viewer
	// done gives the client its view, or nil for none. It returns false when the client has left and has
	// released its view. The caller holds views.mu.
	done func(*view) bool
}

// moveGroup has the moves from one view to one selection.
type moveGroup struct {
	from    *view
	to      views.Selection
	members []move
	view    *view // the view for the members
}

// move gives clients their new views, and updates all views. If no client gets another selection, move changes
// nothing and returns false. The caller holds mu.
func (vs *viewSet) move(moves []move, now time.Time) bool {
	groups := groupMoves(moves)
	if !vs.assign(groups) {
		for _, m := range moves {
			m.done(m.from)
		}
		return false
	}
	for _, p := range groups {
		for _, t := range p.members {
			if !t.done(p.view) || p.view == p.from {
				continue
			}
			if p.view != nil {
				vs.join(p.view, t.who)
			}
			vs.leave(p.from, t.who)
		}
		if p.view != nil && p.view.clients == 0 {
			vs.drop(p.view)
		}
	}
	vs.bring(true, nil, now)
	for form := range snapshot.Forms {
		vs.dropEncoded(vs.base, form) // pages that are no longer shared with other views
	}
	return true
}

// assign sets the view of each group, or leaves it nil when there are too many views. It reports whether any
// group gets another selection.
func (vs *viewSet) assign(groups []*moveGroup) (changed bool) {
	taken := map[*view]bool{vs.base: true}
	for _, p := range groups {
		if p.to == p.from.selection {
			p.view, taken[p.from] = p.from, true
		}
	}
	var becoming []*moveGroup
	for _, p := range groups {
		if p.view == nil && !taken[p.from] {
			p.view, taken[p.from] = p.from, true
			becoming = append(becoming, p)
			if _, other := vs.forks[p.view]; other {
				delete(vs.forks, p.view)
			} else {
				delete(vs.derived, p.view.selection)
			}
		}
		changed = changed || p.to != p.from.selection
	}
	for _, p := range becoming {
		p.view.selection = p.to
		vs.put(p.view)
	}
	for _, p := range groups {
		if p.view == nil && !vs.full() {
			p.view = &view{selection: p.to} // with the content and the history of the view that the clients leave
			p.from.each(func(t subscription.Type, c *snapshot.Collection) { p.view.byType.Store(t, c.Fork()) })
			vs.copies.Add(1)
			vs.put(p.view)
		}
	}
	return changed
}

// put adds a derived view.
func (vs *viewSet) put(v *view) {
	if v.selection == (views.Selection{}) || vs.derived[v.selection] != nil {
		vs.forks[v] = struct{}{}
		return
	}
	vs.derived[v.selection] = v
}

// groupMoves groups moves by view and selection, the largest groups first.
func groupMoves(moves []move) []*moveGroup {
	type group struct {
		from *view
		to   views.Selection
	}
	byGroup := map[group]*moveGroup{}
	var all []*moveGroup
	for _, t := range moves {
		g := group{t.from, t.to}
		if byGroup[g] == nil {
			byGroup[g] = &moveGroup{from: t.from, to: t.to}
			all = append(all, byGroup[g])
		}
		byGroup[g].members = append(byGroup[g].members, t)
	}
	slices.SortStableFunc(all, func(a, b *moveGroup) int { return cmp.Compare(len(b.members), len(a.members)) })
	return all
}
