package cliview

import (
	"time"

	"meshrelay/admin/view"
	"meshrelay/services"
)

// Services returns services as a table. Ages are relative to now.
func Services(all []services.Service, now time.Time) string {
	return listed("There are no services.\n", view.Services, all, now)
}

// Service returns a service with its ports, ServiceEntries and endpoints. Ages are relative to now.
func Service(s services.Service, now time.Time) string {
	var p page
	p.printf("%s\n", view.Service(s))
	p.printf("Ports: %s\n\n", view.Services.Pick("Ports")[0].Cell(s, now).Text)
	p.table(tableOf(view.ServiceEntries, s.Entries, now))
	p.part("\n", listed("", view.Endpoints, s.Endpoints, now))
	return p.String()
}
