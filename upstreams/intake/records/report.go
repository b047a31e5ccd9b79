package records

import (
	"fmt"
	"maps"
	"slices"

	"meshrelay/events"
	"meshrelay/federation"
	"meshrelay/federation/filter"
	"meshrelay/internal/text"
	"meshrelay/mirror"
)

const (
	// maxToldRefused bounds the refusals of a scope that the event journal is known to have.
	maxToldRefused = 1000
	// maxRefused is how many refusals a Summary lists.
	maxRefused = 100
)

// Summary is the state of Records.
type Summary struct {
	// NotOffered are the type URLs that the source does not offer. Their answers are taken if they come.
	NotOffered []string `json:"notOffered,omitempty"`
	// Refused are resources or files whose newest content is refused, so that the last good one is
	// served: at most a hundred. RefusedTotal counts all.
	Refused      []Refusal `json:"refused,omitempty"`
	RefusedTotal int       `json:"refusedTotal,omitempty"`
	// Panics counts panics over single resources, which are refused.
	Panics uint64 `json:"panics,omitempty"`
	// LeftOut counts the resources that are left out at present, by reason.
	LeftOut map[string]int `json:"leftOut,omitempty"`
	// AllLeftOut has the kinds that one rule leaves out as a whole, with its reason.
	AllLeftOut map[string]string `json:"allLeftOut,omitempty"`
	// OverLimit counts the resources that the limits refuse at present.
	OverLimit int `json:"overLimit,omitempty"`
}

// Summary returns the state. served returns how many resources of a kind are served.
func (rs *Records) Summary(served func(mirror.Kind) int) Summary {
	st := Summary{Panics: rs.panics, NotOffered: rs.notOffered, LeftOut: map[string]int{}, AllLeftOut: map[string]string{}}
	meant := []string{string(filter.ReasonProfile), string(filter.ReasonKind), reasonLoop, reasonHops}
	for _, name := range slices.Sorted(maps.Keys(rs.scopes)) {
		sc, over := rs.scopes[name], 0
		for reason, n := range sc.leftOut {
			if n > 0 {
				st.LeftOut[reason] += n
				if served(sc.Kind) == 0 && n == len(sc.byName) && !slices.Contains(meant, reason) && (reason != reasonGenerated || sc.Kind != federation.ServiceEntry) {
					st.AllLeftOut[sc.Kind.String()] = reason
				}
			}
		}
		for _, name := range slices.Sorted(maps.Keys(sc.refused)) {
			reason := sc.refused[name]
			if isOverLimit(reason) {
				over++
			}
			if len(st.Refused) < maxRefused {
				st.Refused = append(st.Refused, Refusal{Resource: sc.Name + " " + text.Abbreviate(name), Reason: reason})
			}
		}
		st.RefusedTotal += len(sc.refused) + sc.moreRefused
		if over > 0 {
			st.OverLimit += over + sc.moreRefused
		}
	}
	return st
}

// reportRefused reports refusals of a scope that are new, or have a new reason. It looks at them
// only after a change: there may be thousands.
func (rs *Records) reportRefused(sc *scope) {
	if sc.reported == len(sc.refused) {
		return
	}
	sc.reported = len(sc.refused)
	for name := range sc.told {
		if _, still := sc.refused[name]; !still {
			delete(sc.told, name)
		}
	}
	byType, first := map[events.Type]int{}, map[events.Type]string{}
	for name, reason := range sc.refused {
		if sc.told[name] == reason || len(sc.told) >= maxToldRefused {
			continue
		}
		if sc.told == nil {
			sc.told = map[string]string{}
		}
		sc.told[name] = reason
		t := events.Refused
		if isOverLimit(reason) {
			t = events.OverLimit
		}
		if byType[t]++; byType[t] == 1 || name < first[t] {
			first[t] = name
		}
	}
	for t, n := range byType {
		name := first[t]
		what := sc.Name + " " + text.Abbreviate(name)
		if n > 1 {
			what = fmt.Sprintf("%s and %d more", what, n-1)
		}
		rs.tell.Tell(events.Event{Type: t, By: events.ByUpstream, Text: what, Reason: sc.refused[name], Command: "relay upstreams " + rs.name})
	}
}
