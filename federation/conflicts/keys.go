package conflicts

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
	"unique"

	"meshrelay/mirror"
)

// Outcome is what has become of a key that several sources have. It is a label of
// metrics.
type Outcome string

// The outcomes of a contest.
const (
	// Shadowed: a copy is served, and another is not.
	Shadowed Outcome = "shadowed"
	// United: every copy is part of what is served.
	United Outcome = "united"
	// Rejected: nobody's copy is served.
	Rejected Outcome = "rejected"
)

// KeyConflict is a key of which more than one source has a copy.
type KeyConflict struct {
	mirror.Key
	// Winner is the source whose copy is served; empty when no copy is.
	Winner string `json:"winner,omitempty"`
	// United are the other sources whose copies are part of the served resource.
	United []string `json:"united,omitempty"`
	// Losers are the sources whose copies are not served, in order of priority.
	Losers []string `json:"losers,omitempty"`
	// Outcome sums up the fields above.
	Outcome Outcome `json:"outcome"`
	// Reason is that of the mirror.Verdict.
	Reason string `json:"reason,omitempty"`
	// Since is when the outcome, its reason or one of the sources last changed.
	Since time.Time `json:"since"`
}

// Keys keeps account of the keys of which more than one source has a copy. Its memory
// is proportional to their number. Its methods may be called from any goroutine.
type Keys struct {
	now func() time.Time

	// mu guards all below.
	mu      sync.Mutex
	entries map[mirror.Key]entry
	counts  map[mirror.Kind]map[Outcome]int
}

// entry is small: many keys have the same sources, and end in the same way.
type entry struct {
	result unique.Handle[result]
	since  int64 // Unix time in nanoseconds
}

// result is how a contest has ended. Sources are joined by separator.
type result struct{ winner, united, losers, reason string }

// separator is in no name of a source.
const separator = "\x00"

func (r result) outcome() Outcome {
	switch {
	case r.winner == "":
		return Rejected
	case r.losers == "":
		return United
	}
	return Shadowed
}

// NewKeys returns an empty Keys. It asks now for the time.
func NewKeys(now func() time.Time) *Keys {
	return &Keys{now: now, entries: map[mirror.Key]entry{}, counts: map[mirror.Kind]map[Outcome]int{}}
}

// Update tells of the copies of a key, in order of priority, and of what a mirror.Policy
// made of them. It is called whenever a copy may have changed. With less than two copies
// there is no contest.
func (l *Keys) Update(key mirror.Key, copies []mirror.Provider, v mirror.Verdict) {
	if len(copies) < 2 {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.remove(key)
		return
	}
	next := unique.Make(resultOf(copies, v))
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.entries[key].result == next {
		return
	}
	l.remove(key)
	l.entries[key] = entry{next, l.now().UnixNano()}
	if l.counts[key.Kind] == nil {
		l.counts[key.Kind] = map[Outcome]int{}
	}
	l.counts[key.Kind][next.Value().outcome()]++
}

func (l *Keys) remove(key mirror.Key) {
	e, ok := l.entries[key]
	if !ok {
		return
	}
	delete(l.entries, key)
	outcomes, outcome := l.counts[key.Kind], e.result.Value().outcome()
	if outcomes[outcome]--; outcomes[outcome] == 0 {
		delete(outcomes, outcome)
	}
	if len(outcomes) == 0 {
		delete(l.counts, key.Kind)
	}
}

func resultOf(copies []mirror.Provider, v mirror.Verdict) result {
	r := result{reason: v.Reason}
	var united, losers []string
	for i, c := range copies {
		switch {
		case v.Served == nil || v.Winner < 0:
			losers = append(losers, c.Source)
		case i == v.Winner:
			r.winner = c.Source
		case slices.Contains(v.United, i):
			united = append(united, c.Source)
		default:
			losers = append(losers, c.Source)
		}
	}
	r.united, r.losers = strings.Join(united, separator), strings.Join(losers, separator)
	return r
}

// List returns the contests of some kinds, of all when none is given, sorted by kind,
// namespace and name.
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

// Counts returns the number of contests by kind and outcome. The maps are the caller's.
func (l *Keys) Counts() map[mirror.Kind]map[Outcome]int {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make(map[mirror.Kind]map[Outcome]int, len(l.counts))
	for kind, outcomes := range l.counts {
		out[kind] = maps.Clone(outcomes)
	}
	return out
}
