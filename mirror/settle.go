package mirror

import (
	"cmp"
	"encoding/binary"
	"maps"
	"slices"
	"unique"

	"github.com/zeebo/xxh3"
)

// maxGroup bounds the keys that are merged into one. A host that more of them claim is a
// mistake, and each change would cost the square of their number.
const maxGroup = 64

// everything accepts every copy.
func everything(*Resource) bool { return true }

// first is the Policy of kinds that have no other.
type first struct{}

// Merge implements Policy.
func (first) Merge(copies []Provider) Verdict {
	v := Verdict{Served: copies[0].Resource}
	if len(copies) > 1 {
		v.Reason = "first in order"
	}
	return v
}

// Group implements Policy.
func (first) Group(*Resource) string { return "" }

func (a *Aggregate) policy(kind Kind) Policy {
	if p := a.policies[kind]; p != nil {
		return p
	}
	if a.others != nil && kind != MeshConfig {
		return a.others
	}
	return first{}
}

// copies returns the copies of a key that accept lets through, in order of priority.
func (a *Aggregate) copies(key Key, accept func(*Resource) bool) []Provider {
	var out []Provider
	for _, s := range a.sources {
		if r := s.Cache.Get(key); r != nil && accept(r) {
			out = append(out, Provider{s.Name, r})
		}
	}
	return out
}

// resolve returns what is served under a key to those who see only what accept lets
// through and, when there are several copies, how that came about. The caller holds mu.
func (a *Aggregate) resolve(key Key, accept func(*Resource) bool) (*Resource, *Settlement) {
	if _, plain := a.policy(key.Kind).(first); plain {
		if r, alone := a.single(key, accept); alone {
			return r, nil
		}
	}
	s := a.settle(key, accept)
	if len(s.Copies) < 2 {
		return s.Served, nil
	}
	return s.Served, &s
}

// single returns the only copy of a key, nil when there is none. It allocates nothing.
func (a *Aggregate) single(key Key, accept func(*Resource) bool) (r *Resource, alone bool) {
	for _, s := range a.sources {
		other := s.Cache.Get(key)
		if other == nil || !accept(other) {
			continue
		}
		if r != nil {
			return nil, false
		}
		r = other
	}
	return r, true
}

// Settlement is what has been settled of a key, and from what.
type Settlement struct {
	// Copies are the copies of the key, in order of priority, and Verdict is what the
	// Policy made of them.
	Copies  []Provider
	Verdict Verdict
	// Group are the keys that the Policy merges with this one, this one among them; nil
	// when there are no others. The first names the key that is served.
	Group []Key
	// Into is the key in whose resource this one went up, when that is another key.
	Into Key
	// Served is what is served under the key; nil when nothing is.
	Served *Resource
}

// Settle tells what is served of a key, from what, and why.
func (a *Aggregate) Settle(key Key) Settlement {
	a.mu.RLock()
	defer a.mu.RUnlock()
	return a.settle(key, everything)
}

// Apart tells why the Policy serves keys each for itself that it might merge, as those of one
// host; empty when it merges no keys of that kind.
func (a *Aggregate) Apart(keys []Key) (reason string) {
	a.mu.RLock()
	defer a.mu.RUnlock()
	var served []Provider
	for _, key := range keys {
		if r := a.merged[key.Kind][key.FullName()]; r != nil {
			served = append(served, Provider{r.Source(), r})
		}
	}
	if len(served) < 2 {
		return ""
	}
	policy := a.policy(keys[0].Kind)
	if policy.Group(served[0].Resource) == "" {
		return ""
	}
	return policy.Merge(served).Reason
}

// Select returns what is served of a key to those who see only the copies that accept
// lets through. When that is the same as what everybody is served, it is the very resource
// of Get.
func (a *Aggregate) Select(key Key, accept func(*Resource) bool) (selected *Resource) {
	a.mu.RLock()
	defer a.mu.RUnlock()
	defer func() {
		if p := Recovered(recover()); p != nil {
			selected = nil // rather than what a view must not show
			a.events.report(eventKey{unique.Make(key.Kind), key.FullName()}, p)
		}
	}()
	// What is merged may lag behind the copies, and so hold what accept does not let through.
	cur, _ := a.resolve(key, accept)
	if served := a.merged[key.Kind][key.FullName()]; cur.Equal(served) {
		return served
	}
	return cur
}

