package conflicts

import (
	"cmp"
	"slices"
	"time"

	"meshrelay/federation"
	"meshrelay/mirror"
)

// host holds the claims of one host.
type host struct {
	all    claimSet
	public int // the number of claims in all that everyone sees
	// scoped holds the other claims, by the namespaces that see them.
	scoped map[string]claimSet
	// crowded are the namespaces in scoped that see several claims.
	crowded map[string]struct{}
	// since is when the present claims of a scope, "*" or a namespace, came into conflict. A
	// scope without a conflict has no entry.
	since map[string]since
}

type since struct {
	time time.Time
	sum  uint64
}

// in returns the claims of a scope, and whether they are in conflict there. A public claim is
// in conflict with all others, so that there is one conflict of all claims.
func (h *host) in(scope string) (set claimSet, conflict bool) {
	if scope == federation.Everyone {
		return h.all, h.public > 0 && h.all.len > 1
	}
	set = h.scoped[scope]
	return set, h.public == 0 && set.len > 1
}

// conflict describes the conflict of a scope, or its end.
func (h *host) conflict(key hostKey, scope string, s since) HostConflict {
	out := HostConflict{Host: key.host, Kind: key.kind.Kind, Visibility: scope, Since: s.time, sum: s.sum}
	set, conflict := h.in(scope)
	out.Ended = !conflict
	shown := set.first(maxShown)
	out.More = set.len - len(shown)
	out.Claims = make([]Claim, len(shown))
	for i, c := range shown {
		out.Claims[i] = Claim{Namespace: c.namespace, Name: c.name, Source: c.source, Visibility: c.visibility.String()}
	}
	// If some claims are not public, namespaces see different ones, and istiod prefers those.
	// With very many claims, finding the winner would cost too much.
	if key.kind == federation.ServiceHosts && !out.Ended && scope == federation.Everyone && h.public == set.len && out.More == 0 {
		w := slices.MinFunc(shown, func(a, b *claimant) int {
			return cmp.Or(a.created.Compare(b.created), cmp.Compare(a.name+"."+a.namespace, b.name+"."+b.namespace))
		})
		out.Winner = w.namespace + "/" + w.name
	}
	return out
}

// recompute finds whether a scope is in conflict, and describes the conflict if it changed, or
// in any case with always.
func (h *host) recompute(key hostKey, scope string, now time.Time, always bool) (c HostConflict, changed bool) {
	was, had := h.since[scope]
	set, conflict := h.in(scope)
	if !conflict {
		if !had {
			return c, false
		}
		delete(h.since, scope)
		return h.conflict(key, scope, was), true
	}
	s := since{now, set.sum}
	if had && was.sum == s.sum {
		if s.time = was.time; !always {
			return c, false
		}
	}
	if h.since == nil {
		h.since = map[string]since{}
	}
	h.since[scope] = s
	return h.conflict(key, scope, s), true
}

func (h *host) insert(c *claimant) {
	h.all.insert(c)
	if c.visibility.Public {
		h.public++
	}
	for _, ns := range c.visibility.Namespaces {
		set := h.scoped[ns]
		set.insert(c)
		h.keep(ns, set)
	}
}

// drop removes a claim, and reports whether it was there.
func (h *host) drop(c *claimant) bool {
	if !h.all.drop(c) {
		return false
	}
	if c.visibility.Public {
		h.public--
	}
	for _, ns := range c.visibility.Namespaces {
		set := h.scoped[ns]
		set.drop(c)
		h.keep(ns, set)
	}
	return true
}

// keep sets the claims that a namespace sees.
func (h *host) keep(ns string, set claimSet) {
	if h.scoped == nil {
		h.scoped = map[string]claimSet{}
	}
	switch set.len {
	case 0:
		delete(h.scoped, ns)
		return
	case 1:
		delete(h.crowded, ns)
	case 2:
		if h.crowded == nil {
			h.crowded = map[string]struct{}{}
		}
		h.crowded[ns] = struct{}{}
	}
	h.scoped[ns] = set
}

// joinScopes sorts conflicts, and joins those that differ in the namespace only.
func joinScopes(conflicts []HostConflict) []HostConflict {
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
