package conflicts

import (
	"slices"
	"strings"
	"sync"
	"time"
	"unique"

	"meshrelay/mirror"
)

// Outcome is what the merge policy did with the copies of a key. It is a label of metrics.
type Outcome string

// The outcomes.
const (
	// Shadowed: one copy is served, and another is not.
	Shadowed Outcome = "shadowed"
	// United: every copy is part of the served resource.
	United Outcome = "united"
	// Rejected: no copy is served.
	Rejected Outcome = "rejected"
	// Unowned: no copy is served, because another upstream claims a host of it.
	Unowned Outcome = "unowned"
)

// KeyConflict is a key that several sources have a copy of, or whose copies are not served because another source claims
// a host of them.
type KeyConflict struct {
	mirror.Key
	// Winner is the source whose copy is served; empty when no copy is.
	Winner string `json:"winner,omitempty"`
	// United are the other sources whose copies are part of the served resource.
	United []string `json:"united,omitempty"`
	// Losers are the sources whose copies are not served, in order of priority.
	Losers []string `json:"losers,omitempty"`
	// Outcome summarizes the fields above.
	Outcome Outcome `json:"outcome"`
	// Reason is the reason of the mirror.Decision.
	Reason string `json:"reason,omitempty"`
	// Since is when one of the fields above last changed.
	Since time.Time `json:"since"`
}

// Keys holds the keys that several sources have a copy of. Its methods may be called from any goroutine.
type Keys struct {
	now func() time.Time

	// mu guards entries.
	mu      sync.Mutex
	entries map[mirror.Key]entry
}

// entry is the result for one key. Many keys have the same result: they share it.
type entry struct {
	result unique.Handle[result]
	since  int64 // Unix time in nanoseconds
}

// result is the decision over the copies of a key. Sources are joined by separator.
type result struct {
	winner, united, losers, reason string
	unowned                        bool
}

// separator joins names of sources, which do not contain it.
const separator = "\x00"

func (r result) outcome() Outcome {
	switch {
	case r.unowned:
		return Unowned
	case r.winner == "":
		return Rejected
	case r.losers == "":
		return United
	}
	return Shadowed
}

// NewKeys returns an empty Keys, with now as its clock.
func NewKeys(now func() time.Time) *Keys {
	return &Keys{now: now, entries: map[mirror.Key]entry{}}
}

// Update sets the copies of a key, in order of priority, and the decision over them. Less than
// two copies are no conflict, unless they are unowned.
func (l *Keys) Update(key mirror.Key, copies []mirror.Copy, d mirror.Decision, unowned bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(copies) < 2 && !unowned {
		delete(l.entries, key)
		return
	}
	r := resultOf(copies, d)
	r.unowned = unowned
	if next := unique.Make(r); l.entries[key].result != next {
		l.entries[key] = entry{next, l.now().UnixNano()}
	}
}

func resultOf(copies []mirror.Copy, d mirror.Decision) result {
	r := result{reason: d.Reason}
	var united, losers []string
	for i, c := range copies {
		switch {
		case d.Served == nil || d.Winner < 0:
			losers = append(losers, c.Source)
		case i == d.Winner:
			r.winner = c.Source
		case slices.Contains(d.United, i):
			united = append(united, c.Source)
		default:
			losers = append(losers, c.Source)
		}
	}
	r.united, r.losers = strings.Join(united, separator), strings.Join(losers, separator)
	return r
}

// List returns the conflicts of some kinds, of all when none is given, sorted by key.
func (l *Keys) List(kinds ...mirror.Kind) []KeyConflict {
	l.mu.Lock()
	out := make([]KeyConflict, 0, len(l.entries))
	for key, e := range l.entries {
		if len(kinds) > 0 && !slices.Contains(kinds, key.Kind) {
			continue
		}
		r := e.result.Value()
		out = append(out, KeyConflict{
			Key: key, Winner: r.winner, United: split(r.united), Losers: split(r.losers),
			Outcome: r.outcome(), Reason: r.reason, Since: time.Unix(0, e.since),
		})
	}
	l.mu.Unlock()
	slices.SortFunc(out, func(a, b KeyConflict) int { return mirror.CompareKeys(a.Key, b.Key) })
	return out
}

func split(joined string) []string {
	if joined == "" {
		return nil
	}
	return strings.Split(joined, separator)
}

// Len returns the number of conflicts.
func (l *Keys) Len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.entries)
}
