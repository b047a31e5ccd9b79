package intake

import (
	"slices"
	"strings"
	"time"

	"meshrelay/mirror"
	"meshrelay/state"
)

const (
	// contactGrain is how exactly the disk has times that count, while they pass.
	contactGrain = time.Minute
	// maxGone is how many keys that are gone are remembered while nothing can be written, in
	// addition to twice as many as there are resources.
	maxGone   = 20_000
	maxCauses = 4
)

// journal is what is served and not on disk yet.
type journal struct {
	// dirty are the keys, each with what it is served of.
	dirty map[mirror.Key]origin
	// whole: there were too many to remember, so that all that is served has to be written, and
	// nothing else. tookWhole: the last to take changes was told so.
	whole, tookWhole bool
	// causes are those of the changes, other than the source; tookCauses were taken last.
	causes, tookCauses []string
	// reported is the last contact, as it was told last. It is zero to have the next one told.
	reported time.Time
}

// origin is what a key is served of: a record, or what a disk had. It is empty for what is gone.
type origin struct {
	record *record
	scope  *scope
	saved  *state.Record
}

// because notes a cause, other than the source, of the changes from here on.
func (j *journal) because(cause string) {
	if len(j.causes) < maxCauses && !slices.Contains(j.causes, cause) {
		j.causes = append(j.causes, cause)
	}
}

// dirty notes that a key is served of something else than before.
func (in *Intake) dirty(key mirror.Key, o origin) {
	if in.keeps {
		in.journal.dirty[key] = o
	}
}

// recordOf returns the record to write for a key, nil when the key is gone.
func (in *Intake) recordOf(key mirror.Key, o origin) *state.Record {
	r := in.stale.plain(in.served, key)
	if r == nil {
		return nil
	}
	out := &state.Record{Resource: r}
	switch {
	case o.record != nil && o.record.resource.Equal(r):
		*out = in.rules.kept(o.scope, o.record)
	case o.saved != nil && o.saved.Resource.Equal(r):
		*out = *o.saved
	}
	return out
}

// boundJournal bounds what is remembered while the disk is full.
func (in *Intake) boundJournal() {
	if len(in.journal.dirty) <= 2*in.tallies.all.size+maxGone {
		return
	}
	in.journal.whole = true
	for key := range in.journal.dirty {
		if in.served.Get(key) == nil {
			delete(in.journal.dirty, key)
		}
	}
}

// MarkAll has everything that is served written anew, because it is not on disk any more.
func (in *Intake) MarkAll() {
	origins := make(map[mirror.Key]origin, in.resources)
	in.all(func(sc *scope, _ string, rec *record) {
		if rec.resource != nil {
			// Only the content of a served resource is known, not whether the source has it.
			origins[rec.resource.Key()] = origin{record: rec, scope: sc}
		}
	})
	in.eachServed(func(r *mirror.Resource) {
		if _, newer := in.journal.dirty[r.Key()]; !newer {
			in.journal.dirty[r.Key()] = origins[r.Key()]
		}
	})
}

// TakeChanges hands over the changes to write to disk, all as of now, sorted by key.
func (in *Intake) TakeChanges(now time.Time) ([]state.Change, state.Meta) {
	in.now = now
	j := &in.journal
	whole := j.whole
	if whole {
		in.MarkAll()
	}
	j.whole, j.tookWhole = false, whole
	changes := make([]state.Change, 0, len(j.dirty))
	for key, o := range j.dirty {
		changes = append(changes, state.Change{Key: key, Record: in.recordOf(key, o)})
	}
	slices.SortFunc(changes, func(a, b state.Change) int { return mirror.CompareKeys(a.Key, b.Key) })
	if len(j.dirty) > 0 {
		j.dirty = map[mirror.Key]origin{}
	}
	meta := in.meta(len(changes) > 0)
	meta.Whole = whole
	meta.By = strings.Join(j.causes, ", ")
	j.causes, j.tookCauses = nil, j.causes
	return changes, meta
}

// meta returns the Meta to write with changes, if there are any. The time of the contact goes with them.
// It is a reason to write only where a rule counts from it.
func (in *Intake) meta(changes bool) state.Meta {
	last, lasts := in.stale.since, in.stale.inContact || in.stale.lasted
	if in.stale.inContact {
		last = in.now
		grain, counts := in.stale.grain()
		if told := in.journal.reported; !told.IsZero() && !changes && (!counts || last.Sub(told) < grain) {
			last = told
		}
	}
	if !last.IsZero() {
		in.journal.reported = last
	}
	meta := state.Meta{
		Synced: in.synced, LastContact: last, InContact: lasts, Frozen: in.frozen, ServeWithout: in.without, Fingerprint: in.rules.Version(),
		HeldSince: in.before.since, HeldRan: in.before.ran, Held: in.before.of, Identity: in.identity,
	}
	if in.held != nil {
		meta.HeldSince, meta.HeldRan, meta.Held = in.held.since, in.held.elapsed(in.now), len(in.leaving)
		if !in.held.running.IsZero() {
			meta.HeldRan = meta.HeldRan.Truncate(max(min(contactGrain, in.guard.HoldFor.D()/10), time.Second))
		}
	}
	return meta
}

// GiveBack takes back changes that could not be written: they are among the next.
func (in *Intake) GiveBack(changes []state.Change) {
	j := &in.journal
	j.whole = j.whole || j.tookWhole
	later := j.causes
	j.causes = j.tookCauses
	for _, cause := range later {
		j.because(cause)
	}
	for _, c := range changes {
		if _, newer := j.dirty[c.Key]; !newer {
			j.dirty[c.Key] = origin{saved: c.Record}
		}
	}
	in.boundJournal()
}
