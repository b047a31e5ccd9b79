package mirror

import (
	"cmp"
	"encoding/binary"
	"maps"
	"slices"

	"github.com/zeebo/xxh3"

	"meshrelay/internal/panics"
)

// maxGroup bounds the keys that are merged into one. The cost of a change grows with the square of their number.
const maxGroup = 64

// everything accepts every copy.
func everything(*Resource) bool { return true }

// Resolution explains which resource is served under a key.
type Resolution struct {
	Copies   []Copy   // of the key, in order of priority
	Decision Decision // of the Policy, over Copies
	// Group has the keys that the Policy merges, this one included; nil when there are no others. The first
	// is the key that is served.
	Group []Key
	// MergedInto is the other key whose served resource contains this one. It is zero for none.
	MergedInto Key
	Served     *Resource // under the key; nil for none
	// Yields is why Owners have the key not served, empty if they do not.
	Yields string
	// Bare is why some or all clients are not served the allocated addresses, empty if all are.
	Bare string

	united []Key // whose resources are part of Served
}

// Resolve explains which resource is served under a key.
func (a *Aggregate) Resolve(key Key) Resolution {
	a.mu.RLock()
	defer a.mu.RUnlock()
	s := a.resolve(refOf(key), "", everything)
	s.Bare = a.bare[refOf(key)]
	return s
}

// Apart returns why the Policy does not merge keys of one host. It is empty for a kind whose keys are never
// merged.
func (a *Aggregate) Apart(keys []Key) (reason string) {
	a.mu.RLock()
	defer a.mu.RUnlock()
	var served []Copy
	for _, key := range keys {
		if r := a.index.get(refOf(key)); r != nil {
			served = append(served, Copy{r.Source(), r})
		}
	}
	if len(served) < 2 {
		return ""
	}
	policy := a.policy(keys[0].Kind)
	if groupOf(policy, served[0].Resource) == "" {
		return ""
	}
	return policy.Merge(served).Reason
}

// Select returns the resource that clients of a cluster, empty for an unknown one, are served under a key, if they see only
// the copies that accept accepts. It returns the resource of Get when both are equal, and nil after a panic of the Policy.
func (a *Aggregate) Select(key Key, cluster string, accept func(*Resource) bool) (selected *Resource) {
	k := refOf(key)
	a.mu.RLock()
	p := panics.Try(func() {
		// The merged view may be older than the copies, and have a resource that accept refuses.
		selected, _ = a.serve(k, cluster, accept)
	})
	if served := a.index.get(k); p == nil && selected.Equal(served) {
		selected = served
	}
	a.mu.RUnlock()
	a.report(k, p)
	return selected
}

// resolve resolves a key. The caller holds mu.
func (a *Aggregate) resolve(k ref, cluster string, accept func(*Resource) bool) Resolution {
	s := a.resolveKey(k, accept)
	if s.Served == nil {
		return s
	}
	if a.isJudged(k) {
		s.Yields = a.yields(k, s.Served, accept, s.united)
	}
	if s.Yields != "" {
		s.Served, s.Decision = nil, Decision{Winner: -1, Reason: s.Yields}
	} else if a.taken(s.Served, cluster, accept) != "" {
		if free, err := s.Served.WithoutAllocated(); err == nil { // it only loses a field
			s.Served = free
		}
	}
	return s
}

// resolveKey resolves a key without regard to Owners.
func (a *Aggregate) resolveKey(k ref, accept func(*Resource) bool) Resolution {
	policy := a.policy(k.kind.Value())
	copies := a.copies(k, accept)
	if len(copies) == 0 {
		return Resolution{Decision: Decision{Winner: -1}}
	}
	s := Resolution{Copies: copies, Decision: policy.Merge(copies)}
	s.Served = s.Decision.Served
	if s.Served == nil {
		return s
	}
	members := a.members(k, policy, groupOf(policy, s.Served), accept)
	if len(members) < 2 {
		return s
	}
	for _, m := range members {
		s.Group = append(s.Group, m.Resource.Key())
	}
	mine := slices.Index(s.Group, k.key())
	v, ok := mergeOthers(policy, members)
	switch {
	case !ok: // a panic over another key's copies does not affect this one
	case v.Winner == mine:
		s.Served = v.Served
		for _, i := range v.United {
			s.united = append(s.united, s.Group[i])
		}
	case v.Winner >= 0 && slices.Contains(v.United, mine):
		s.Served, s.MergedInto = nil, s.Group[v.Winner]
	}
	return s
}

