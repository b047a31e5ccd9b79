package intake

import (
	"slices"
	"strings"
	"time"

	"meshrelay/mirror"
	"meshrelay/state"
	"meshrelay/upstreams/intake/records"
)

const (
	// contactGrain is the precision with which the disk has the last contact.
	contactGrain = time.Minute
	// maxGone is how many removed keys are remembered while the disk can not be written, in
	// addition to twice the number of resources.
	maxGone   = 20_000
	maxCauses = 4
)

// journal has the changes of served resources that are not on disk yet.
type journal struct {
	// dirty are the changed keys with the origins of their content.
	dirty map[mirror.Key]records.Origin // empty for a removed key
	// whole is set when there were too many changes to remember: the next write then contains all served
	// resources, and the store removes all others. tookWhole is set if the newest write was such a write.
	whole, tookWhole bool
	// causes are the causes of the changes, except the source. tookCauses are those of the newest write.
	causes, tookCauses []string
	// reported is the last contact on disk. It is zero if the next write must contain it.
	reported time.Time
}

// because notes a cause of the next changes, if it is not the source.
func (j *journal) because(cause string) {
	if len(j.causes) < maxCauses && !slices.Contains(j.causes, cause) {
		j.causes = append(j.causes, cause)
	}
}

// dirty marks a key as changed.
func (in *Intake) dirty(key mirror.Key, o records.Origin) {
	if !in.cfg.keeps {
		return
	}
	if before, is := in.journal.dirty[key]; is {
		o.Endpoints = o.Endpoints && before.Endpoints
	}
	in.journal.dirty[key] = o
}

// boundJournal limits the remembered changes while the disk can not be written.
func (in *Intake) boundJournal() {
	if len(in.journal.dirty) <= 2*in.gate.Size()+maxGone {
		return
	}
	in.journal.whole = true
	for key := range in.journal.dirty {
		if in.served.Get(key) == nil {
			delete(in.journal.dirty, key)
		}
	}
}

// MarkAll marks all that is served as changed, because the disk has lost it.
func (in *Intake) MarkAll() {
	origins := in.records.Origins()
	in.eachServed(func(r *mirror.Resource) {
		if _, newer := in.journal.dirty[r.Key()]; !newer {
			in.journal.dirty[r.Key()] = origins[r.Key()]
		}
	})
}

// TakeChanges returns and forgets the changes to write to disk, sorted by key.
func (in *Intake) TakeChanges(now time.Time) ([]state.Change, state.Meta) {
	in.advance(now)
	j := &in.journal
	if j.tookWhole = j.whole; j.whole {
		in.MarkAll()
	}
	j.whole = false
	changes := make([]state.Change, 0, len(j.dirty))
	for key, o := range j.dirty {
		c := state.Change{Key: key, Endpoints: o.Endpoints}
		if r := in.served.Get(key); r != nil {
			saved := in.records.Saved(o, r)
			c.Record = &saved
		}
		changes = append(changes, c)
	}
	slices.SortFunc(changes, func(a, b state.Change) int { return mirror.CompareKeys(a.Key, b.Key) })
	j.dirty = map[mirror.Key]records.Origin{}
	meta := in.meta(len(changes) > 0)
	meta.Whole = j.tookWhole
	meta.By = strings.Join(j.causes, ", ")
	j.causes, j.tookCauses = nil, j.causes
	return changes, meta
}

// meta returns the Meta to write. changes is set if there are changes to write with it. Without changes, meta
// only renews the time of the contact, if expireAfter counts from it.
func (in *Intake) meta(changes bool) state.Meta {
	c, held := in.gate.Contact(), in.gate.HoldClock()
	last, lasts := c.Since, c.Has || c.Lasted
	if c.Has {
		last = in.now
		expire := in.gate.Staleness().ExpireAfter.D()
		if told := in.journal.reported; !told.IsZero() && !changes && (expire == 0 || last.Sub(told) < min(contactGrain, expire/10)) {
			last = told
		}
	}
	if !last.IsZero() {
		in.journal.reported = last
	}
	if h, is := in.gate.Hold(); is && h.Runs {
		held.Ran = held.Ran.Truncate(max(min(contactGrain, h.For/10), time.Second))
	}
	return state.Meta{
		Synced: in.gate.Synced, LastContact: last, InContact: lasts, Frozen: in.frozen, ServeWithout: in.without, Fingerprint: in.records.Rules().Version(),
		HeldSince: held.Since, HeldRan: held.Ran, Held: held.N, Identity: in.identity,
		RootNamespace: in.records.Roots(), Server: in.records.Server(),
	}
}

// GiveBack takes back changes that could not be written. The next TakeChanges returns them again.
func (in *Intake) GiveBack(changes []state.Change) {
	j := &in.journal
	j.whole = j.whole || j.tookWhole
	later := j.causes
	j.causes = j.tookCauses
	for _, cause := range later {
		j.because(cause)
	}
	for _, c := range changes {
		newer, is := j.dirty[c.Key]
		if !is {
			newer = records.Origin{Endpoints: true, Disk: c.Record}
		}
		newer.Endpoints = newer.Endpoints && c.Endpoints
		j.dirty[c.Key] = newer
	}
	in.boundJournal()
}
