package upstreams

import (
	"slices"
	"time"

	"meshrelay/mirror"
	"meshrelay/trouble"
)

// Trouble returns the problems of the upstream that relays are told which have this one, of the given name, as upstream:
// its own, and what the relay behind it tells. It leaves out addresses, errors and names of resources.
func (st *Status) Trouble(relay string) (own, told []trouble.Problem) {
	p := trouble.Problem{Upstream: st.Name, Cluster: st.ClusterID, Relays: []string{relay}}
	if st.State != StateSynced && st.State != StateSyncing {
		p.What, p.Since = trouble.What(st.State), st.Since
		own = append(own, p)
	}
	if h := st.Held; h != nil {
		p.What, p.Since, p.N, p.Of = trouble.Held, h.Since, h.Removals, h.Of
		own = append(own, p)
	}
	p = p.Bare()
	if st.Frozen != nil {
		p.What, p.Since = trouble.Frozen, st.Frozen.Since
		own = append(own, p)
	}
	if st.Stale {
		p.What, p.Since = trouble.Stale, st.StaleSince
		own = append(own, p)
	}
	if n := st.RefusedTotal + st.OverLimit; n > 0 {
		p.What, p.Since, p.N = trouble.Refused, time.Time{}, n
		own = append(own, p)
	}
	for _, one := range st.Told.Problems {
		if p, ok := one.Through(st.Name, relay); ok {
			told = append(told, p)
		}
	}
	return own, told
}

// Has reports whether accept accepts a resource that the upstream of a name has.
func (m *Manager) Has(name string, accept func(*mirror.Resource) bool) bool {
	u, err := m.upstream(name)
	if err != nil {
		return false
	}
	for kind := range u.store.Counts() {
		if slices.ContainsFunc(u.store.List(kind, ""), accept) {
			return true
		}
	}
	return false
}

// Moved has an element when the status of an upstream may have changed.
func (m *Manager) Moved() <-chan struct{} { return m.moved }
