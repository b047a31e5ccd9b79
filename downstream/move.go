package downstream

import (
	"cmp"
	"slices"
	"time"
)

// A client that is to see something else keeps its view's past: so its cursors and what it
// has acknowledged stay true, and it is sent what differs, as after any change. The view
// itself becomes another, for most of its clients; those that are to see something else than
// these get a view that has forked from it.

// transfer is a client that is to see something else, or what it has seen.
type transfer struct {
	from *view
	to   variant
	who  viewer
	// settle gives the client its view; nil says that there is none to have. It is false when
	// the client has gone meanwhile: then it releases the view that it had by itself. The
	// caller holds views.mu.
	settle func(*view) bool
}

// party is the clients of one view that are to see the same.
type party struct {
	from    *view
	to      variant
	members []transfer
	view    *view // that they get
}

// move brings clients to what they are to see from now on. When it returns, all views are at
// the present content.
func (vs *views) move(transfers []transfer, now time.Time) {
	vs.mu.Lock()
	defer vs.mu.Unlock()
	vs.transfer(transfers, now)
}

// transfer is move for a caller that holds mu. It reports whether any client is to see
// something else; if not, the views are as they were.
func (vs *views) transfer(transfers []transfer, now time.Time) bool {
	parties := partiesOf(transfers)
	if !vs.assign(parties) {
		for _, t := range transfers {
			t.settle(t.from)
		}
		return false
	}
	for _, p := range parties {
		for _, t := range p.members {
			if !t.settle(p.view) || p.view == p.from {
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
	vs.dropEncoded(vs.base) // of pages that were shared, and are not any more
	return true
}

// assign settles which view each party gets, and reports whether any shows something else
// than before. A party gets none when there would be too many.
func (vs *views) assign(parties []*party) (changed bool) {
	taken := map[*view]bool{vs.base: true}
	for _, p := range parties {
		if p.to == p.from.variant {
			p.view, taken[p.from] = p.from, true
		}
	}
	var becoming []*party
	for _, p := range parties {
		if p.view == nil && !taken[p.from] {
			p.view, taken[p.from] = p.from, true
			becoming = append(becoming, p)
			if _, other := vs.others[p.view]; other {
				delete(vs.others, p.view)
			} else {
				delete(vs.derived, p.view.variant)
			}
		}
		changed = changed || p.to != p.from.variant
	}
	for _, p := range becoming {
		p.view.variant = p.to
		vs.put(p.view)
	}
	for _, p := range parties {
		if p.view == nil && !vs.full() {
			p.view = p.from.fork(p.to, p.from == vs.base)
			vs.copies.Add(1)
			vs.put(p.view)
		}
	}
	return changed
}

// put takes a derived view among those that there are.
func (vs *views) put(v *view) {
	if v.variant == (variant{}) || vs.derived[v.variant] != nil {
		vs.others[v] = struct{}{}
		return
	}
	vs.derived[v.variant] = v
}

// partiesOf groups transfers, the largest groups first.
func partiesOf(transfers []transfer) []*party {
	type group struct {
		from *view
		to   variant
	}
	byGroup := map[group]*party{}
	var all []*party
	for _, t := range transfers {
		g := group{t.from, t.to}
		if byGroup[g] == nil {
			byGroup[g] = &party{from: t.from, to: t.to}
			all = append(all, byGroup[g])
		}
		byGroup[g].members = append(byGroup[g].members, t)
	}
	slices.SortStableFunc(all, func(a, b *party) int { return cmp.Compare(len(b.members), len(a.members)) })
	return all
}

// fork returns a derived view that has v's content and past, and is to show another variant.
func (v *view) fork(to variant, isBase bool) *view {
	out := newView(to)
	for _, kind := range v.kinds() {
		c := v.find(kind)
		s := c.current.Load()
		same := s.successor(s.changedAt)
		same.pages = s.pages
		// The arrays behind them are c's to append to.
		same.log, same.removed = slices.Clip(same.log), slices.Clip(same.removed)
		fork := newDerivedCollection()
		fork.base, fork.own = c.base, c.own
		if isBase {
			fork.base = s.pages
		}
		fork.current.Store(same)
		out.byKind[kind] = fork
	}
	return out
}
