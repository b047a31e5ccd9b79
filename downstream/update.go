package downstream

import (
	"cmp"
	"context"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"meshrelay/mirror"
)

// touched is a key that may have changed, with what is served of it to everybody.
type touched struct {
	key mirror.Key
	update
}

// open fills the views for the first time; before, nothing is pushed.
func (vs *views) open(now time.Time) {
	vs.mu.Lock()
	vs.opening.Store(true)
	vs.released = true
	if _, ok := vs.try(mirror.Key{}, func() bool {
		for kind, list := range vs.everything() {
			vs.apply(kind, list, nil, now)
		}
		return true
	}); !ok {
		vs.bring(true, nil, now)
	}
	waiting := vs.copied()
	for _, v := range waiting {
		v.filling = newFilling()
	}
	vs.mu.Unlock()
	var fills errgroup.Group
	fills.SetLimit(maxFills)
	for _, v := range waiting {
		fills.Go(func() error { return vs.fillAtStart(v) })
	}
	if fills.Wait() != nil {
		vs.update(true, nil, now) // after a panic, one key after the other
	}
}

// fillAtStart fills a view that clients had before the server began to serve.
func (vs *views) fillAtStart(v *view) (err error) {
	f := v.filling
	defer close(f.done)
	if _, ok := vs.try(mirror.Key{}, func() bool { err = vs.fillRounds(context.Background(), v, f); return true }); !ok {
		vs.mu.Lock()
		defer vs.mu.Unlock()
		v.filling = nil
		return errFillFailed
	}
	return err
}

// try runs f, and reports whether it came to its end: a panic is told.
func (vs *views) try(key mirror.Key, f func() bool) (result, ok bool) {
	defer func() {
		if p := mirror.Recovered(recover()); p != nil {
			vs.panicked(key, p)
			result, ok = false, false
		}
	}()
	return f(), true
}

// update brings all views to the present content of keys, or of everything, and
// reports whether any differed.
func (vs *views) update(full bool, keys map[mirror.Key]struct{}, changedAt time.Time) bool {
	vs.mu.Lock()
	defer vs.mu.Unlock()
	return vs.bring(full, keys, changedAt)
}

// bring is update for a caller that holds mu. When it panics over some keys, those stay as
// they are, and the others are brought one by one.
func (vs *views) bring(full bool, keys map[mirror.Key]struct{}, changedAt time.Time) bool {
	if !vs.released {
		return false
	}
	if changed, ok := vs.try(mirror.Key{}, func() bool { return vs.bringAll(full, keys, changedAt) }); ok {
		return changed
	}
	if full {
		keys = map[mirror.Key]struct{}{}
		for _, all := range vs.everything() {
			for _, t := range all {
				keys[t.key] = struct{}{}
			}
		}
	}
	for key := range keys {
		vs.try(key, func() bool { return vs.bringAll(false, map[mirror.Key]struct{}{key: {}}, changedAt) })
	}
	return true // as far as one can tell
}

func (vs *views) bringAll(full bool, keys map[mirror.Key]struct{}, changedAt time.Time) bool {
	var byKind map[mirror.Kind][]touched
	if full {
		byKind = vs.everything()
	} else {
		byKind = map[mirror.Kind][]touched{}
		for key := range keys {
			byKind[key.Kind] = append(byKind[key.Kind], touched{key, update{key.FullName(), vs.configs.Get(key)}})
		}
	}
	changed := false
	derived := slices.DeleteFunc(vs.copied(), func(v *view) bool {
		if v.filling != nil {
			v.filling.miss(full, keys)
		}
		return v.filling != nil
	})
	for kind, list := range byKind {
		changed = vs.apply(kind, list, derived, changedAt) || changed
	}
	return changed
}

// apply brings the base view, and then derived ones, to the present content of a list of
// keys, and reports whether any differed.
func (vs *views) apply(kind mirror.Kind, list []touched, derived []*view, changedAt time.Time) bool {
	if vs.fault != nil {
		for _, t := range list {
			vs.fault(t.key)
		}
	}
	slices.SortFunc(list, func(a, b touched) int { return cmp.Compare(a.name, b.name) })
	updates := make([]update, len(list))
	for i, t := range list {
		updates[i] = t.update
		vs.note(t.res)
	}
	base := vs.collection(kind)
	first := base.last
	changed := base.apply(updates, changedAt)
	if changed {
		vs.base.changes.Add(1)
	}
	if len(derived) == 0 {
		return changed
	}
	bt := newBatch(base.current.Load().pages, updates, first)
	for _, v := range derived {
		accepts := vs.accepts(v.variant, vs.noteOrigin)
		for i, t := range list {
			updates[i].res = vs.configs.Select(t.key, accepts)
			vs.note(updates[i].res)
		}
		changed = v.follow(kind, bt, updates, changedAt) || changed
	}
	return changed
}

// collection returns the base view's collection of a kind.
func (vs *views) collection(kind mirror.Kind) *collection {
	c := vs.base.find(kind)
	if c == nil {
		c = newCollection()
		vs.base.set(kind, c)
	}
	return c
}

// follow brings a derived view's collection of a kind to updates. What it sees nothing of
// costs it nothing.
func (v *view) follow(kind mirror.Kind, bt *batch, updates []update, changedAt time.Time) bool {
	c := v.find(kind)
	if c == nil {
		if allNil(updates) {
			return false
		}
		c = newDerivedCollection()
	}
	if !c.follow(bt, updates, changedAt) {
		return false
	}
	v.set(kind, c)
	v.changes.Add(1)
	return true
}

// everything returns, by kind, all that is served or is in a view, and, when there are
// derived views, all that any source has.
func (vs *views) everything() map[mirror.Kind][]touched {
	byKind := map[mirror.Kind][]touched{}
	for _, kind := range vs.configs.Kinds() {
		list := vs.configs.List(kind, "")
		all := make([]touched, 0, len(list))
		for _, r := range list {
			all = append(all, touched{r.Key(), update{r.FullName(), r}})
		}
		byKind[kind] = all
	}
	gone := func(r *mirror.Resource) {
		kind := r.Kind()
		byKind[kind] = append(byKind[kind], touched{r.Key(), update{name: r.FullName()}})
	}
	for _, kind := range vs.base.kinds() {
		vs.base.snapshot(kind).each(gone)
	}
	if derived := vs.copied(); len(derived) > 0 {
		for _, kind := range vs.configs.SourceKinds() {
			for _, key := range vs.configs.Keys(kind) {
				byKind[kind] = append(byKind[kind], touched{key, update{name: key.FullName()}})
			}
		}
		for _, v := range derived {
			for _, kind := range v.kinds() {
				v.eachOwn(kind, func(p *page) {
					for i := range p.entries {
						gone(p.entries[i].res)
					}
				})
			}
		}
	}
	for kind, all := range byKind {
		slices.SortFunc(all, func(a, b touched) int {
			if c := cmp.Compare(a.name, b.name); c != 0 || (a.res == nil) == (b.res == nil) {
				return c
			}
			if b.res == nil {
				return -1 // what is served comes first of a name
			}
			return 1
		})
		byKind[kind] = slices.CompactFunc(all, func(a, b touched) bool { return a.name == b.name })
	}
	return byKind
}
