package ui

import (
	"fmt"
	"strings"
	"time"

	"meshrelay/admin"
	"meshrelay/admin/view"
	"meshrelay/downstream"
	"meshrelay/mirror"
	"meshrelay/sink"
)

// resourcePage explains why a resource is served as it is, and shows which clients have it.
func (p *Pages) resourcePage(r *request) (*Page, error) {
	e, err := p.data.Explain(r.query)
	if err != nil {
		return nil, err
	}
	command := fmt.Sprintf("relay explain %s %s", word(e.Kind.String()), word(e.Name))
	if e.Namespace != "" {
		command += " -n " + word(e.Namespace)
	}
	command = p.here(command)
	diff := p.here(command + " --diff")
	page := &Page{
		Title: cut(strings.TrimPrefix(e.Namespace+"/"+e.Name, "/")), Crumbs: []Link{{"Resources", "/resources"}, {cut(e.Kind.String()), "/resources?kind=" + queryOf(e.Kind.String())}},
		Lead: say(view.OutcomeLevel(e.Outcome), view.Headline(*e, r.now)), Command: command, Topics: []string{topicResources, topicClients, topicUpstreams},
		Sections: []Section{
			{ID: "explain", Title: "Copies of the upstreams", Text: append(p.servicesOf(e.Key), remarks(e)...), Facts: resourceFacts(e), Table: copies(e, r.now)},
			{ID: "clients", Title: "Clients", Text: distribution(e), Table: receipts(e.Clients, r.now)},
		},
	}
	if len(e.Sinks) > 0 {
		table := tableOf("Sinks", "", view.SinkCopies, e.Sinks, maxRows, r.now, func(sink.Applied) string { return "" })
		page.Sections = append(page.Sections, Section{ID: "sinks", Title: "Sinks", Table: table})
	}
	room := maxAllCode
	bounded := func(code, command string) string {
		if most := min(maxCode, room); len(code) > most {
			code = code[:strings.LastIndexByte(code[:most], '\n')+1] + "\n… too long for a page; to print all: " + command + "\n"
		}
		room = max(room-len(code), 0)
		return code
	}
	if e.Served != nil {
		text, err := e.Served.YAML()
		if err != nil {
			return nil, err
		}
		get := fmt.Sprintf("relay get %s %s -o yaml", word(e.Served.APIVersion+"/"+e.Served.Kind), word(e.Name))
		if e.Namespace != "" {
			get += " -n " + word(e.Namespace)
		}
		page.Sections = append(page.Sections, Section{ID: "yaml", Title: "YAML, as served", Code: bounded(string(text), p.here(get))})
		for i, s := range e.Sources {
			if s.From == nil || s.Outcome == admin.Renamed || i >= maxDiffs {
				continue
			}
			difference := "Too large for a page. To print it: " + diff + "\n"
			if len(s.From.Spec) <= maxCode && len(e.Served.Spec) <= maxCode {
				difference = view.Difference("upstream "+s.Upstream, s.From, "served", e.Served)
			}
			page.Sections = append(page.Sections, Section{
				ID: fmt.Sprint("diff-", i), Title: "Difference between upstream " + s.Upstream + " and the served resource", Code: bounded(difference, diff),
			})
		}
	}
	return page, nil
}

// maxDiffs is the most differences on a page. maxAllCode bounds them and the YAML together, in bytes.
const (
	maxDiffs   = 5
	maxAllCode = 48 << 10
)

func resourceFacts(e *admin.Explanation) []Fact {
	facts := []Fact{{"Kind", cell(e.Kind.String())}, {"Outcome", leveled(view.OutcomeLevel(e.Outcome), string(e.Outcome))}}
	if e.Source != "" {
		facts = append(facts, Fact{"Served from", linked(e.Source, upstreamHref(e.Source))})
	}
	if e.Version != "" {
		facts = append(facts, Fact{"Version", cell(e.Version)})
	}
	if !e.Since.IsZero() {
		facts = append(facts, Fact{"Unchanged for", at(e.Since)})
	}
	return facts
}

// remarks lists related resources: those that are merged with this one, have the same name, or claim its hosts.
func remarks(e *admin.Explanation) (list []State) {
	refer := func(words string, refs []mirror.Key) {
		for _, ref := range first(refs, maxReasons) {
			list = append(list, State{Level: view.None, Text: cut(words + ref.String()), Href: resourceHref(ref.Kind.String(), ref.Namespace, ref.Name)})
		}
		if more := len(refs) - maxReasons; more > 0 {
			list = append(list, say(view.None, fmt.Sprintf("and %d more", more)))
		}
	}
	if e.Into != (mirror.Key{}) {
		refer("It is merged into ", []mirror.Key{e.Into})
	}
	for _, c := range e.Sources {
		for _, line := range first(c.Trouble, maxReasons) {
			list = append(list, State{Level: view.Warn, Text: line, Href: upstreamHref(c.Upstream)})
		}
	}
	refer("Merged with ", e.Group)
	refer("There is also ", e.Also)
	refer("Another namespace has ", e.Elsewhere)
	for _, c := range first(e.HostConflicts, maxReasons) {
		for _, claim := range first(c.Claims, maxReasons) {
			if claim.Namespace == e.Namespace && claim.Name == e.Name {
				continue
			}
			s := say(view.Warn, fmt.Sprintf("Host %s is also claimed by %s/%s from %s", c.Host, claim.Namespace, claim.Name, claim.Source))
			s.Href = resourceHref(c.Kind.String(), claim.Namespace, claim.Name)
			list = append(list, s)
		}
		if c.Apart != "" {
			list = append(list, say(view.None, "They are not united: "+c.Apart))
		}
	}
	return list
}

func copies(e *admin.Explanation, now time.Time) *Table {
	return tableOf("Copies of the upstreams, in order of priority", "No upstream has it.", view.Copies, e.Sources, maxRows, now,
		func(c admin.SourceCopy) string { return upstreamHref(c.Upstream) })
}

// distribution tells which clients have the resource.
func distribution(e *admin.Explanation) []State {
	if len(e.Clients) == 0 {
		return nil
	}
	text, level := view.Distribution(e.Distribution)
	return []State{say(level, text)}
}

// receipts lists the clients that subscribe to the kind of a resource. Clients that have not acknowledged it come
// first.
func receipts(all []downstream.Receipt, now time.Time) *Table {
	t := tableOf("Clients that subscribe to its kind", "No client subscribes to this kind.", view.Receipts, falseFirst(all, view.HasReceived), maxRows, now,
		func(c downstream.Receipt) string { return clientHref(c.Connection) })
	if len(all) > 0 {
		t.Summary = fmt.Sprintf("%d of %s acknowledged it; %d are shown, those without it first", countIf(all, view.HasReceived), view.Count(len(all), "subscription"), len(t.Rows))
	}
	return t
}
