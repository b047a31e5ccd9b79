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
	"meshrelay/internal/panics"
	"meshrelay/mirror"
)

// openBatch is how many keys open reads at once. A list of all keys would take a third of the memory of the
// resources.
const openBatch = 8192

// open fills the views when the server begins to serve clients.
func (vs *viewSet) open(now time.Time) {
	vs.mu.Lock()
	defer vs.mu.Unlock()
	vs.started.Store(true)
	derived := vs.filled(true, nil)
	// Make the next batch while this one is read.
	batches := make(chan itemsByType)
	go func() {
		defer close(batches)
		for _, kind := range vs.resources.SourceKinds() {
			for keys := range slices.Chunk(vs.resources.Keys(kind), openBatch) {
				byType := itemsByType{}
				for _, key := range keys {
					byType.add(key.FullName(), key)
				}
				batches <- byType
			}
		}
	}()
	for byType := range batches {
		vs.applyAll(byType, derived, now) // no updates for removed items: the views were empty
	}
}

// try runs f. ok is false after a panic, which try reports.
func (vs *viewSet) try(item string, f func() bool) (result, ok bool) {
	p := panics.Try(func() { result = f() })
	if p != nil {
		vs.panicked(item, p)
	}
	return result, p == nil
}

// update updates all views with the present content of some keys, or of all. It reports whether any view has
// changed.
func (vs *viewSet) update(full bool, keys map[mirror.Key]struct{}, changedAt time.Time) bool {
	vs.mu.Lock()
	defer vs.mu.Unlock()
	return vs.bring(full, keys, changedAt)
}

// bring is update for a caller that holds mu.
func (vs *viewSet) bring(full bool, keys map[mirror.Key]struct{}, changedAt time.Time) (changed bool) {
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

// filled returns the derived views that have content. It adds the keys to what the other views have missed.
func (vs *viewSet) filled(full bool, keys map[mirror.Key]struct{}) []*view {
	return slices.DeleteFunc(vs.copied(), func(v *view) bool {
		if v.filling != nil {
			v.filling.miss(full, keys)
		}
		return v.filling != nil
	})
}

// applyAll updates the base view and then the derived ones with lists of items. It reports whether any view
// has changed. Items whose update panics stay unchanged.
func (vs *viewSet) applyAll(byType itemsByType, derived []*view, changedAt time.Time) (changed bool) {
	for t, list := range byType {
		differs, ok := vs.try("", func() bool { return vs.apply(t, list, derived, changedAt) })
		changed = differs || changed
		if ok {
			continue
		}
		for _, one := range list.all {
			vs.try(t.String()+" "+one.name, func() bool { return vs.apply(t, &items{[]item{one}}, derived, changedAt) })
		}
		changed = true // a panic hides whether a view has changed
	}
	return changed
}

// apply updates the base view and then the derived ones with a list of items.
func (vs *viewSet) apply(t subscription.Type, list *items, derived []*view, changedAt time.Time) bool {
	list.sort()
	updates := make([]snapshot.Update, len(list.all))
	saw := func(r *mirror.Resource) { vs.note(r) }
	list.read(&reader{vs.resources, "", nil, saw}, updates)
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
		list.read(&reader{vs.resources, v.selection.Cluster, v.selection.Accepting(vs.note), saw}, updates)
		changed = v.follow(t, basis, updates, changedAt) || changed
	}
	return changed
}

// sort sorts items by name, and removes duplicates.
func (l *items) sort() {
	slices.SortFunc(l.all, func(a, b item) int { return cmp.Compare(a.name, b.name) })
	l.all = slices.CompactFunc(l.all, func(a, b item) bool { return a.name == b.name })
}

// minPart is the smallest number of items for a goroutine that reads.
const minPart = 1024

// read puts the resources of the items into updates. It uses all CPUs for a long list.
func (l *items) read(from *reader, updates []snapshot.Update) {
	part := max(len(l.all)/runtime.GOMAXPROCS(0)+1, minPart)
	if len(l.all) <= part {
		readPart(from, l.all, updates)
		return
	}
	var reading sync.WaitGroup
	var panicked atomic.Pointer[panics.Panic]
	for first := 0; first < len(l.all); first += part {
		end := min(first+part, len(l.all))
		reading.Go(func() {
			if p := panics.Try(func() { readPart(from, l.all[first:end], updates[first:end]) }); p != nil {
				panicked.Store(p)
			}
		})
	}
	reading.Wait()
	if p := panicked.Load(); p != nil {
		panic(p) // in the caller's goroutine
	}
}

func readPart(from *reader, all []item, updates []snapshot.Update) {
	for i, one := range all {
		updates[i] = snapshot.Update{Name: one.name}
		if r := from.get(one.key); r != nil { // not an Item that holds a nil *mirror.Resource
			updates[i].Item = r
		}
	}
}

// collection returns the base view's collection of a type.
func (vs *viewSet) collection(t subscription.Type) *snapshot.Collection {
	c := vs.base.find(t)
	if c == nil {
		c = snapshot.New()
		vs.base.byType.Store(t, c)
	}
	return c
}

// follow updates a derived view with items of a type. If all items are removed and the view has no collection
// of the type, it makes none.
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

// affected returns the items of the keys, or of all keys if all is set.
func (vs *viewSet) affected(all bool, keys map[mirror.Key]struct{}) itemsByType {
	byType := itemsByType{}
	for key := range keys {
		byType.add(key.FullName(), key)
	}
	if all {
		for _, kind := range vs.resources.SourceKinds() {
			for _, key := range vs.resources.Keys(kind) {
				byType.add(key.FullName(), key)
			}
		}
	}
	return byType
}

// addPresent adds the items that the views have: their resources may be gone.
func (vs *viewSet) addPresent(byType itemsByType) {
	seen := map[*snapshot.Page]bool{} // views share pages
	for _, v := range append(vs.copied(), vs.base) {
		v.each(func(_ subscription.Type, c *snapshot.Collection) {
			for _, p := range c.Current().Pages {
				if seen[p] {
					continue
				}
				seen[p] = true
				for _, e := range p.Entries {
					if r, ok := e.Item.(*mirror.Resource); ok {
						byType.add(r.FullName(), r.Key())
					}
				}
			}
		})
	}
}
