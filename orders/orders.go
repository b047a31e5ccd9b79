// Package orders has what people have ordered about upstreams, which all replicas of a relay follow.
//
// Each replica joins what it reads with what it knows. Join is commutative, associative and idempotent, so that replicas which
// have read the same know the same, in whatever order they read it. Only configmap.go has I/O; the rest has no clock.
package orders

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

const (
	// Key is that of the orders in the data of the ConfigMap.
	Key = "orders"
	// Version is that of the format.
	Version = 1

	maxBytes    = 768 << 10 // of the encoded orders: a ConfigMap has 1 MiB, and the reports need some of it
	maxCounter  = 1 << 40   // no orders reach it; a person may have edited them
	maxReleases = 128       // of an upstream; the oldest are dropped
	releaseAge  = 24 * time.Hour
)

// ErrNewer is the error for orders in a format that this version does not know.
var ErrNewer = errors.New("a newer version of the relay has written the orders: update this replica")

// State is all that is ordered, by upstream. It is immutable.
type State struct {
	Version int `json:"version"` // 0 in a state that was never joined
	// Counter is the highest of any order that was ever known. It outlives the entry of that order.
	Counter   uint64           `json:"counter,omitempty"`
	Upstreams map[string]Entry `json:"upstreams,omitempty"`
}

// Entry is what is ordered about an upstream.
type Entry struct {
	// Counter is that of the last order about Frozen, which is nil when the freeze has ended.
	Counter  uint64    `json:"counter,omitempty"`
	Frozen   *Frozen   `json:"frozen,omitempty"`
	Released []Release `json:"released,omitempty"`
}

// Frozen is a freeze, or a rollback to a content, of a revision of that time.
type Frozen struct {
	Since   time.Time `json:"since"`
	Reason  string    `json:"reason,omitempty"`
	Content string    `json:"content,omitempty"`
	Of      time.Time `json:"of,omitzero"`
}

// Release is the order to carry out the deletions of one hold, or only some parts of it.
type Release struct {
	Counter uint64    `json:"counter"`
	Hold    string    `json:"hold"`
	Only    []string  `json:"only,omitempty"`
	Time    time.Time `json:"time"`
	Reason  string    `json:"reason,omitempty"`
}

// ID identifies the freeze or rollback of an entry.
func (e Entry) ID() string { return fmt.Sprint(e.Counter, " ", textOf(e.Frozen)) }

// ID identifies a release of an upstream.
func (r Release) ID() string { return textOf(r) }

func textOf(v any) string {
	b, _ := json.Marshal(v) // it can not fail
	return string(b)
}

// Join returns what one of two states has, entry by entry: of freezes the one with the higher counter, and of equal ones
// the one that freezes; and all releases.
func (s State) Join(other State) State {
	all := map[string]Entry{}
	maps.Copy(all, s.Upstreams)
	for name, b := range other.Upstreams {
		e := all[name]
		released := newest(slices.Concat(e.Released, b.Released))
		// "{" of a freeze is greater than "null".
		if cmp.Or(cmp.Compare(b.Counter, e.Counter), strings.Compare(textOf(b.Frozen), textOf(e.Frozen))) > 0 {
			e = b
		}
		e.Released = released
		all[name] = e
	}
	return State{Version, max(s.Counter, other.Counter), all}
}

// newest returns the newest releases, each once, in an order that depends on them alone.
func newest(all []Release) []Release {
	slices.SortFunc(all, func(a, b Release) int {
		return cmp.Or(cmp.Compare(b.Counter, a.Counter), strings.Compare(a.ID(), b.ID()))
	})
	all = slices.CompactFunc(all, func(a, b Release) bool { return a.ID() == b.ID() })
	return all[:min(len(all), maxReleases)]
}

// Aged returns the state without releases that are over.
func (s State) Aged(now time.Time) State {
	all := map[string]Entry{}
	for name, e := range s.Upstreams {
		e.Released = slices.DeleteFunc(slices.Clone(e.Released), func(r Release) bool { return now.Sub(r.Time) > releaseAge })
		if e.Counter > 0 || len(e.Released) > 0 {
			all[name] = e
		}
	}
	return State{Version, s.Counter, all}
}

// Freeze returns the state with a freeze or rollback of an upstream, nil for its end.
func (s State) Freeze(upstream string, f *Frozen) State {
	return s.Join(State{Version, s.Counter + 1, map[string]Entry{upstream: {Counter: s.Counter + 1, Frozen: f}}})
}

// Release returns the state with the release of some holds of an upstream.
func (s State) Release(upstream string, holds []string, r Release) State {
	var e Entry
	for r.Counter = s.Counter + 1; len(holds) > 0; holds = holds[1:] {
		r.Hold = holds[0]
		e.Released = append(e.Released, r)
	}
	return s.Join(State{Version, r.Counter, map[string]Entry{upstream: e}})
}

// Encode returns the text of a state. It fails if that is too large for a ConfigMap.
func (s State) Encode() (string, error) {
	s.Version = Version
	text := textOf(s)
	if len(text) > maxBytes || s.Counter > maxCounter { // nobody would read it
		return "", fmt.Errorf("the orders have %d bytes and the counter %d, and may have %d and %d: stop all replicas, and remove entries of upstreams that are gone, and counters that somebody has edited, from the ConfigMap and from orders.json in state.dir of each", len(text), s.Counter, maxBytes, maxCounter)
	}
	return text, nil
}

// Decode returns the state of a text, empty for an empty one. The error is ErrNewer, or why the text has no orders.
func Decode(text string) (s State, err error) {
	if text == "" {
		return s, nil
	}
	var is struct{ Version int } // the rest may be of other types in a newer one
	if _ = json.Unmarshal([]byte(text), &is); is.Version > Version {
		return s, ErrNewer
	}
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		return State{}, err
	}
	for _, e := range s.Upstreams { // a person may have edited them
		s.Counter = max(s.Counter, e.Counter)
	}
	if s.Version < Version || s.Counter > maxCounter {
		return State{}, errors.New("they have no version, or a counter that is of no order")
	}
	return s, nil
}
