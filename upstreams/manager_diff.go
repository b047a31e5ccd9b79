package upstreams

import (
	"slices"

	"meshrelay/mirror"
	"meshrelay/state"
	"meshrelay/upstreams/intake"
)

// maxDifferences bounds the resources that Diff returns.
const maxDifferences = 500

// Difference is a resource before and after a revision. Either may be nil.
type Difference struct{ Before, After *mirror.Resource }

// Differences has the changes of a revision, sorted by key. More counts the differences beyond maxDifferences.
type Differences struct {
	Revision  state.Revision
	Resources []Difference
	More      int
	// Oldest is set when no older revision is kept: then every resource is an addition.
	Oldest bool
}

// Diff compares a revision of an upstream with the one before it. 0 is the newest revision. The oldest revision
// that is kept is compared with no resources.
func (m *Manager) Diff(name string, revision uint64) (d Differences, err error) {
	revisions, err := m.History(name)
	if err != nil {
		return d, err
	}
	i := 0
	if revision > 0 {
		i = slices.IndexFunc(revisions, func(r state.Revision) bool { return r.ID == revision })
	}
	switch {
	case i < 0:
		return d, intake.NotPossible("upstream %s: revision %d is not kept: \"relay history %s\" lists those that are", name, revision, name)
	case i >= len(revisions):
		return d, intake.NotPossible("upstream %s: no revisions are kept", name)
	}
	d.Revision = revisions[i]
	after, err := m.keeper.At(name, revisions[i].ID)
	if err != nil {
		return d, err
	}
	var before []state.Record
	if d.Oldest = i+1 == len(revisions); !d.Oldest {
		if before, err = m.keeper.At(name, revisions[i+1].ID); err != nil {
			return d, err
		}
	}
	d.Resources, d.More = differences(before, after)
	return d, nil
}

func differences(before, after []state.Record) (out []Difference, more int) {
	old := make(map[mirror.Key]*mirror.Resource, len(before))
	for _, r := range before {
		old[r.Resource.Key()] = r.Resource
	}
	for _, r := range after {
		key := r.Resource.Key()
		was := old[key]
		delete(old, key)
		if !was.Equal(r.Resource) {
			out = append(out, Difference{was, r.Resource})
		}
	}
	for _, was := range old {
		out = append(out, Difference{was, nil})
	}
	key := func(d Difference) mirror.Key {
		if d.After != nil {
			return d.After.Key()
		}
		return d.Before.Key()
	}
	slices.SortFunc(out, func(a, b Difference) int { return mirror.CompareKeys(key(a), key(b)) })
	if more = len(out) - maxDifferences; more <= 0 {
		return out, 0
	}
	return out[:maxDifferences], more
}