// mergeOthers merges the copies of another key. It returns false after a panic, which is reported when that key
// is resolved.
func mergeOthers(policy Policy, copies []Copy) (v Decision, ok bool) {
	v.Winner = -1
	p := panics.Try(func() { v = policy.Merge(copies) })
	return v, p == nil
}

// members returns the resource that each key of a group would serve alone, in order of priority.
func (a *Aggregate) members(k ref, policy Policy, group string, accept func(*Resource) bool) []Copy {
	g := a.groups[k.kind.Value()]
	if group == "" || g == nil || len(g.members[group]) < 2 || len(g.members[group]) > maxGroup {
		return nil
	}
	var out []Copy
	for _, name := range slices.Sorted(maps.Keys(g.members[group])) {
		copies := a.copies(ref{k.kind, name}, accept)
		if len(copies) == 0 {
			continue
		}
		v, ok := mergeOthers(policy, copies)
		if r := v.Served; ok && r != nil && groupOf(policy, r) == group {
			out = append(out, Copy{r.Source(), r})
		}
	}
	place := a.holders.named
	slices.SortStableFunc(out, func(x, y Copy) int { return cmp.Compare(place[x.Source], place[y.Source]) })
	return out
}

// groups has the keys of a kind that a Grouper merges with one another.
type groups struct {
	members map[string]map[string]struct{} // names, by group
	copies  map[string]grouped             // by name
}

// grouped has the groups of the copies of a key, and a hash of the copies.
type grouped struct {
	in  []string
	sum xxh3.Uint128
}

// regroup updates the groups of a key. If a copy has changed, it queues the other keys of its groups.
func (a *Aggregate) regroup(k ref) {
	kind, name := k.kind.Value(), k.name
	policy, copies := a.policy(kind), a.copies(k, everything)
	var now grouped
	digests := make([]byte, 0, 24*len(copies))
	for _, c := range copies {
		digest := c.Resource.Digest()
		digests = append(digests, digest[:]...)
		digests = binary.LittleEndian.AppendUint64(digests, xxh3.HashString(c.Source))
		if group := groupOf(policy, c.Resource); group != "" && !slices.Contains(now.in, group) {
			now.in = append(now.in, group)
		}
	}
	now.sum = xxh3.Hash128(digests)
	g := a.groups[kind]
	if g == nil {
		if len(now.in) == 0 {
			return
		}
		g = &groups{members: map[string]map[string]struct{}{}, copies: map[string]grouped{}}
		a.groups[kind] = g
	}
	was := g.copies[name]
	if was.sum == now.sum {
		return
	}
	for _, group := range was.in {
		if !slices.Contains(now.in, group) {
			delete(g.members[group], name)
			a.markMembers(k, g, group)
			if len(g.members[group]) == 0 {
				delete(g.members, group)
			}
		}
	}
	for _, group := range now.in {
		if g.members[group] == nil {
			g.members[group] = map[string]struct{}{}
		}
		g.members[group][name] = struct{}{}
		a.markMembers(k, g, group)
	}
	if len(now.in) == 0 {
		delete(g.copies, name)
		return
	}
	g.copies[name] = now
}

func (a *Aggregate) markMembers(k ref, g *groups, group string) {
	members := g.members[group]
	if len(members) > maxGroup+1 {
		return // too many to be merged
	}
	defer a.queue.extend()
	for name := range members {
		if name != k.name {
			a.queue.mark(ref{k.kind, name}, nil)
		}
	}
}