func (a *Aggregate) settle(key Key, accept func(*Resource) bool) Settlement {
	policy := a.policy(key.Kind)
	copies := a.copies(key, accept)
	if len(copies) == 0 {
		return Settlement{Verdict: Verdict{Winner: -1}}
	}
	s := Settlement{Copies: copies, Verdict: policy.Merge(copies)}
	s.Served = s.Verdict.Served
	if s.Served == nil {
		return s
	}
	members := a.members(key, policy, policy.Group(s.Served), accept)
	if len(members) < 2 {
		return s
	}
	for _, m := range members {
		s.Group = append(s.Group, m.Resource.Key())
	}
	mine := slices.Index(s.Group, key)
	v, ok := mergeOthers(policy, members)
	switch {
	case !ok: // what is wrong with another key's copies is not this one's
	case v.Winner == mine:
		s.Served = v.Served
	case v.Winner >= 0 && slices.Contains(v.United, mine):
		s.Served, s.Into = nil, s.Group[v.Winner]
	}
	return s
}

// mergeOthers merges copies of other keys than the one that is settled. A panic is theirs: it
// is reported when they are settled.
func mergeOthers(policy Policy, copies []Provider) (v Verdict, ok bool) {
	defer func() {
		if Recovered(recover()) != nil {
			v, ok = Verdict{Winner: -1}, false
		}
	}()
	return policy.Merge(copies), true
}

// members returns what is served of each key of a group, for itself, in order of priority.
func (a *Aggregate) members(key Key, policy Policy, group string, accept func(*Resource) bool) []Provider {
	g := a.groups[key.Kind]
	if group == "" || g == nil || len(g.members[group]) < 2 || len(g.members[group]) > maxGroup {
		return nil
	}
	var out []Provider
	for _, name := range slices.Sorted(maps.Keys(g.members[group])) {
		member, _ := keyOf(key.Kind, name)
		copies := a.copies(member, accept)
		if len(copies) == 0 {
			continue
		}
		v, ok := mergeOthers(policy, copies)
		if r := v.Served; ok && r != nil && policy.Group(r) == group {
			out = append(out, Provider{r.Source(), r})
		}
	}
	rank := map[string]int{}
	for i, s := range a.sources {
		rank[s.Name] = i
	}
	slices.SortStableFunc(out, func(x, y Provider) int { return cmp.Compare(rank[x.Source], rank[y.Source]) })
	return out
}

// groups are the keys of a kind that a Policy merges with one another.
type groups struct {
	members map[string]map[string]struct{} // names, by group
	copies  map[string]grouped             // by name
}

// grouped is what is noted of a key: in which groups its copies are, and a hash of them.
type grouped struct {
	in  []string
	sum xxh3.Uint128
}

// regroup notes in which groups the copies of a key are. When one of them has changed,
// the other keys of its groups are to be settled anew.
func (a *Aggregate) regroup(key Key) {
	policy, name := a.policy(key.Kind), key.FullName()
	copies := a.copies(key, everything)
	var now grouped
	digests := make([]byte, 0, 24*len(copies))
	for _, c := range copies {
		digest := c.Resource.Digest()
		digests = append(digests, digest[:]...)
		digests = binary.LittleEndian.AppendUint64(digests, xxh3.HashString(c.Source))
		if group := policy.Group(c.Resource); group != "" && !slices.Contains(now.in, group) {
			now.in = append(now.in, group)
		}
	}
	now.sum = xxh3.Hash128(digests)
	g := a.groups[key.Kind]
	if g == nil {
		if len(now.in) == 0 {
			return
		}
		g = &groups{members: map[string]map[string]struct{}{}, copies: map[string]grouped{}}
		a.groups[key.Kind] = g
	}
	was := g.copies[name]
	if was.sum == now.sum {
		return
	}
	for _, group := range was.in {
		if !slices.Contains(now.in, group) {
			delete(g.members[group], name)
			a.markMembers(key, g, group)
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
		a.markMembers(key, g, group)
	}
	if len(now.in) == 0 {
		delete(g.copies, name)
		return
	}
	g.copies[name] = now
}

func (a *Aggregate) markMembers(key Key, g *groups, group string) {
	members := g.members[group]
	if len(members) > maxGroup+1 {
		return // they were let go of when there was one too many
	}
	defer a.events.extendSync()
	kind := unique.Make(key.Kind)
	for name := range members {
		if name != key.FullName() {
			a.events.mark(kind, name, nil)
		}
	}
}
