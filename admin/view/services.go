package view

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"time"

	words "meshrelay/internal/text"
	"meshrelay/services"
)

// Services are the columns of a table of services.
var Services = Columns[services.Service]{
	text("Host", func(s services.Service) string { return s.Host }),
	text("Ports", func(s services.Service) string {
		return listOf(s, "ports", s.Ports, func(p services.Port) string { return strings.TrimSpace(fmt.Sprintf("%d %s", p.Number, p.Name)) })
	}),
	timed("Clusters", func(s services.Service, now time.Time) string {
		return listOf(s, "clusters", s.Clusters, func(c string) string { return contact(c, s.ContactLost[c], now) })
	}),
	number("Endpoints", func(s services.Service) int { return s.All }),
}

// ServiceEntries are the columns of a table of the ServiceEntries of a host.
var ServiceEntries = Columns[services.Entry]{
	text("Name", func(e services.Entry) string { return words.Name(e.Namespace + "/" + e.Name) }),
	timed("Upstream", func(e services.Entry, now time.Time) string { return contact(e.Upstream, e.ContactLost, now) }),
	text("Cluster", func(e services.Entry) string { return e.Cluster }),
	text("Resolution", func(e services.Entry) string { return e.Resolution }),
	text("Exported to", func(e services.Entry) string { return cmp.Or(strings.Join(e.ExportTo, ", "), "*") }),
	number("Endpoints", func(e services.Entry) int { return e.Endpoints }),
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
	text("Account", func(e services.Endpoint) string { return e.Account }),
	text("Source", func(e services.Endpoint) string {
		return e.From.Kind.Kind + " " + words.Name(e.From.Namespace+"/"+e.From.Name)
	}),
	timed("Upstream", func(e services.Endpoint, now time.Time) string { return contact(e.Upstream, e.ContactLost, now) }),
}

// contact returns the name of a source or cluster, and for how long it is out of contact.
func contact(name string, lost, now time.Time) string {
	if lost.IsZero() {
		return name
	}
	return fmt.Sprintf("%s (out of contact for %s)", name, Ago(lost, now))
}

// Service returns a service in a sentence.
func Service(s services.Service) string {
	return fmt.Sprintf("%s: %s of %s.", s.Host, Count(s.All, "endpoint"), Count(len(s.Entries)+s.More["entries"], "resource"))
}

// NoService returns a sentence about a host that does not exist.
func NoService(host string) string {
	label, _, _ := strings.Cut(host, ".")
	return fmt.Sprintf("there is no service %s: \"relay services --search %s\" lists hosts like it", host, words.Word(label))
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
