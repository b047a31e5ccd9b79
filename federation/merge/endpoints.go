package merge

import (
	"slices"

	networking "istio.io/api/networking/v1alpha3"

	"meshrelay/federation"
	"meshrelay/mirror"
)

// Entries is the Policy of ServiceEntries for which another Policy decides: a copy of a service without endpoints stands
// behind the next one, in the order of that Policy, that has some, and has the same hosts, ports, subjectAltNames and
// exportTo. A service is without endpoints if it has none and could have some: its resolution is STATIC, and it selects
// no workloads.
type Entries struct{ Order mirror.Policy }

// ForEntries returns Entries of a Policy. A Grouper is returned itself: it unites endpoints, and nil is mirror.First.
func ForEntries(p mirror.Policy) mirror.Policy {
	if p == nil {
		p = mirror.First{}
	}
	if _, unites := p.(mirror.Grouper); unites {
		return p
	}
	return Entries{p}
}

// Merge implements mirror.Policy.
func (p Entries) Merge(copies []mirror.Copy) mirror.Decision {
	d := p.Order.Merge(copies)
	if len(copies) < 2 || d.Winner < 0 || federation.HasEndpoints(copies[d.Winner].Resource.BodyValue()) {
		return d
	}
	leads := copies[d.Winner]
	empty := newEntry(leads.Resource.BodyValue(), leads.Resource.Namespace())
	if empty.broken || empty.Resolution != networking.ServiceEntry_STATIC || empty.WorkloadSelector != nil {
		return d
	}
	var others []mirror.Copy
	var at []int
	for i, c := range copies {
		if federation.HasEndpoints(c.Resource.BodyValue()) && empty.describes(newEntry(c.Resource.BodyValue(), c.Resource.Namespace())) {
			others, at = append(others, c), append(at, i)
		}
	}
	if len(others) == 0 {
		return d
	}
	next := p.Order.Merge(others)
	if next.Winner < 0 {
		return d
	}
	return mirror.Decision{Served: next.Served, Winner: at[next.Winner], Reason: d.Reason + ", but " + leads.Source + " has no endpoints"}
}

// describes reports whether two entries have the same hosts, ports, subjectAltNames and exportTo.
func (e *entry) describes(other *entry) bool {
	return !other.broken && e.hosts == other.hosts && e.visibility.Equal(other.visibility) &&
		slices.Equal(sortedSet(e.SubjectAltNames), sortedSet(other.SubjectAltNames)) && portsDiffer(e.Ports, other.Ports) == ""
}
