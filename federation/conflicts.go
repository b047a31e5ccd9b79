package federation

import (
	"cmp"
	"encoding/json"
	"fmt"
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

// Contest is a key of which more than one source has a copy.
type Contest struct {
	Key mirror.Key
	// Winner is the source whose copy is served, empty when nobody's is.
	Winner string
	// United are the other sources whose copies went into what is served.
	United []string
	// Losers are the sources whose copies are not served, in order of priority.
	Losers []string
	// Outcome sums up the above.
	Outcome Outcome
	// Reason is that of the mirror.Verdict.
	Reason string
	// Since is when all of this came to be so.
	Since time.Time
}

// contestJSON is a Contest in JSON: with a flat key.
type contestJSON struct {
	Kind      string    `json:"kind"`
	Namespace string    `json:"namespace,omitempty"`
	Name      string    `json:"name"`
	Winner    string    `json:"winner,omitempty"`
	United    []string  `json:"united,omitempty"`
	Losers    []string  `json:"losers,omitempty"`
	Outcome   Outcome   `json:"outcome"`
	Reason    string    `json:"reason,omitempty"`
	Since     time.Time `json:"since"`
}

// MarshalJSON implements json.Marshaler.
func (c Contest) MarshalJSON() ([]byte, error) {
	return json.Marshal(contestJSON{
		c.Key.Kind.String(), c.Key.Namespace, c.Key.Name, c.Winner, c.United, c.Losers, c.Outcome, c.Reason, c.Since,
	})
}

// UnmarshalJSON implements json.Unmarshaler.
func (c *Contest) UnmarshalJSON(b []byte) error {
	var j contestJSON
	if err := json.Unmarshal(b, &j); err != nil {
		return err
	}
	kind, err := parseKind(j.Kind)
	if err != nil {
		return err
	}
	*c = Contest{mirror.Key{Kind: kind, Namespace: j.Namespace, Name: j.Name}, j.Winner, j.United, j.Losers, j.Outcome, j.Reason, j.Since}
	return nil
}

// hostConflictJSON keeps HostConflict's own methods from being called again.
type hostConflictJSON HostConflict

// MarshalJSON implements json.Marshaler.
func (c HostConflict) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		Kind string `json:"kind"`
		hostConflictJSON
	}{c.Kind.String(), hostConflictJSON(c)})
}

// UnmarshalJSON implements json.Unmarshaler.
func (c *HostConflict) UnmarshalJSON(b []byte) error {
	var j struct {
		Kind string `json:"kind"`
		hostConflictJSON
	}
	if err := json.Unmarshal(b, &j); err != nil {
		return err
	}
	kind, err := parseKind(j.Kind)
	if err != nil {
		return err
	}
	*c = HostConflict(j.hostConflictJSON)
	c.Kind = kind
	return nil
}

// parseKind is the inverse of mirror.Kind.String.
func parseKind(s string) (mirror.Kind, error) {
	group, kind, ok := strings.Cut(s, "/")
	if !ok {
		return mirror.Kind{}, fmt.Errorf("kind %q: want group/Kind", abbreviate(s))
	}
	if group == "core" {
		group = ""
	}
	return mirror.Kind{Group: group, Kind: kind}, nil
}

// Ledger keeps account of the keys of which more than one source has a copy. Its memory
// is proportional to their number. Its methods may be called from any goroutine.
type Ledger struct {
	now func() time.Time

	// mu guards all below.
	mu      sync.Mutex
	entries map[mirror.Key]ledgerEntry
	counts  map[mirror.Kind]map[Outcome]int
}

// ledgerEntry is small: many keys have the same sources, and end in the same way.
type ledgerEntry struct {
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

// NewLedger returns an empty Ledger. It asks now for the time.
func NewLedger(now func() time.Time) *Ledger {
	return &Ledger{now: now, entries: map[mirror.Key]ledgerEntry{}, counts: map[mirror.Kind]map[Outcome]int{}}
}

// Update tells of the copies of a key, in order of priority, and of what a mirror.Policy
// made of them. It is called whenever a copy may have changed. With less than two copies
// there is no contest.
func (l *Ledger) Update(key mirror.Key, copies []mirror.Provider, v mirror.Verdict) {
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
	l.entries[key] = ledgerEntry{next, l.now().UnixNano()}
	if l.counts[key.Kind] == nil {
		l.counts[key.Kind] = map[Outcome]int{}
	}
	l.counts[key.Kind][next.Value().outcome()]++
}

func (l *Ledger) remove(key mirror.Key) {
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
func (l *Ledger) List(kinds ...mirror.Kind) []Contest {
	l.mu.Lock()
	out := make([]Contest, 0, len(l.entries))
	for key, e := range l.entries {
		if len(kinds) > 0 && !slices.Contains(kinds, key.Kind) {
			continue
		}
		r := e.result.Value()
		out = append(out, Contest{
			Key: key, Winner: r.winner, United: split(r.united), Losers: split(r.losers),
			Outcome: r.outcome(), Reason: r.reason, Since: time.Unix(0, e.since),
		})
	}
	l.mu.Unlock()
	slices.SortFunc(out, func(a, b Contest) int {
		return cmp.Or(mirror.CompareKinds(a.Key.Kind, b.Key.Kind),
			cmp.Compare(a.Key.Namespace, b.Key.Namespace), cmp.Compare(a.Key.Name, b.Key.Name))
	})
	return out
}

func split(joined string) []string {
	if joined == "" {
		return nil
	}
	return strings.Split(joined, separator)
}

// Counts returns the number of contests by kind and outcome. The maps are the caller's.
func (l *Ledger) Counts() map[mirror.Kind]map[Outcome]int {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make(map[mirror.Kind]map[Outcome]int, len(l.counts))
	for kind, outcomes := range l.counts {
		out[kind] = maps.Clone(outcomes)
	}
	return out
}
