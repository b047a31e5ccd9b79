package conflicts

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"meshrelay/federation"
	"meshrelay/mirror"
)

// host holds the claims of one host.
type host struct {
	// crowded names the namespaces that see several claims.
	crowded map[string]struct{}
	// scopes has the claims by the namespace that sees them. Claims that everyone sees are only under
	// federation.Everyone, which has all claims.
	scopes map[string]*scope
	public int // the number of claims that everyone sees
	scoped int // the sum of claimant.scopes over all claims
}

// scope is a set of claimants with different keys.
type scope struct {
	claims []*claimant // by key
	sum    uint64      // of the keys, in any order
	// since is when the present claims came into conflict, zero without a conflict. reported is their sum.
	since    time.Time
	reported uint64
}

func (s *scope) insert(c *claimant) {
	at, _ := slices.BinarySearchFunc(s.claims, c, compareClaimants)
	s.claims = slices.Insert(s.claims, at, c)
	s.sum ^= c.sum
}

// drop removes a claim, and reports whether it was there.
func (s *scope) drop(c *claimant) bool {
	at, found := slices.BinarySearchFunc(s.claims, c, compareClaimants)
	if found {
		s.claims = slices.Delete(s.claims, at, at+1)
		s.sum ^= c.sum
	}
	return found
}

func (h *host) insert(c *claimant) {
	if c == nobody {
		return
	}
	if h.scoped += c.scopes(); c.visibility.Public {
		h.public++
	}
	for _, name := range c.seenAs() {
		s := h.scopes[name]
		if s == nil {
			s = &scope{}
			h.scopes[name] = s
		}
		s.insert(c)
		h.note(name, s)
	}
}

// drop removes a claim, if it is there. Scopes without claims remain, for settle.
func (h *host) drop(c *claimant) {
	found := false
	for _, name := range c.seenAs() {
		if s := h.scopes[name]; s != nil {
			found = s.drop(c)
			h.note(name, s)
		}
	}
	if !found {
		return
	}
	if h.scoped -= c.scopes(); c.visibility.Public {
		h.public--
	}
}

// note updates crowded for a scope.
func (h *host) note(name string, s *scope) {
	switch {
	case name == federation.Everyone:
	case len(s.claims) < 2:
		delete(h.crowded, name)
	case h.crowded == nil:
		h.crowded = map[string]struct{}{name: {}}
	default:
		h.crowded[name] = struct{}{}
	}
}

// contested reports whether the claims of a scope are in conflict there. A public claim is in conflict with all
// other claims: then there is one conflict, of everyone.
func (h *host) contested(name string, s *scope) bool {
	alone := 0
	return (name == federation.Everyone) == (h.public > 0) && slices.ContainsFunc(s.claims, func(c *claimant) bool {
		if !c.merges {
			alone++
		}
		return alone > 1 || c.source != s.claims[0].source
	})
}

// replace replaces the claim of a resource. It returns the conflicts that begin, change or end. If the claimant
// is shown differently, all its conflicts change.
func (h *host) replace(key hostKey, was, next *claimant, now func() time.Time) (changed []HostConflict) {
	public := h.public > 0
	h.drop(was)
	h.insert(next)
	touched := map[string]struct{}{}
	for _, c := range []*claimant{was, next} {
		for _, name := range c.seenAs() {
			touched[name] = struct{}{}
		}
	}
	// The first public claim turns the conflicts of single namespaces into one of everyone, and
	// the end of the last public claim turns it back.
	if public != (h.public > 0) {
		maps.Copy(touched, h.crowded)
	}
	for name := range touched {
		if c, ok := h.settle(key, name, now, !was.same(next)); ok {
			changed = append(changed, c)
		}
	}
	return changed
}

// settle updates the conflict of a scope. It returns the conflict if it has changed, or if always is set. It
// removes a scope without claims.
func (h *host) settle(key hostKey, name string, now func() time.Time, always bool) (c HostConflict, changed bool) {
	s := h.scopes[name]
	if s == nil {
		return c, false
	}
	if len(s.claims) == 0 {
		delete(h.scopes, name)
	}
	had := !s.since.IsZero()
	switch conflict := h.contested(name, s); {
	case conflict && (!had || s.reported != s.sum):
		s.since, s.reported = now(), s.sum
	case !had || conflict && !always:
		return c, false
	}
	c = h.conflict(key, name, s)
	if c.Ended {
		s.since = time.Time{}
	}
	return c, true
}

// conflict describes the conflict of a scope, or its end.
func (h *host) conflict(key hostKey, name string, s *scope) HostConflict {
	shown := s.claims[:min(len(s.claims), maxShown)]
	out := HostConflict{
		Host: key.host, Kind: key.kind, Visibility: name, Claims: make([]Claim, len(shown)), More: len(s.claims) - len(shown),
		Since: s.since, Ended: !h.contested(name, s), sum: s.reported,
	}
	for i, c := range shown {
		out.Claims[i] = Claim{Namespace: c.namespace, Name: c.name, Source: c.source, Visibility: c.visibility.String()}
	}
	// If some claims are not public, there is no single winner: istiod prefers the claims that not everyone
	// sees. With very many claims, finding the winner would cost too much.
	merged := slices.ContainsFunc(shown, func(c *claimant) bool { return c.merges })
	if key.kind == federation.VirtualService && !out.Ended && out.More == 0 && h.public == len(shown) && !merged {
		w := slices.MinFunc(shown, func(a, b *claimant) int {
			return cmp.Or(a.created.Compare(b.created), cmp.Compare(a.name+"."+a.namespace, b.name+"."+b.namespace))
		})
		out.Winner = w.namespace + "/" + w.name
	}
	return out
}

// joinScopes sorts conflicts, and joins those that only differ in the namespace.
func joinScopes(conflicts []HostConflict) []HostConflict {
	if len(conflicts) == 0 {
		return nil
	}
	slices.SortFunc(conflicts, func(a, b HostConflict) int {
		return cmp.Or(mirror.CompareKinds(a.Kind, b.Kind), cmp.Compare(a.Host, b.Host), cmp.Compare(a.Visibility, b.Visibility))
	})
	type same struct {
		kind  mirror.Kind
		host  string
		sum   uint64
		ended bool
	}
	var out []HostConflict
	at := make(map[same]int, len(conflicts))
	scopes := make([][]string, 0, len(conflicts))
	for _, c := range conflicts {
		k := same{c.Kind, c.Host, c.sum, c.Ended}
		i, ok := at[k]
		if !ok {
			at[k] = len(out)
			out, scopes = append(out, c), append(scopes, []string{c.Visibility})
			continue
		}
		scopes[i] = append(scopes[i], c.Visibility)
		if c.Since.Before(out[i].Since) {
			out[i].Since = c.Since
		}
	}
	for i := range out {
		out[i].Visibility = federation.Visibility{Namespaces: scopes[i]}.String()
	}
	return out
}
