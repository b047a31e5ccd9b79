package upstreams

import (
	"fmt"
	"time"

	"meshrelay/mirror"
	"meshrelay/state"
)

// differs notes whether a frozen source has something else than what is served.
func (g *gate) differs(key mirror.Key, r *mirror.Resource) {
	if have := g.stale.plain(g.store, key); have.Equal(r) {
		delete(g.waiting, key)
	} else {
		g.waiting[key] = struct{}{}
	}
}

// freeze keeps what is served as it is.
func (g *gate) freeze(o Order) (Effect, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.frozen != nil {
		return Effect{}, fmt.Errorf("%w: upstream %s is frozen already, since %s: \"relay unfreeze %s\" ends that", ErrNotPossible, g.name, g.frozen.Since.UTC().Format(time.RFC3339), g.name)
	}
	now := time.Now().UTC()
	f := &state.Frozen{Since: now, Reason: o.Reason}
	if o.For > 0 {
		f.Until = now.Add(o.For)
	}
	if !o.DryRun {
		g.setFrozen(f)
	}
	return Effect{Kept: g.tallies.all.size}, nil
}

func (g *gate) setFrozen(f *state.Frozen) {
	g.frozen = f
	for key := range g.leaving {
		g.waiting[key] = struct{}{}
		g.stay(key)
	}
	g.held, g.lookedAt = nil, nil
	g.reported = time.Time{} // so that it is kept on disk
	g.stir()
}

// canThaw returns why a freeze is not to end now, or nil.
func (g *gate) canThaw(o Order) error {
	switch {
	case g.frozen == nil:
		return fmt.Errorf("%w: upstream %s is not frozen", ErrNotPossible, g.name)
	case !o.Force && !g.stale.inContact:
		return fmt.Errorf("%w: upstream %s is out of contact, so that what it has now is not known: wait for it, or use --force to follow what it had last", ErrNotPossible, g.name)
	}
	return nil
}

// thawAtEnd is thaw for a freeze whose time is over, unless it is another one meanwhile or the
// contact is lost.
func (g *gate) thawAtEnd(f *state.Frozen) error {
	if g.frozen != f || !g.stale.inContact {
		return fmt.Errorf("%w: upstream %s is not frozen as it was", ErrNotPossible, g.name)
	}
	g.log.Info("unfreezing, the time of the freeze is over", "since", f.Since.UTC().Format(time.RFC3339))
	return g.thaw("end of the freeze")
}

// thaw ends a freeze, by which the source then tells all that it has. of is what the revision
// that comes of it is put down to. The caller is between restate and finish.
func (g *gate) thaw(of string) error {
	if g.frozen == nil {
		return fmt.Errorf("%w: upstream %s is not frozen", ErrNotPossible, g.name)
	}
	g.frozen = nil
	g.because(of)
	g.reported = time.Time{}
	clear(g.waiting)
	g.stir() // what is stale may have to go now
	return nil
}

// unfreezing returns what the end of the freeze will change. has is what the source has.
func (g *gate) unfreezing(o Order, has []state.Record) (Effect, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.canThaw(o); err != nil {
		return Effect{}, err
	}
	var e Effect
	gone := map[mirror.Kind]int{}
	byKey := make(map[mirror.Key]bool, len(has))
	for i := range has {
		byKey[has[i].Resource.Key()] = true
	}
	judged := 0
	for key := range g.waiting {
		e.count(key, g.store.Get(key) != nil, byKey[key])
		if !byKey[key] && !g.outdated[key] { // what other rules leave out is meant
			gone[key.Kind]++
			judged++
		}
	}
	if judged > 0 && g.tooManyOf(gone, time.Now()) != "" {
		e.Held = judged
	}
	e.Kept = g.tallies.all.size - e.Changed - e.Removed
	e.finish()
	return e, nil
}

// rollBack makes what is served a former state, and keeps it so.
func (g *gate) rollBack(o Order, records []state.Record) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.frozen == nil {
		g.setFrozen(nil)
	}
	g.frozen = &state.Frozen{Since: time.Now().UTC(), Revision: o.To, Reason: o.Reason}
	g.reported = time.Time{}
	present := g.present()
	for i := range records {
		key := records[i].Resource.Key()
		if _, had := present[key]; !had {
			g.outdated[key] = false // unless the source has it
		}
		delete(present, key)
		g.pass(key, records[i])
	}
	for key := range present {
		g.drop(key)
		if g.keeps {
			g.passed[key] = nil
		}
	}
	g.tallies.settle()
	g.because(withReason(fmt.Sprintf("rollback to %d", o.To), o.Reason))
	g.log.Warn("rolled back by an operator, frozen until unfrozen", "revision", o.To, "resources", len(records))
}

// rollingBack returns what a rollback to records will change.
func (g *gate) rollingBack(records []state.Record) (e Effect) {
	g.mu.Lock()
	defer g.mu.Unlock()
	present := g.present()
	for i := range records {
		key := records[i].Resource.Key()
		_, had := present[key]
		if !had || !g.stale.plain(g.store, key).Equal(records[i].Resource) {
			e.count(key, had, true)
		} else {
			e.Kept++
		}
		delete(present, key)
	}
	for key := range present {
		e.count(key, true, false)
	}
	e.finish()
	return e
}

// present returns the keys of what is served.
func (g *gate) present() map[mirror.Key]struct{} {
	keys := make(map[mirror.Key]struct{}, g.tallies.all.size)
	for _, kind := range g.store.Kinds() {
		for _, r := range g.store.List(kind, "") {
			keys[r.Key()] = struct{}{}
		}
	}
	return keys
}

// release carries out what is held, or the part of it that the order names.
func (g *gate) release(o Order) (Effect, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.held == nil {
		return Effect{}, fmt.Errorf("%w: upstream %s: nothing is held", ErrNotPossible, g.name)
	}
	if o.Hold != "" {
		if err := g.grown(o.Hold); err != nil {
			return Effect{}, err
		}
	}
	var e Effect
	for _, key := range g.departing() {
		if o.picks(key) {
			e.count(key, true, false)
		}
	}
	if e.Removed == 0 {
		return Effect{}, fmt.Errorf("%w: upstream %s: nothing that is held is of these kinds and namespaces: see \"relay held %s\"", ErrNotPossible, g.name, g.name)
	}
	e.Kept, e.Held = g.tallies.all.size-e.Removed, len(g.leaving)-e.Removed
	e.finish()
	if o.DryRun {
		return e, nil
	}
	g.because(withReason("release", o.Reason))
	g.log.Warn("held deletions released by an operator", "hold", g.holdID(), "removed", e.Removed, "held", e.Held)
	if e.Held == 0 {
		g.letGo()
		return e, nil
	}
	g.carry(func(key mirror.Key, _ departure) bool { return o.picks(key) })
	g.held.picked = true
	g.stir()
	return e, nil
}
