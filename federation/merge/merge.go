// Package merge has the merge policies Newest, Reject and Union. (mirror.First is the other one.) A policy is a
// function of the copies of a key, in the order of the upstreams. It does not depend on which upstream answered
// first, or on which copy was served before.
//
// The package must not know when copies are merged (mirror.Aggregate decides), and who reads the result.
package merge

import (
	"fmt"
	"time"

	"meshrelay/federation"
	"meshrelay/internal/text"
	"meshrelay/mirror"
)

// ByName returns the mirror.Policy with a name, for one kind.
func ByName(name string, kind mirror.Kind) (mirror.Policy, error) {
	switch name {
	case "first":
		return mirror.First{}, nil
	case "newest":
		return Newest{}, nil
	case "reject":
		return Reject{}, nil
	case "union", "unionByHost":
		if kind != federation.ServiceEntry {
			return nil, fmt.Errorf("policy %s is for %s only, not for %s", name, federation.ServiceEntry, kind)
		}
		return Union{SameHost: name == "unionByHost"}, nil
	}
	return nil, fmt.Errorf("unknown policy %q: want first, newest, reject, union or unionByHost", text.Abbreviate(name))
}

// Newest serves the copy that was created last. Of several of the same age, it serves the first in order. A copy
// without a creation time is the oldest. Newest is a mirror.Policy.
type Newest struct{}

// Merge implements mirror.Policy.
func (Newest) Merge(copies []mirror.Copy) mirror.Decision {
	if len(copies) == 1 {
		return mirror.Decision{Served: copies[0].Resource}
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
	v := mirror.Decision{Served: copies[winner].Resource, Winner: winner, Reason: "newest"}
	switch {
	case newest.IsZero():
		v.Reason = "first in order: no creation time is known"
	case tied:
		v.Reason = "first in order of the newest"
	}
	return v
}

// Reject serves no copy while several sources have one. Reject is a mirror.Policy.
type Reject struct{}

// Merge implements mirror.Policy.
func (Reject) Merge(copies []mirror.Copy) mirror.Decision {
	if len(copies) == 1 {
		return mirror.Decision{Served: copies[0].Resource}
	}
	return mirror.Decision{Winner: -1, Reason: "several upstreams have it"}
}
