package conflicts

import (
	"cmp"
	"slices"

	"meshrelay/federation"
	"meshrelay/mirror"
)

// Hybrid is a host whose entry, rules and routes come from different upstreams: what an istiod makes of it, none of them means.
type Hybrid struct {
	Host string `json:"host"`
	// Parts are the resources that somebody sees together with one of another kind and upstream: the first of each kind and
	// upstream, then others. More is the number of those that are not listed.
	Parts []Part `json:"parts"`
	More  int    `json:"more,omitempty"`
}

// Part is a resource that claims the host of a Hybrid.
type Part struct {
	mirror.Key
	Source string `json:"source"`
}

// everywhere is no namespace: who sees all.
const everywhere = "*"

// groupOf returns the kind and upstream of a claim.
func groupOf(c mirror.Claimed) Part { return Part{mirror.Key{Kind: c.Kind()}, c.Source()} }

// Hybrids returns the hosts, without "*", whose parts come from different upstreams, sorted. What it does not compare, because
// of maxScopes, counts as seen together.
func (t *Tracker) Hybrids() (all []Hybrid) {
	contests := slices.DeleteFunc(t.resources.Contests(true), func(c mirror.Contest) bool { return c.What == federation.AnyHost })
	slices.SortFunc(contests, func(a, b mirror.Contest) int { return cmp.Compare(a.What, b.What) })
	room := maxScopes
	for _, c := range contests {
		slices.SortFunc(c.Claims, func(a, b mirror.Claimed) int { return mirror.CompareKeys(a.Key(), b.Key()) })
		h, others, seen, groups := Hybrid{Host: c.What}, []Part(nil), map[Part]bool{}, map[Part]map[string]bool{}
		for _, a := range c.Claims { // so that each is compared with all of a kind and upstream at once
			of := groupOf(a)
			if groups[of] == nil {
				groups[of] = map[string]bool{}
			}
			groups[of][everywhere] = groups[of][everywhere] || a.Scopes == nil
			for _, s := range a.Scopes {
				groups[of][s] = true
			}
		}
		for _, a := range c.Claims {
			meets, of := false, groupOf(a)
			for g, scopes := range groups {
				if g.Source != of.Source && g.Kind != of.Kind && !meets {
					room -= 1 + len(a.Scopes)
					meets = room < 0 || a.Scopes == nil || scopes[everywhere] || slices.ContainsFunc(a.Scopes, func(s string) bool { return scopes[s] })
				}
			}
			if !meets {
				continue
			}
			part := Part{a.Key(), a.Source()}
			if seen[of] {
				others = append(others, part)
				continue
			}
			seen[of], h.Parts = true, append(h.Parts, part)
		}
		if h.Parts = append(h.Parts, others...); len(h.Parts) > 0 {
			shown := min(len(h.Parts), maxShown)
			h.Parts, h.More = h.Parts[:shown], len(h.Parts)-shown
			all = append(all, h)
		}
	}
	return all
}
