package services

import (
	"fmt"
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"meshrelay/internal/text"
	"meshrelay/mirror"
)

// FindingKind is a kind of Finding.
type FindingKind string

// The findings.
const (
	PortsDiffer FindingKind = "ports"     // two clusters have other ports
	EmptySubset FindingKind = "subset"    // a subset has no endpoint
	NoEndpoints FindingKind = "endpoints" // no endpoint is ready
	SelectsAll  FindingKind = "selector"  // a workloadSelector without labels selects a whole namespace
)

// Finding is something that an operator should look at.
type Finding struct {
	Kind   FindingKind `json:"kind"`
	Detail string      `json:"detail"`
}

// addFindings adds the findings of a service. all are the entries of its host, the first ones, mine, of its namespace.
func (w *world) addFindings(s *Service, all []*entry, mine int) {
	add := func(kind FindingKind, format string, args ...any) {
		s.Findings = append(s.Findings, Finding{kind, fmt.Sprintf(format, args...)})
	}
	lead, selects := all[0], false
	for _, e := range all[:mine] {
		if selector := e.body().GetWorkloadSelector(); selector != nil && !passes(e.body()) {
			selects = selects || len(selector.GetLabels()) > 0
			if len(selector.GetLabels()) == 0 && !e.made {
				add(SelectsAll, "the workloadSelector of %s has no labels: it selects every workload of its namespace", text.Name(e.FullName()))
			}
		}
	}
	told := map[string]bool{}
	for _, e := range all {
		for _, other := range slices.Concat([]*entry{e}, w.copies[e.Key()]) {
			if other.Cluster() == lead.Cluster() || other.HasAnnotation(mirror.SiblingAnnotation) || told[other.Cluster()] || !w.charge(len(lead.body().GetPorts())+len(other.body().GetPorts())) {
				continue
			}
			if why := differ(lead, other); why != "" {
				told[other.Cluster()] = true
				add(PortsDiffer, "%s", why)
			}
		}
	}
	switch {
	case passes(lead.body()) || w.partial:
	case s.All == 0 && selects:
		// The pods that it selects in the clusters of the clients are not known here.
	case s.Ready == 0:
		add(NoEndpoints, "none of %d endpoints is ready", s.All)
	default:
		for _, sub := range s.Subsets {
			if sub.Endpoints == 0 {
				add(EmptySubset, "subset %s has none of %d endpoints", text.Name(sub.Name), s.All)
			}
		}
	}
}

// differ returns the first port in which the entries of two clusters differ, "" for none.
func differ(a, b *entry) string {
	lacks := func(number uint32, has, lacks *entry) string {
		return fmt.Sprintf("port %d: cluster %s has it, cluster %s has not", number, has.Cluster(), lacks.Cluster())
	}
	rest := map[uint32]*networking.ServicePort{}
	for _, p := range a.body().GetPorts() {
		rest[p.GetNumber()] = p
	}
	for _, p := range b.body().GetPorts() {
		q := rest[p.GetNumber()]
		switch {
		case q == nil:
			return lacks(p.GetNumber(), b, a)
		case q.GetName() != p.GetName():
			return fmt.Sprintf("port %d: its name is %q in cluster %s, and %q in cluster %s: istiods do not unite the endpoints",
				p.GetNumber(), text.Abbreviate(q.GetName()), a.Cluster(), text.Abbreviate(p.GetName()), b.Cluster())
		case !strings.EqualFold(q.GetProtocol(), p.GetProtocol()):
			return fmt.Sprintf("port %d: its protocol is %s in cluster %s, and %s in cluster %s",
				p.GetNumber(), text.Abbreviate(q.GetProtocol()), a.Cluster(), text.Abbreviate(p.GetProtocol()), b.Cluster())
		}
		delete(rest, p.GetNumber())
	}
	for _, p := range a.body().GetPorts() {
		if rest[p.GetNumber()] != nil {
			return lacks(p.GetNumber(), a, b)
		}
	}
	return ""
}
