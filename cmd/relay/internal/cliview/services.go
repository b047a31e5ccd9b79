package cliview

import (
	"time"

	"meshrelay/admin/view"
	"meshrelay/services"
)

// Services returns services as a table.
func Services(all []services.Service) string {
	if len(all) == 0 {
		return "There are no services.\n"
	}
	return tableOf(view.Services, all, time.Time{}).String()
}

// Service returns a service with its ports, ServiceEntries and endpoints.
func Service(s services.Service) string {
	var p page
	p.printf("%s\n", view.Service(s))
	p.printf("Ports: %s\n\n", view.Services.Pick("Ports")[0].Cell(s, time.Time{}).Text)
	p.table(tableOf(view.ServiceEntries, s.Entries, time.Time{}))
	if len(s.Endpoints) > 0 {
		p.WriteString("\n")
		p.table(tableOf(view.Endpoints, s.Endpoints, time.Time{}))
	}
	return p.String()
}
