package kubernetes

import (
	"fmt"
	"strings"
)

// Detail is the part of a status that only API servers have.
type Detail struct {
	// Cluster is the UID of the cluster's namespace kube-system, empty while unknown.
	Cluster string `json:"cluster,omitempty"`
	// Server is the version of the API server, empty while unknown.
	Server string `json:"server,omitempty"`
	// Rotations counts the changes of the credentials.
	Rotations uint64 `json:"rotations,omitempty"`
	// UnknownFields are the kinds of objects with fields that this build does not know.
	UnknownFields []string `json:"unknownFields,omitempty"`
	// Namespaces counts the namespaces of the cluster. Selected counts those that discoverySelectors select.
	Namespaces int `json:"namespaces,omitempty"`
	Selected   int `json:"selected,omitempty"`
	// NamespaceProblems names namespaces whose newest metadata can not be used, at most twenty.
	// NamespaceProblemsTotal counts all.
	NamespaceProblems      []string `json:"namespaceProblems,omitempty"`
	NamespaceProblemsTotal int      `json:"namespaceProblemsTotal,omitempty"`
	// ServiceProblems names inputs of services that can not be used, and endpoints that are left out, at
	// most twenty. ServiceProblemsTotal counts all.
	ServiceProblems      []string `json:"serviceProblems,omitempty"`
	ServiceProblemsTotal int      `json:"serviceProblemsTotal,omitempty"`
	// Ingress is set if Ingresses are converted.
	Ingress *IngressDetail `json:"ingress,omitempty"`
}

// IngressDetail is the state of the conversion of a cluster's Ingresses.
type IngressDetail struct {
	// Ingresses counts the Ingresses that could be decoded. Converted counts those from which outputs are
	// made. Refused counts those whose newest content can not be used; their last good content is converted.
	Ingresses int `json:"ingresses"`
	Converted int `json:"converted"`
	Refused   int `json:"refused,omitempty"`
	// Problems names parts of Ingresses that are left out, or that no request reaches, at most twenty.
	// ProblemsTotal counts all.
	Problems      []string `json:"problems,omitempty"`
	ProblemsTotal int      `json:"problemsTotal,omitempty"`
}

// notes returns lines for operators about an API server.
func (d *Detail) notes() (lines []string) {
	if d.Namespaces > 0 {
		lines = append(lines, fmt.Sprintf("%d of %d namespaces selected", d.Selected, d.Namespaces))
	}
	add := func(named []string, all int, of string) {
		lines = append(lines, named...)
		if more := all - len(named); more > 0 {
			lines = append(lines, fmt.Sprintf("problems of its %s that are not listed: %d", of, more))
		}
	}
	add(d.NamespaceProblems, d.NamespaceProblemsTotal, "namespaces")
	add(d.ServiceProblems, d.ServiceProblemsTotal, "services")
	if i := d.Ingress; i != nil {
		add(i.Problems, i.ProblemsTotal, "Ingresses")
	}
	if len(d.UnknownFields) > 0 {
		lines = append(lines, fmt.Sprintf("unknown fields in objects of %s: this build leaves them out", strings.Join(d.UnknownFields, ", ")))
	}
	return lines
}
