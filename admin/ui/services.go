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
	// withFindings is the option to list only services with findings.
	withFindings = "with findings"
	// maxServices is the most services on a page, maxServicePart the most rows of a table about one: they are long.
	maxServices, maxServicePart = maxRows / 2, maxRows / 3
)

var (
	appliedColumns    = view.Applied.Pick("Name", "Kind", "Upstream", "Cluster", "Outcome", "Reason")
	noEndpointColumns = view.Endpoints.Pick("Address", "Cluster", "Source", "Upstream", "Left out")
	serviceFacts      = view.Services.Pick("Ports", "Clusters", "Subsets")
)

func serviceHref(host, as string) string {
	q := url.Values{"host": {host}}
	if as != "" {
		q.Set("as", as)
	}
	return "/service?" + q.Encode()
}

// flag returns a command with a flag, if the parameter that it is for is given.
func (r *request) flag(command, parameter, flag string) string {
	if value := r.get(parameter); value != "" {
		command += " " + flag + " " + word(value)
	}
	return command
}

// serviceList lists the matching services, a page at a time. It describes those of the page only, and those with findings
// within the bounds of services.Find. Pages about services have no Topics: each open one would compute services anew at each
// change.
func (p *Pages) serviceList(r *request) (*Page, error) {
	a, err := p.data.Services(url.Values{
		"search": {r.get("q")}, "as": {r.get("as")}, "from": {r.get("from")}, "findings": {strconv.FormatBool(r.get("show") == withFindings)}, "limit": {strconv.Itoa(maxServices + 1)},
	})
	if err != nil {
		return nil, err
	}
	command := r.flag(r.flag("relay services", "q", "--search"), "as", "--as")
	page := &Page{Title: "Services", Lead: say(OK, view.Count(len(a.Services)+a.More, "service"))}
	if r.get("show") == withFindings {
		command += " --findings"
		page.Lead = say(view.OKIf(len(a.Services) == 0, Warn), view.Count(min(len(a.Services), maxServices), "service")+" with findings")
	}
	if from := r.get("from"); from != "" {
		page.Lead.Text = cut(page.Lead.Text + " from " + from + " on")
	}
	t := tableOf("Services", "No service matches.", view.Services, a.Services, maxServices, r.now, func(s services.Service) string { return serviceHref(s.Host, r.get("as")) })
	t.Summary = fmt.Sprintf("%d are shown", len(t.Rows))
	if len(a.Services) > maxServices {
		t.Next = r.with("from", a.Services[maxServices].Host)
		t.Summary += ", more follow"
	}
	page.Command = p.here(command)
	page.Sections = []Section{{ID: "list", Table: t, Text: partial(a), Search: r.search("/services",
		Field{Name: "as", Label: "Seen from namespace", Value: r.get("as")},
		Field{Name: "show", Label: "Show", Value: r.get("show"), Options: []string{withFindings}})}}
	return page, nil
}

func partial(a services.Answer) []State {
	if !a.Partial {
		return nil
	}
	return []State{say(Warn, view.PartialServices)}
}

// servicePage shows what makes a service, and its endpoints.
func (p *Pages) servicePage(r *request) (*Page, error) {
	q := url.Values{}
	for _, name := range []string{"host", "port", "subset", "as"} {
		q.Set(name, r.get(name))
	}
	if r.get("host") == "" {
		return nil, badRequest("host is empty: want the host of a service.")
	}
	a, err := p.data.Services(q)
	switch {
	case err != nil:
		return nil, err
	case len(a.Services) == 0:
		return nil, notFound("%s", view.NoService(r.get("host"), a))
	}
	s := a.Services[0]
	about := Section{ID: "service", Text: partial(a)}
	for _, f := range first(s.Findings, maxReasons) {
		about.Text = append(about.Text, say(Warn, view.Finding(f)))
	}
	for _, column := range serviceFacts {
		about.Facts = append(about.Facts, Fact{column.Title, cell(column.Cell(s, r.now).Text)})
	}
	about.Facts = append(about.Facts, Fact{"Location", cell(s.Location)}, Fact{"Addresses", cell(strings.Join(first(s.Addresses, maxReasons), ", "))})
	host := s.Host
	if port := r.get("port"); port != "" {
		host += ":" + port
	}
	explain, endpoints := p.here(r.flag("relay explain service "+word(s.Host), "as", "--as")), p.here(r.flag(r.flag("relay endpoints "+word(host), "as", "--as"), "subset", "--subset"))
	source := func(e services.Endpoint) string { return keyHref(e.From) }
	sections := []Section{
		about,
		{ID: "resources", Title: "Resources", Table: boundedTable("Resources, in order of precedence", appliedColumns, slices.Concat(s.Entries, s.Rules, s.Routes),
			s.More["entries"]+s.More["rules"]+s.More["routes"], explain, r, func(a services.Applied) string { return keyHref(a.Key) })},
		{ID: "endpoints", Title: "Endpoints", Table: boundedTable("Endpoints", view.Endpoints[:len(view.Endpoints)-1], s.Endpoints, s.More["endpoints"], endpoints, r, source),
			Search: &Search{Href: "/service", Fields: []Field{
				{Name: "host", Label: "Host", Value: s.Host}, {Name: "port", Label: "Port", Value: r.get("port")},
				{Name: "subset", Label: "Subset", Value: r.get("subset")}, {Name: "as", Label: "Seen from namespace", Value: r.get("as")},
			}}},
	}
	if len(s.LeftOut) > 0 {
		sections = append(sections, Section{ID: "leftout", Title: "Endpoints that are left out", Table: boundedTable("Endpoints that are left out", noEndpointColumns, s.LeftOut, s.More["leftOut"], explain, r, source)})
	}
	return &Page{
		Title: cut(s.Host), Crumbs: []Link{{"Services", "/services"}}, Command: explain,
		Lead: say(view.OKIf(len(s.Findings) == 0, Warn), view.Service(s)), Sections: sections,
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
		s := say(None, "Service "+h)
		if s.Href = serviceHref(h, ""); key.Kind != federation.ServiceEntry { // there may be none
			s = State{None, cut("Services of " + h), "/services?q=" + queryOf(strings.TrimPrefix(h, "*"))}
		}
		list = append(list, s)
	}
	if more := len(hosts) - len(list); more > 0 {
		list = append(list, say(None, fmt.Sprintf("and %d more", more)))
	}
	return list
}
