package merge

import (
	"fmt"
	"time"

	"meshrelay/federation"
	"meshrelay/internal/text"
	"meshrelay/mirror"
)

// ByName returns the mirror.Policy with a name, for one kind. union is what is returned
// for "union", and must be zero for the others.
func ByName(name string, kind mirror.Kind, union Union) (mirror.Policy, error) {
	if union != (Union{}) && name != "union" {
		return nil, fmt.Errorf("policy %q merges copies of one key only: merging by host needs the policy union", text.Abbreviate(name))
	}
	switch name {
	case "first":
		return First{}, nil
	case "newest":
		return Newest{}, nil
	case "reject":
		return Reject{}, nil
	case "union":
		if kind != federation.ServiceEntry {
			return nil, fmt.Errorf("policy union is for %s only, not for %s", federation.ServiceEntry, kind)
		}
		return union, nil
	}
	return nil, fmt.Errorf("unknown policy %q: want first, newest, reject or union", text.Abbreviate(name))
}

// First serves the first copy in order of priority. It is a mirror.Policy.
type First struct{}

// Merge implements mirror.Policy.
func (First) Merge(copies []mirror.Provider) mirror.Verdict {
	v := mirror.Verdict{Served: copies[0].Resource}
	if len(copies) > 1 {
		v.Reason = "first in order"
	}
	return v
}

// Group implements mirror.Policy.
func (First) Group(*mirror.Resource) string { return "" }

// Newest serves the copy that was created last, and of several of the same age the first
// in order. A copy of which that time is not known is the oldest. It is a mirror.Policy.
type Newest struct{}

// Merge implements mirror.Policy.
func (Newest) Merge(copies []mirror.Provider) mirror.Verdict {
	if len(copies) == 1 {
		return mirror.Verdict{Served: copies[0].Resource}
	}
	winner, tied := 0, false
	var newest time.Time
	for i, c := range copies {
		created := c.Resource.Metadata().CreateTime
		switch {
		case i == 0 || created.After(newest):
			winner, newest, tied = i, created, false
		case created.Equal(newest):
			tied = true
		}
	}
	v := mirror.Verdict{Served: copies[winner].Resource, Winner: winner, Reason: "newest"}
	switch {
	case newest.IsZero():
		v.Reason = "first in order: no creation time is known"
	case tied:
		v.Reason = "first in order of the newest"
	}
	return v
}

// Group implements mirror.Policy.
func (Newest) Group(*mirror.Resource) string { return "" }

// Reject serves nobody's copy while several sources have one. It is a mirror.Policy.
type Reject struct{}

// Merge implements mirror.Policy.
func (Reject) Merge(copies []mirror.Provider) mirror.Verdict {
	if len(copies) == 1 {
		return mirror.Verdict{Served: copies[0].Resource}
	}
	return mirror.Verdict{Winner: -1, Reason: "several sources have it"}
}

// Group implements mirror.Policy.
func (Reject) Group(*mirror.Resource) string { return "" }
