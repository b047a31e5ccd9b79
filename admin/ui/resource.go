package ui

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"meshrelay/admin"
	"meshrelay/downstream"
	"meshrelay/downstream/subscription"
	"meshrelay/internal/cliview"
)

// resourcePage answers: why is this served as it is, and who has it?
func (p *Pages) resourcePage(r *request) (*Page, error) {
	e, err := p.data.Explain(r.query)
	if err != nil {
		return nil, err
	}
	command := fmt.Sprintf("relay explain %s %s", word(e.Kind), word(e.Name))
	if e.Namespace != "" {
		command += " -n " + word(e.Namespace)
	}
	command = p.here(command)
	diff := p.here(command + " --diff")
	page := &Page{
		Title: cut(strings.TrimPrefix(e.Namespace+"/"+e.Name, "/")), Crumbs: []Link{{"Resources", "/resources"}, {cut(e.Kind), "/resources?kind=" + queryOf(e.Kind)}},
		Lead: say(outcomeLevel(e.Outcome), cliview.Headline(*e, r.now)), Command: command, Topics: []string{topicResources, topicClients, topicUpstreams},
		Sections: []Section{
			{ID: "explain", Title: "From its upstreams to what is served", Text: remarks(e), Facts: resourceFacts(e), Table: copies(e)},
			{ID: "clients", Title: "Who has it", Table: receipts(e.Clients)},
		},
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
		page.Sections = append(page.Sections, Section{ID: "yaml", Title: "YAML, as served", Code: Bounded(string(text), p.here(get))})
		for i, s := range e.Sources {
			if s.From == nil || s.Outcome == admin.Renamed || i >= maxDiffs {
				continue
			}
			difference := "Too large for a page: " + diff + "\n"
			if len(s.From.Spec) <= maxCode && len(e.Served.Spec) <= maxCode {
				difference = cliview.Difference("upstream "+s.Upstream, s.From, "served", e.Served)
			}
			page.Sections = append(page.Sections, Section{
				ID: fmt.Sprint("diff-", i), Title: "Difference: upstream " + s.Upstream + " and what is served", Code: Bounded(difference, diff),
			})
		}
	}
	page.boundCode()
	return page, nil
}

// maxDiffs bounds the differences of a page, and maxAllCode their bytes together with the YAML.
const (
	maxDiffs   = 5
	maxAllCode = 48 << 10
)

// boundCode bounds what a page has of YAML and differences in all.
func (p *Page) boundCode() {
	room := maxAllCode
	for i := range p.Sections {
		s := &p.Sections[i]
		if len(s.Code) > room {
			s.Code = cutCode(s.Code, room) + "\n… the page is full; all of it: " + p.Command + "\n"
			room = 0
			continue
		}
		room -= len(s.Code)
	}
}

func outcomeLevel(o admin.Outcome) Level {
	switch o {
	case admin.Served:
		return OK
	case admin.Refused, admin.Rejected, admin.Missing, admin.Expired:
		return Bad
	case admin.Frozen, admin.Changing:
		return Warn
	}
	return None
}

func resourceFacts(e *admin.Explanation) []Fact {
	facts := []Fact{{"Kind", cell(e.Kind)}, {"Outcome", leveled(outcomeLevel(e.Outcome), string(e.Outcome))}}
	if e.Source != "" {
		facts = append(facts, Fact{"Served from", linked(e.Source, "/upstreams/"+pathOf(e.Source))})
	}
	if e.Version != "" {
		facts = append(facts, Fact{"Version", cell(e.Version)})
	}
	if !e.Since.IsZero() {
		facts = append(facts, Fact{"Unchanged for", at(e.Since)})
	}
	return facts
}

// remarks lists other resources that matter to this one: other owners of its hosts, and copies that
// are not united.
func remarks(e *admin.Explanation) (list []State) {
	refer := func(words string, refs []admin.Ref) {
		for _, ref := range refs[:min(len(refs), maxReasons)] {
			list = append(list, State{Level: None, Text: cut(words + ref.String()), Href: resourceHref(ref.Kind, ref.Namespace, ref.Name)})
		}
		if more := len(refs) - maxReasons; more > 0 {
			list = append(list, say(None, fmt.Sprintf("and %d more", more)))
		}
	}
	if e.Into != nil {
		refer("It is merged into ", []admin.Ref{*e.Into})
	}
	refer("Merged with ", e.Group)
	refer("There is also ", e.Also)
	refer("Another namespace has ", e.Elsewhere)
	for i, c := range e.HostConflicts {
		if i == maxReasons {
			break
		}
		for _, claim := range c.Claims[:min(len(c.Claims), maxReasons)] {
			if claim.Namespace == e.Namespace && claim.Name == e.Name {
				continue
			}
			s := say(Warn, fmt.Sprintf("Host %s is also claimed by %s/%s from %s", c.Host, claim.Namespace, claim.Name, claim.Source))
			s.Href = resourceHref(c.Kind.String(), claim.Namespace, claim.Name)
			list = append(list, s)
		}
		if c.Apart != "" {
			list = append(list, say(None, "They are not united: "+c.Apart))
		}
	}
	return list
}

func copies(e *admin.Explanation) *Table {
	t := &Table{Caption: "Copies of the upstreams, in order of priority", Head: []string{"Upstream", "Outcome", "Name there", "Since", "Version there", "Why"}, Empty: "No upstream has it."}
	for _, c := range e.Sources[:min(len(e.Sources), maxRows)] {
		original := ""
		if c.Original != nil {
			original = c.Original.Namespace + "/" + c.Original.Name
		}
		t.Rows = append(t.Rows, []Cell{
			linked(c.Upstream, "/upstreams/"+pathOf(c.Upstream)), leveled(outcomeLevel(c.Outcome), string(c.Outcome)),
			cell(original), at(c.Since), cell(c.SourceVersion), cell(cliview.CopyDetail(c)),
		})
	}
	return t
}

// receipts lists the clients that subscribe to a resource, those that lack it first.
func receipts(all []downstream.Receipt) *Table {
	t := &Table{Caption: "Clients that subscribe to its kind", Head: []string{"Client", "State", "Since", "View", "Type"}, Empty: "No client subscribes to this kind."}
	has := func(c downstream.Receipt) bool { return c.State == subscription.Acknowledged }
	sorted := slices.Clone(all)
	slices.SortStableFunc(sorted, func(a, b downstream.Receipt) int {
		switch {
		case has(a) == has(b):
			return cmp.Compare(a.Connection, b.Connection)
		case has(a):
			return 1
		}
		return -1
	})
	n := 0
	for _, c := range all {
		if has(c) {
			n++
		}
	}
	for _, c := range sorted[:min(len(sorted), maxRows)] {
		t.Rows = append(t.Rows, []Cell{
			linked(cliview.ClientName(c.NodeID), "/client?id="+queryOf(c.Connection)), leveled(goodIf(has(c), Warn), string(c.State)), at(c.At), cell(c.View), cell(c.TypeURL),
		})
	}
	if len(all) > 0 {
		t.Summary = fmt.Sprintf("%d of %s acknowledged it; %d are shown, those that lack it first", n, count(len(all), "subscription"), len(t.Rows))
	}
	return t
}
