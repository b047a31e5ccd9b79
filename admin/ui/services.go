package ui

import (
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"meshrelay/admin/view"
	"meshrelay/federation"
	"meshrelay/mirror"
	"meshrelay/services"
)

const (
	// maxServices is the most services on a page, maxServicePart the most rows of a table about one: they are long.
	maxServices, maxServicePart = maxRows / 2, maxRows / 3
)

func serviceHref(host string) string { return "/service?host=" + queryOf(host) }

// serviceList lists the matching services, a page at a time. Pages about services have no Topics: each open one would
// compute services anew at each change.
func (p *Pages) serviceList(r *request) (*Page, error) {
	a, err := p.data.Services(url.Values{"search": {r.get("q")}, "from": {r.get("from")}, "limit": {strconv.Itoa(maxServices + 1)}})
	if err != nil {
		return nil, err
	}
	command := "relay services"
	if q := r.get("q"); q != "" {
		command += " --search " + word(q)
	}
	page := &Page{Title: "Services", Lead: say(view.OK, view.Count(len(a.Services)+a.More, "service")), Command: p.here(command)}
	if from := r.get("from"); from != "" {
		page.Lead.Text = cut(page.Lead.Text + " from " + from + " on")
	}
	t := tableOf("Services", "No service matches.", view.Services, a.Services, maxServices, r.now, func(s services.Service) string { return serviceHref(s.Host) })
	t.Summary = fmt.Sprintf("%d are shown", len(t.Rows))
	if len(a.Services) > maxServices {
		t.Next = r.with("from", a.Services[maxServices].Host)
		t.Summary += ", more follow"
	}
	page.Sections = []Section{{ID: "list", Table: t, Text: partial(a), Search: r.search("/services")}}
	return page, nil
}

func partial(a services.Answer) []State {
	if !a.Partial {
		return nil
	}
	return []State{say(view.Warn, view.PartialServices)}
}

// servicePage shows the ServiceEntries of a host, and its endpoints.
func (p *Pages) servicePage(r *request) (*Page, error) {
	host := r.get("host")
	if host == "" {
		return nil, badRequest("host is empty: want the host of a service.")
	}
	a, err := p.data.Services(url.Values{"host": {host}, "port": {r.get("port")}})
	switch {
	case err != nil:
		return nil, err
	case len(a.Services) == 0:
		return nil, notFound("%s", view.NoService(host))
	}
	s := a.Services[0]
	asked := s.Host
	if port := r.get("port"); port != "" {
		asked += ":" + port
	}
	command := p.here("relay services " + word(asked))
	about := Section{ID: "service", Text: partial(a), Facts: []Fact{{"Addresses", cell(strings.Join(first(s.Addresses, maxReasons), ", "))}}}
	for _, column := range view.Services.Pick("Ports", "Clusters") {
		about.Facts = append(about.Facts, Fact{column.Title, cell(column.Cell(s, r.now).Text)})
	}
	return &Page{
		Title: cut(s.Host), Crumbs: []Link{{"Services", "/services"}}, Command: command, Lead: say(view.None, view.Service(s)),
		Sections: []Section{
			about,
			{ID: "entries", Title: "ServiceEntries", Table: boundedTable("ServiceEntries of the host", view.ServiceEntries, s.Entries, s.More["entries"], command, r, func(e services.Entry) string { return keyHref(e.Key) })},
			{ID: "endpoints", Title: "Endpoints", Table: boundedTable("Endpoints", view.Endpoints, s.Endpoints, s.More["endpoints"], command, r, func(e services.Endpoint) string { return keyHref(e.From) }),
				Search: &Search{Href: "/service", Fields: []Field{{Name: "host", Label: "Host", Value: s.Host}, {Name: "port", Label: "Port", Value: r.get("port")}}}},
		},
	}, nil
}

func keyHref(key mirror.Key) string { return resourceHref(key.Kind.String(), key.Namespace, key.Name) }

// boundedTable returns a table of the first maxServicePart elements. more is the number of those that the list lacks, and
// command prints all.
func boundedTable[T any](caption string, columns view.Columns[T], all []T, more int, command string, r *request, href func(T) string) *Table {
	t := tableOf(caption, "There are none.", columns, all, maxServicePart, r.now, href)
	t.Summary = strconv.Itoa(len(all) + more)
	if more += len(all) - len(t.Rows); more > 0 {
		t.Summary = fmt.Sprintf("%d of %d; to print all: %s", len(t.Rows), len(t.Rows)+more, command)
	}
	return t
}

// servicesOf links to the services of a resource.
func (p *Pages) servicesOf(key mirror.Key) (list []State) {
	one := p.data.Resources.Resolve(key).Served
	if one == nil || !slices.Contains([]mirror.Kind{federation.ServiceEntry, federation.DestinationRule, federation.VirtualService}, key.Kind) {
		return nil
	}
	hosts := federation.Claims(one, federation.DefaultDomain)
	for _, h := range first(hosts, maxReasons) {
		s := say(view.None, "Service "+h)
		if s.Href = serviceHref(h); key.Kind != federation.ServiceEntry { // there may be none
			s = State{view.None, cut("Services of " + h), "/services?q=" + queryOf(strings.TrimPrefix(h, "*"))}
		}
		list = append(list, s)
	}
	if more := len(hosts) - len(list); more > 0 {
		list = append(list, say(view.None, fmt.Sprintf("and %d more", more)))
	}
	return list
}
