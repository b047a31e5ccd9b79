package upstreams

import (
	"slices"
	"strings"
	"time"

	"meshrelay/mirror"
	"meshrelay/state"
)

// restore puts what was kept on disk into force. It is called before anything else.
func (g *gate) restore(saved state.Saved) {
	records := saved.Records
	g.mu.Lock()
	defer g.mu.Unlock()
	g.frozen, g.synced = saved.Meta.Frozen, saved.Meta.Synced
	g.before = heldBefore{since: saved.Meta.HeldSince, ran: saved.Meta.HeldRan, held: saved.Meta.Held}
	g.stale.restore(saved.Meta.LastContact, time.Now(), g.frozen == nil)
	gone := map[mirror.Kind]int{}
	for i := range records {
		key := records[i].Resource.Key()
		if g.stale.withholds(key.Kind) {
			g.stale.count(key, true)
			if g.keeps {
				g.passed[key] = nil
			}
			gone[key.Kind]++
			continue
		}
		shown := g.stale.annotated(key, records[i].Resource)
		if g.store.Get(key) == nil {
			g.tallies.add(key.Kind, false)
		}
		g.store.Put(shown)
	}
	if len(gone) > 0 {
		g.because("staleness")
		g.sayExpired(gone)
	}
	if g.synced {
		g.store.SetSynced()
	}
}

// forgetKept has keys removed from the disk that were not put into force.
func (g *gate) forgetKept(keys []mirror.Key) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, key := range keys {
		g.passed[key] = nil
	}
}

// setFingerprint says what settings what is held depends on, from now on.
func (g *gate) setFingerprint(f string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.fingerprint = f
	g.reported = time.Time{}
}

// maxGone is how many keys that are gone are remembered while nothing can be written, besides
// twice as many as there are resources.
const maxGone = 20_000

// forgetGone bounds what is remembered while the disk is full.
func (g *gate) forgetGone() {
	if len(g.passed) <= 2*g.tallies.all.size+maxGone {
		return
	}
	g.whole = true
	for key, r := range g.passed {
		if r == nil {
			delete(g.passed, key)
		}
	}
}

// TakeChanges implements state.Source.
func (g *gate) TakeChanges() ([]state.Change, state.Meta) {
	g.mu.Lock()
	defer g.mu.Unlock()
	whole := false
	if g.whole {
		whole = true
		g.mu.Unlock()
		g.MarkAll()
		g.mu.Lock() // what has become too much meanwhile is in what that has found
	}
	g.whole, g.tookWhole = false, whole
	changes := make([]state.Change, 0, len(g.passed))
	for key, r := range g.passed {
		changes = append(changes, state.Change{Key: key, Record: r})
	}
	if len(g.passed) > 0 {
		g.passed = map[mirror.Key]*state.Record{}
	}
	now := time.Now()
	last := g.stale.since
	if g.stale.inContact {
		last = now
		if last.Sub(g.reported) < g.stale.grain() {
			last = g.reported
		}
	}
	if !last.IsZero() {
		g.reported = last
	}
	meta := state.Meta{Whole: whole, Synced: g.synced, LastContact: last, HeldSince: g.before.since, HeldRan: g.before.ran, Held: g.before.held, Frozen: g.frozen, ServeWithout: g.without, Fingerprint: g.fingerprint}
	if g.held != nil {
		meta.HeldSince, meta.HeldRan, meta.Held = g.held.since, g.held.elapsed(now), len(g.leaving)
		if !g.held.running.IsZero() {
			meta.HeldRan = meta.HeldRan.Truncate(max(min(contactGrain, g.guard.HoldFor.D()/10), time.Second))
		}
	}
	meta.By = strings.Join(g.by, ", ")
	g.by, g.tookBy = nil, g.by
	return changes, meta
}

// maxBy bounds the reasons of one revision.
const maxBy = 4

// because notes what the changes from here on are due to, besides the source's own word.
func (g *gate) because(of string) {
	if len(g.by) < maxBy && !slices.Contains(g.by, of) {
		g.by = append(g.by, of)
	}
}

// MarkAll has everything that is served kept anew, because it is not on disk any more.
func (g *gate) MarkAll() {
	g.mu.Lock()
	source := g.source
	g.mu.Unlock()
	var said []state.Record
	if source != nil {
		said = source.kept() // it locks the source, which comes before the gate
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, kind := range g.store.Kinds() {
		for _, r := range g.store.List(kind, "") {
			if _, newer := g.passed[r.Key()]; !newer {
				g.passed[r.Key()] = &state.Record{Resource: g.stale.plain(g.store, r.Key())}
			}
		}
	}
	for i := range said {
		// Of what is served against what the source says, only the content is known.
		if r := g.passed[said[i].Resource.Key()]; r != nil && r.Resource.Equal(said[i].Resource) {
			*r = said[i]
		}
	}
}

// follows says which source is behind the gate now.
func (g *gate) follows(s oldSource) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.source = s
}

// GiveBack implements state.Source.
func (g *gate) GiveBack(changes []state.Change) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.whole = g.whole || g.tookWhole
	later := g.by
	g.by = g.tookBy
	for _, of := range later {
		g.because(of)
	}
	defer g.forgetGone()
	for _, c := range changes {
		if _, newer := g.passed[c.Key]; !newer {
			g.passed[c.Key] = c.Record
		}
	}
}
