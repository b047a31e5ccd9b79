package merge

import (
	"slices"

	networking "istio.io/api/networking/v1alpha3"

	"meshrelay/federation"
	"meshrelay/federation/services"
	"meshrelay/mirror"
)

// Entries is the Policy of ServiceEntries for which another Policy decides: the copy of a service that has no endpoints now
// (services.Told) stands behind the next one, in the order of that Policy, that has some, and has the same hosts, ports,
// subjectAltNames and exportTo. That copy may lack ports for which it has no endpoints.
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
	if len(copies) < 2 || d.Winner < 0 || !services.Told(copies[d.Winner].Resource) {
		return d
	}
	leads := copies[d.Winner]
	bare := newEntry(leads.Resource.BodyValue(), leads.Resource.Namespace())
	var others []mirror.Copy
	var at []int
	for i, c := range copies {
		if federation.HasEndpoints(c.Resource.BodyValue()) {
			others, at = append(others, c), append(at, i)
		}
	}
	for len(others) > 0 {
		next := p.Order.Merge(others).Winner
		if next < 0 {
			break
		}
		if r := others[next].Resource; bare.describes(newEntry(r.BodyValue(), r.Namespace())) {
			return mirror.Decision{Served: r, Winner: at[next], Reason: d.Reason + ", but " + leads.Source + " has no endpoints"}
		}
		others, at = slices.Delete(others, next, next+1), slices.Delete(at, next, next+1)
	}
	return d
}

// describes reports whether e, which has no endpoints now, is the same service as another entry, which has.
func (e *entry) describes(other *entry) bool {
	return !e.broken && !other.broken && e.hosts == other.hosts && e.visibility.Equal(other.visibility) &&
		slices.Equal(sortedSet(e.SubjectAltNames), sortedSet(other.SubjectAltNames)) && len(other.Ports) > 0 && portsDiffer(e.portsIn(other), other.Ports) == ""
}

// portsIn returns the ports of e that another entry has, too.
func (e *entry) portsIn(other *entry) []*networking.ServicePort {
	return slices.DeleteFunc(slices.Clone(e.Ports), func(p *networking.ServicePort) bool {
		return !slices.ContainsFunc(other.Ports, func(o *networking.ServicePort) bool { return o.GetNumber() == p.GetNumber() })
	})
}
