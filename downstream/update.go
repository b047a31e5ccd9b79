package downstream

import (
	"cmp"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"meshrelay/downstream/snapshot"
	"meshrelay/downstream/subscription"
	"meshrelay/mirror"
)

// openBatch is how many keys open reads at once. Lists of everything would for a moment take a third
// of what the resources do.
const openBatch = 8192

// open fills the views for the first time; before, nothing is pushed.
func (vs *views) open(now time.Time) {
	vs.mu.Lock()
	defer vs.mu.Unlock()
	vs.started.Store(true)
	derived := vs.filled(true, nil)
	// The next batch is looked for while this one is read.
	batches := make(chan map[subscription.Type]*items)
	go func() {
		defer close(batches)
		for _, kind := range vs.resources.SourceKinds() {
			for keys := range slices.Chunk(vs.resources.Keys(kind), openBatch) {
				byType := map[subscription.Type]*items{}
				for _, key := range keys {
					vs.generators.affected(key, byType)
				}
				batches <- byType
			}
		}
	}()
	for byType := range batches {
		vs.applyAll(byType, derived, now) // the views are empty: nothing else is in them
	}
}

// try runs f, and reports whether it came to its end: a panic is reported.
func (vs *views) try(item string, f func() bool) (result, ok bool) {
	defer func() {
		if p := mirror.Recovered(recover()); p != nil {
			vs.panicked(item, p)
			result, ok = false, false
		}
	}()
	return f(), true
}

// update updates all views with the content of keys or of everything, and reports any difference.
func (vs *views) update(full bool, keys map[mirror.Key]struct{}, changedAt time.Time) bool {
	vs.mu.Lock()
	defer vs.mu.Unlock()
	return vs.bring(full, keys, changedAt)
}

// bring is update for a caller that holds mu.
func (vs *views) bring(full bool, keys map[mirror.Key]struct{}, changedAt time.Time) (changed bool) {
	if !vs.started.Load() {
		return false
	}
	derived := vs.filled(full, keys)
	byType := vs.affected(full, keys)
	if full {
		vs.addPresent(byType)
	}
	return vs.applyAll(byType, derived, changedAt)
}

// filled returns the derived views that have content. Those that are being filled note what changes.
func (vs *views) filled(full bool, keys map[mirror.Key]struct{}) []*view {
	return slices.DeleteFunc(vs.copied(), func(v *view) bool {
		if v.filling != nil {
			v.filling.miss(full, keys)
		}
		return v.filling != nil
	})
}

// applyAll updates the base view, then derived ones, with lists of items, and reports any difference.
// Items that it panics over stay as they are.
func (vs *views) applyAll(byType map[subscription.Type]*items, derived []*view, changedAt time.Time) (changed bool) {
	for t, list := range byType {
		differs, ok := vs.try("", func() bool { return vs.apply(t, list, derived, changedAt) })
		changed = differs || changed
		if ok {
			continue
		}
		for _, ref := range list.refs {
			vs.try(t.String()+" "+ref.Name, func() bool { return vs.apply(t, &items{t, list.generator, []Ref{ref}}, derived, changedAt) })
		}
		changed = true // as far as one can tell
	}
	return changed
}

// apply updates the base view, then derived ones, with a list of items.
func (vs *views) apply(t subscription.Type, list *items, derived []*view, changedAt time.Time) bool {
	list.sort()
	updates := make([]snapshot.Update, len(list.refs))
	saw := func(r *mirror.Resource) { vs.note(r) }
	list.read(&reader{vs.resources, nil, saw}, updates)
	base := vs.collection(t)
	changed := base.Apply(updates, changedAt)
	if changed {
		vs.base.changes.Add(1)
	}
	if len(derived) == 0 {
		return changed
	}
	basis := base.Basis()
	for _, v := range derived {
		list.read(&reader{vs.resources, vs.accepts(v.variant, vs.note), saw}, updates)
		changed = v.follow(t, basis, updates, changedAt) || changed
	}
	return changed
}

// sort sorts items by name, each once.
func (l *items) sort() {
	slices.SortFunc(l.refs, func(a, b Ref) int {
		switch c := cmp.Compare(a.Name, b.Name); {
		case c != 0 || a.gone == b.gone:
			return c
		case a.gone:
			return 1
		}
		return -1
	})
	l.refs = slices.CompactFunc(l.refs, func(a, b Ref) bool { return a.Name == b.Name })
}

// minPart is how many items a goroutine reads at least.
const minPart = 1024

// read puts the items, as from shows them, into updates: as many at a time as there are CPUs.
func (l *items) read(from Reader, updates []snapshot.Update) {
	part := max(len(l.refs)/runtime.GOMAXPROCS(0)+1, minPart)
	if len(l.refs) <= part {
		l.readPart(from, l.refs, updates)
		return
	}
	var reading sync.WaitGroup
	var panicked atomic.Bool
	for first := 0; first < len(l.refs); first += part {
		end := min(first+part, len(l.refs))
		reading.Go(func() {
			defer func() {
				if recover() != nil {
					panicked.Store(true)
				}
			}()
			l.readPart(from, l.refs[first:end], updates[first:end])
		})
	}
	reading.Wait()
	if panicked.Load() {
		l.readPart(from, l.refs, updates) // where the caller can recover from it
	}
}

func (l *items) readPart(from Reader, refs []Ref, updates []snapshot.Update) {
	for i, ref := range refs {
		updates[i] = snapshot.Update{Name: ref.Name}
		if !ref.gone {
			updates[i].Item = l.generator.Item(from, l.of, ref)
		}
	}
}

// collection returns the base view's collection of a type.
func (vs *views) collection(t subscription.Type) *snapshot.Collection {
	c := vs.base.find(t)
	if c == nil {
		c = snapshot.New()
		vs.base.byType.Store(t, c)
	}
	return c
}

// follow updates a derived view with items of a type. It makes no collection for none.
func (v *view) follow(t subscription.Type, basis snapshot.Basis, updates []snapshot.Update, changedAt time.Time) bool {
	c := v.find(t)
	if c == nil {
		if snapshot.AllGone(updates) {
			return false
		}
		c = snapshot.NewDerived()
	}
	if !c.Follow(basis, updates, changedAt) {
		return false
	}
	v.byType.Store(t, c)
	v.changes.Add(1)
	return true
}

// affected returns, by type, the items that keys are part of, or that all keys are.
func (vs *views) affected(all bool, keys map[mirror.Key]struct{}) map[subscription.Type]*items {
	byType := map[subscription.Type]*items{}
	for key := range keys {
		vs.generators.affected(key, byType)
	}
	if all {
		for _, kind := range vs.resources.SourceKinds() {
			for _, key := range vs.resources.Keys(kind) {
				vs.generators.affected(key, byType)
			}
		}
	}
	return byType
}

// addPresent adds the items of all views as gone. Those that a key affects come first.
func (vs *views) addPresent(byType map[subscription.Type]*items) {
	seen := map[*snapshot.Page]bool{} // views share pages
	for _, v := range append(vs.copied(), vs.base) {
		v.each(func(t subscription.Type, c *snapshot.Collection) {
			list := byType[t]
			if list == nil {
				list = &items{of: t}
				byType[t] = list
			}
			for _, p := range c.Current().Pages {
				if seen[p] {
					continue
				}
				seen[p] = true
				for _, e := range p.Entries {
					list.refs = append(list.refs, Ref{Name: e.Item.FullName(), gone: true})
				}
			}
		})
	}
}
