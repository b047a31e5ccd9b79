package view

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"meshrelay/admin"
	words "meshrelay/internal/text"
	"meshrelay/services"
)

// Services are the columns of a table of services.
var Services = Columns[services.Service]{
	text("Host", func(s services.Service) string { return s.Host }),
	text("Ports", func(s services.Service) string {
		return listOf(s, "ports", s.Ports, func(p services.Port) string { return strings.TrimSpace(fmt.Sprintf("%d %s", p.Number, p.Name)) })
	}),
	text("Clusters", func(s services.Service) string {
		return listOf(s, "clusters", s.Clusters, func(c string) string { return c })
	}),
	level("Ready", func(s services.Service, _ time.Time) (string, Level) {
		return fmt.Sprintf("%d/%d", s.Ready, s.All), OKIf(s.Ready == s.All, Warn)
	}),
	text("Subsets", func(s services.Service) string {
		return listOf(s, "subsets", s.Subsets, func(sub services.Subset) string {
			if sub.Endpoints < 0 {
				return sub.Name
			}
			return fmt.Sprintf("%s (%d)", sub.Name, sub.Endpoints)
		})
	}),
	level("Findings", func(s services.Service, _ time.Time) (string, Level) {
		return listOf(s, "findings", s.Findings, func(f services.Finding) string { return string(f.Kind) }), Warn
	}),
}

// ServiceFindings are the columns of a table of findings about services.
var ServiceFindings = Columns[admin.ServiceFinding]{
	text("Service", func(f admin.ServiceFinding) string { return f.Host }),
	text("Namespace", func(f admin.ServiceFinding) string { return f.Namespace }),
	level("Finding", func(f admin.ServiceFinding, _ time.Time) (string, Level) { return string(f.Kind), Warn }),
	text("Detail", func(f admin.ServiceFinding) string { return f.Detail }),
}

// Endpoints are the columns of a table of the endpoints of a service.
var Endpoints = Columns[services.Endpoint]{
	text("Address", func(e services.Endpoint) string { return e.Address }),
	text("Ports", func(e services.Endpoint) string {
		return listOf(services.Service{}, "", e.Ports, func(p services.EndpointPort) string { return fmt.Sprintf("%d:%d", p.Service, p.Port) })
	}),
	text("Cluster", func(e services.Endpoint) string { return e.Cluster }),
	text("Network", func(e services.Endpoint) string { return e.Network }),
	text("Locality", func(e services.Endpoint) string { return e.Locality }),
	number("Weight", func(e services.Endpoint) uint64 { return uint64(e.Weight) }),
	level("Health", func(e services.Endpoint, _ time.Time) (string, Level) {
		return string(e.Health), OKIf(e.Health == services.Healthy, Warn)
	}),
	text("Account", func(e services.Endpoint) string { return e.Account }),
	text("TLS", func(e services.Endpoint) string { return e.TLSMode }),
	text("Source", func(e services.Endpoint) string {
		return e.From.Kind.Kind + " " + words.Name(e.From.Namespace+"/"+e.From.Name)
	}),
	text("Upstream", func(e services.Endpoint) string { return e.Upstream }),
	text("Left out", func(e services.Endpoint) string { return e.Reason }),
}

// Applied are the columns of a table of the resources that may decide about a service.
var Applied = Columns[services.Applied]{
	text("Kind", func(a services.Applied) string { return a.Kind.Kind }),
	text("Name", func(a services.Applied) string { return words.Name(a.Namespace + "/" + a.Name) }),
	text("Upstream", func(a services.Applied) string { return a.Upstream }),
	text("Cluster", func(a services.Applied) string { return a.Cluster }),
	level("Outcome", func(a services.Applied, _ time.Time) (string, Level) {
		return string(a.Outcome), map[bool]Level{true: OK, false: None}[a.Outcome == services.Applies]
	}),
	text("Reason", func(a services.Applied) string { return a.Reason }),
}

// Service returns a service in a sentence.
func Service(s services.Service) string {
	kind := "ServiceEntry"
	if s.Kubernetes {
		kind = "Kubernetes service"
	}
	return fmt.Sprintf("%s is a service of namespace %s: %s, %s. Ready: %d of %s.", s.Host, s.Namespace, kind, s.Resolution, s.Ready, Count(s.All, "endpoint"))
}

// Finding returns a finding in a sentence.
func Finding(f services.Finding) string { return fmt.Sprintf("Finding (%s): %s.", f.Kind, f.Detail) }

// NoService returns a sentence about a host that does not exist.
func NoService(host string, a services.Answer) string {
	if len(a.Similar) == 0 {
		return fmt.Sprintf("there is no service %s, and no host like it: \"relay services\" lists all", host)
	}
	return fmt.Sprintf("there is no service %s: similar hosts: %s", host, strings.Join(a.Similar, ", "))
}

// PartialServices is shown with services that are not complete.
const PartialServices = "there is too much to count everything: numbers are too low"

// maxListed is the most elements in a cell.
const maxListed = 6

// listOf joins the elements of a list of a service, with the number of those that are not shown.
func listOf[T any](s services.Service, name string, all []T, of func(T) string) string {
	var shown []string
	for _, one := range all[:min(len(all), maxListed)] {
		shown = append(shown, of(one))
	}
	if more := len(all) - len(shown) + s.More[name]; more > 0 {
		shown = append(shown, strconv.Itoa(more)+" more")
	}
	return strings.Join(shown, ", ")
}
