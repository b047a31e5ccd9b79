package identity

import (
	"math"
	"slices"
)

// NoRule is the number of no rule. It is larger than all others.
const NoRule = math.MaxInt

// Index finds the first of many rules that have patterns. The rules have numbers, and are added in their order.
type Index struct {
	// Anybody is the first rule for all clients, also for those without an identity, or NoRule.
	Anybody int
	exact   map[string]int // the first rule with an identity
	globs   []wildcard     // the other patterns, in the order of the rules
}

// wildcard is a pattern of the rule with a number.
type wildcard struct {
	Pattern
	rule int
}

// NewIndex returns an Index without rules.
func NewIndex() *Index { return &Index{Anybody: NoRule, exact: map[string]int{}} }

// Add adds a pattern of a rule.
func (x *Index) Add(p Pattern, rule int) {
	id, exact := p.Exact()
	if _, taken := x.exact[id]; exact && !taken {
		x.exact[id] = rule
	} else if !exact {
		x.globs = append(x.globs, wildcard{p, rule})
	}
}

// First returns the number of the first rule for a client with some identities, or NoRule.
func (x *Index) First(identities []string) int {
	best := x.Anybody
	for _, id := range identities {
		if n, ok := x.exact[id]; ok {
			best = min(best, n)
		}
	}
	for _, p := range x.globs {
		if p.rule >= best {
			break
		}
		if slices.ContainsFunc(identities, p.Matches) {
			return p.rule
		}
	}
	return best
}

// Covering returns the number of a rule with a pattern that covers p, or NoRule.
func (x *Index) Covering(p Pattern) int {
	id, exact := p.Exact()
	if n, ok := x.exact[id]; ok && exact {
		return n
	}
	if i := slices.IndexFunc(x.globs, func(g wildcard) bool { return g.Covers(p) }); i >= 0 {
		return x.globs[i].rule
	}
	return NoRule
}
