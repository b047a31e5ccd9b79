package upstreams

import (
	"fmt"
	"time"

	"meshrelay/mirror"
	"meshrelay/state"
)

// differs notes whether a frozen source says something else than what is served.
func (g *gate) differs(key mirror.Key, r *mirror.Resource) {
	if have := g.stale.plain(g.store, key); have.Equal(r) {
		delete(g.waiting, key)
	} else {
		g.waiting[key] = struct{}{}
	}
}

// freeze keeps what is served as it is.
func (g *gate) freeze() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.frozen != nil {
		return fmt.Errorf("%w: upstream %s is frozen already, since %s", ErrNotPossible, g.name, g.frozen.Since.UTC().Format(time.RFC3339))
	}
	g.setFrozen(&state.Frozen{Since: time.Now().UTC()})
	return nil
}

func (g *gate) setFrozen(f *state.Frozen) {
	g.frozen = f
	for key := range g.leaving {
		g.waiting[key] = struct{}{}
	}
	clear(g.leaving)
	g.held = nil
	g.reported = time.Time{} // so that it is kept on disk
	g.stir()
}

// thaw ends a freeze, by which the source then says all that it has. The caller is between
// restate and finish.
func (g *gate) thaw() error {
	if g.frozen == nil {
		return fmt.Errorf("%w: upstream %s is not frozen", ErrNotPossible, g.name)
	}
	g.frozen = nil
	g.because("unfreeze")
	g.reported = time.Time{}
	clear(g.waiting)
	g.stir() // what is stale may have to go now
	return nil
}

// rollBack makes what is served a former state, and keeps it so.
func (g *gate) rollBack(revision uint64, records []state.Record) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.frozen == nil {
		g.setFrozen(nil)
	}
	g.frozen = &state.Frozen{Since: time.Now().UTC(), Revision: revision}
	g.reported = time.Time{}
	present := map[mirror.Key]struct{}{}
	for _, kind := range g.store.Kinds() {
		for _, r := range g.store.List(kind, "") {
			present[r.Key()] = struct{}{}
		}
	}
	for i := range records {
		key := records[i].Resource.Key()
		if _, had := present[key]; !had {
			g.outdated[key] = struct{}{} // unless the source says it
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
	g.added = 0
	g.because(fmt.Sprintf("rollback to %d", revision))
	g.log.Warn("rolled back by an operator, and frozen until unfrozen", "revision", revision, "resources", len(records))
}
