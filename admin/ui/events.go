package ui

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"meshrelay/admin/view"
	"meshrelay/events"
)

// maxLast is the most events on the overview.
const maxLast = 8

// windows are the time spans that a timeline can show.
var windows = []string{"10m", "1h", "6h", "24h"}

// eventList shows the timeline: the newest events, or those around a time.
func (p *Pages) eventList(r *request) (*Page, error) {
	q, about, err := queryEvents(r)
	if err != nil {
		return nil, err
	}
	all := p.data.Events(q)
	types := make([]string, 0, len(events.Types()))
	for _, t := range events.Types() {
		types = append(types, string(t))
	}
	search := r.search("/events",
		Field{Name: "at", Label: "Around (UTC)", Value: r.get("at"), Hint: "03:12"},
		Field{Name: "window", Label: "Window", Value: r.get("window"), Options: windows},
		r.upstreamField(),
		Field{Name: "type", Label: "Type", Value: r.get("type"), Options: types},
	)
	t := eventTable(all.Events)
	t.Summary = view.Count(len(all.Events), "event")
	if all.More {
		t.Summary, t.Next = fmt.Sprintf("the newest %d; there are more", len(all.Events)), r.with("before", strconv.FormatUint(all.Events[0].Seq, 10))
	}
	left := []State{}
	if all.Tools > 0 {
		left = append(left, State{view.None, "left out: " + view.Count(all.Tools, "event") + " of commands such as relay get", r.with("tools", "true")})
	}
	return &Page{
		Title: "Timeline", Command: eventCommand(r, q), Topics: []string{topicEvents}, Lead: say(view.None, about+": "+view.Count(len(all.Events), "event")),
		Sections: []Section{{ID: "list", Title: "Newest first", Search: search, Text: left, Table: t}},
	}, nil
}

// eventCommand returns the command that lists the same events.
func eventCommand(r *request, q events.Query) string {
	command := "relay events"
	for _, flag := range []struct{ name, value string }{{"type", r.get("type")}, {"upstream", q.Upstream}, {"search", q.Text}} {
		if flag.value != "" {
			command += " --" + flag.name + " " + word(flag.value)
		}
	}
	for _, bound := range []struct {
		name string
		at   time.Time
	}{{"since", q.Since}, {"until", q.Until}} {
		if !bound.at.IsZero() {
			command += " --" + bound.name + " " + bound.at.UTC().Format(time.RFC3339)
		}
	}
	if !q.NoTools {
		command += " --tools"
	}
	return command
}

// queryEvents returns the query of a timeline, and a description of it.
func queryEvents(r *request) (q events.Query, about string, err error) {
	q.Limit, q.Upstream, q.Text, q.NoTools = maxRows, r.get("upstream"), r.get("q"), r.get("tools") != "true"
	if q.Types, err = events.ParseTypes(r.get("type")); err != nil {
		return q, "", badRequest("%v", err)
	}
	if text := r.get("before"); text != "" {
		if q.Before, err = strconv.ParseUint(text, 10, 64); err != nil {
			return q, "", badRequest("before is %.32q: want the number of an event", text)
		}
	}
	window := 10 * time.Minute
	if text := r.get("window"); text != "" {
		if window, err = time.ParseDuration(text); err != nil || window <= 0 || window > 31*24*time.Hour {
			return q, "", badRequest("window is %.32q: want a duration, such as 10m or 6h", text)
		}
	}
	switch at, err := view.ClockTime(r.get("at"), r.now); {
	case err != nil:
		return q, "", badRequest("The time is %v.", err)
	case !at.IsZero():
		q.Since, q.Until = at.Add(-window/2), at.Add(window/2)
		about = fmt.Sprintf("%s, %s around it", at.Format("2006-01-02 15:04 UTC"), view.Age(window))
	case r.get("window") != "":
		q.Since, about = r.now.Add(-window), "the last "+view.Age(window)
	default:
		about = "the newest events"
	}
	return q, about, nil
}

// eventTable lists events, the newest first.
func eventTable(list []events.Event) *Table {
	t := &Table{Caption: "Events, the newest first", Head: []string{"Time (UTC)", "Type", "Upstream or client", "What", "By", "Reached"}, Empty: "No kept event matches."}
	for _, e := range slices.Backward(list) {
		t.Rows = append(t.Rows, []Cell{
			linked(e.Time.UTC().Format("01-02 15:04:05.000"), "/events/"+strconv.FormatUint(e.Seq, 10)),
			leveled(view.EventLevel(e.Type), string(e.Type)), whom(e), cell(view.EventText(&e)), cell(view.EventBy(&e)), cell(view.EventStages(e.Stages)),
		})
	}
	return t
}

func whom(e events.Event) Cell {
	switch {
	case e.Upstream != "":
		return linked(e.Upstream, upstreamHref(e.Upstream))
	case e.Client != "":
		return linked(view.ClientName(e.Client), "/clients?q="+queryOf(e.Client))
	}
	return Cell{}
}

// eventPage shows one event.
func (p *Pages) eventPage(r *request) (*Page, error) {
	seq, err := strconv.ParseUint(r.name, 10, 64)
	if err != nil || seq == 0 {
		return nil, notFound("There is no event %.32q.", r.name)
	}
	all := p.data.Events(events.Query{After: max(seq, 2) - 1, Limit: 1}).Events
	if len(all) == 0 || all[0].Seq != seq {
		return nil, notFound("Event %d is not kept any more.", seq)
	}
	e := all[0]
	page := &Page{
		Title: "Event " + e.Time.UTC().Format("15:04:05") + " " + string(e.Type), Crumbs: []Link{{"Timeline", "/events"}, {"Around it", "/events?at=" + queryOf(e.Time.UTC().Format(time.RFC3339))}},
		Lead: say(view.EventLevel(e.Type), strings.TrimSpace(e.Upstream+" "+string(e.Type)+": "+view.EventText(&e))), Command: e.Command, Topics: []string{topicEvents},
	}
	facts := []Fact{
		{"Time", cell(e.Time.UTC().Format(time.RFC3339Nano))}, {"Ago", at(e.Time)}, {"Upstream or client", whom(e)}, {"By", cell(view.EventBy(&e))}, {"Reason", cell(e.Reason)}, {"Reached", cell(view.EventStages(e.Stages))},
	}
	if e.Hold != "" {
		facts = append(facts, Fact{"Hold", linked(e.Hold, upstreamHref(e.Upstream)+"#hold")})
	}
	page.Sections = []Section{{ID: "event", Facts: facts}}
	if e.Resources != nil && len(e.Resources.Names) > 0 {
		t := &Table{Caption: "Resources that changed", Head: []string{"Resource", "Kind", "What"}}
		words := map[events.Mark]string{events.Addition: "added", events.Modification: "changed", events.Removal: "removed"}
		for _, n := range e.Resources.Names {
			t.Rows = append(t.Rows, []Cell{linked(orDash(n.Key.Namespace)+"/"+n.Key.Name, resourceHref(n.Key.Kind.String(), n.Key.Namespace, n.Key.Name)), cell(n.Key.Kind.String()), cell(words[n.Mark])})
		}
		t.Summary = fmt.Sprintf("%d of %s", len(t.Rows), e.Resources)
		page.Sections = append(page.Sections, Section{ID: "resources", Title: "Resources", Table: t})
	}
	if e.Type == events.Changed && e.Upstream != "" {
		page.Command = "relay history " + word(e.Upstream)
	}
	return page, nil
}
