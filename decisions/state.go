package decisions

import (
	"errors"
	"fmt"
	"maps"
	"slices"
)

// ErrRefused is wrapped by errors about a record that does not fit the State.
var ErrRefused = errors.New("refused")

// maxReleased bounds the Released of an upstream.
const maxReleased = 8

// State is the fold of a log. It is immutable.
type State struct {
	// Sequence is that of the last record.
	Sequence uint64 `json:"seq"`
	// Upstreams has an element for each upstream that something is decided about.
	Upstreams map[string]Upstream `json:"upstreams,omitempty"`
}

// Upstream is what is decided about one upstream. Its parts are immutable.
type Upstream struct {
	// Frozen is the Freeze or Rollback in effect, Without the ServeWithout, and Hold the open Hold; nil for none.
	Frozen  *Record `json:"frozen,omitempty"`
	Without *Record `json:"without,omitempty"`
	Hold    *Record `json:"hold,omitempty"`
	// Released are the newest records, each with a Content, of a release or of the end of a hold. The content may go, on
	// a replica that holds it later, too.
	Released []Record `json:"released,omitempty"`
}

func (u *Upstream) isEmpty() bool {
	return u.Frozen == nil && u.Without == nil && u.Hold == nil && len(u.Released) == 0
}

// idOf returns the ID of a record, empty for nil.
func idOf(r *Record) string {
	if r == nil {
		return ""
	}
	return r.ID
}

// Refuses returns why a record does not fit: somebody has decided the same, or what it ends has ended. The error wraps
// ErrRefused. A fold passes over such a record.
func (s State) Refuses(r Record) error {
	u := s.Upstreams[r.Upstream]
	refuse := func(format string, args ...any) error {
		return fmt.Errorf("upstream %s: %s is %w: %s", r.Upstream, r.Kind, ErrRefused, fmt.Sprintf(format, args...))
	}
	switch {
	case r.Kind == Freeze && u.Frozen != nil:
		return refuse("it is frozen already, by decision %d of replica %s", u.Frozen.Sequence, u.Frozen.Replica)
	case r.Kind == Unfreeze && (u.Frozen == nil || r.Ends != "" && r.Ends != u.Frozen.ID):
		return refuse("it is not frozen, or by a newer decision")
	case r.Kind == ServeWithout && u.Without != nil:
		return refuse("decision %d has the same order", u.Without.Sequence)
	case r.Kind == Synced && r.Ends != idOf(u.Without):
		return refuse("that order is not in effect")
	case r.Kind == Hold && u.Hold != nil:
		return refuse("replica %s holds it already, by decision %d", u.Hold.Replica, u.Hold.Sequence)
	case (r.Kind == Returned || r.Kind == Over || r.Kind == Release) && r.Ends != idOf(u.Hold):
		return refuse("the hold has changed: look again with \"relay held %s\"", r.Upstream)
	}
	return nil
}

// With returns the State after a record.
func (s State) With(r Record) State {
	s.Upstreams = maps.Clone(s.Upstreams)
	s.fold(r)
	return s
}

// fold changes the map of s.
func (s *State) fold(r Record) {
	s.Sequence = max(s.Sequence, r.Sequence)
	if s.Refuses(r) != nil {
		return
	}
	if s.Upstreams == nil {
		s.Upstreams = map[string]Upstream{}
	}
	u := s.Upstreams[r.Upstream]
	switch r.Kind {
	case Freeze, Rollback:
		u.Frozen = &r
	case Unfreeze:
		u.Frozen = nil
	case ServeWithout:
		u.Without = &r
	case Synced:
		u.Without = nil
	case Hold:
		// A guard holds this content again: the former decision was about another accident.
		u.Released = slices.DeleteFunc(slices.Clone(u.Released), func(one Record) bool { return one.Content == r.Content })
		u.Hold = &r
	case Release, Returned, Over:
		if len(r.Parts) == 0 {
			u.Hold = nil
		}
		if r.Content != "" {
			u.Released = append(slices.Clone(u.Released), r)
			u.Released = u.Released[max(0, len(u.Released)-maxReleased):]
		}
	}
	if s.Upstreams[r.Upstream] = u; u.isEmpty() {
		delete(s.Upstreams, r.Upstream)
	}
}
