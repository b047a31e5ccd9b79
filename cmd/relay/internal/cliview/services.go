package cliview

import (
	"slices"
	"time"

	"meshrelay/admin/view"
	"meshrelay/services"
)

var (
	endpointColumns = view.Endpoints[:len(view.Endpoints)-1]
	leftOutColumns  = view.Endpoints.Pick("Address", "Cluster", "Source", "Upstream", "Left out")
)

// Services returns services as a table.
func Services(all []services.Service) string {
	if len(all) == 0 {
		return "There are no services.\n"
	}
	return tableOf(view.Services, all, time.Time{}).String()
}

// Endpoints returns the endpoints of a service as a table.
func Endpoints(s services.Service) string {
	if len(s.Endpoints) == 0 {
		return Clean("No endpoint of "+s.Host+" matches: \"relay explain service "+s.Host+"\" tells why.") + "\n"
	}
	return tableOf(endpointColumns, s.Endpoints, time.Time{}).String()
}

// Service explains a service.
func Service(s services.Service) string {
	var p page
	p.printf("%s\n", view.Service(s))
	for _, f := range s.Findings {
		p.printf("%s\n", view.Finding(f))
	}
	for _, list := range view.Services.Pick("Ports", "Clusters", "Subsets") {
		if text := list.Cell(s, time.Time{}).Text; text != "" {
			p.printf("%s: %s\n", list.Title, text)
		}
	}
	p.WriteString("\n")
	p.table(tableOf(view.Applied, slices.Concat(s.Entries, s.Rules, s.Routes), time.Time{}))
	if len(s.LeftOut) > 0 {
		p.WriteString("\n")
		p.table(tableOf(leftOutColumns, s.LeftOut, time.Time{}))
	}
	return p.String()
}
