package cliview

import (
	"fmt"
	"strings"
	"time"

	"meshrelay/admin"
	"meshrelay/admin/view"
	"meshrelay/internal/text"
	"meshrelay/mirror"
)

var conflictColumns = view.KeyConflicts.Pick("Kind", "Namespace", "Name", "Served from", "United", "Not served", "Since", "Reason")

// Explain returns an explanation as text. With diffs, it adds the difference between each copy and the served
// resource. Ages are relative to now.
func Explain(e admin.Explanation, diffs bool, now time.Time) string {
	var p page
	p.printf("%s\n", view.Headline(e, now))
	for _, r := range e.Also {
		p.printf("There is also %s: %s\n", view.KeyText(r), explainCommand(r))
	}
	if len(e.Group) > 0 {
		names := make([]string, 0, len(e.Group))
		for _, g := range e.Group {
			names = append(names, text.Name(g.Namespace+"/"+g.Name))
		}
		p.printf("Merged with resources of the same hosts: %s.\n", strings.Join(names, ", "))
	}
	for _, c := range e.HostConflicts {
		p.printf("Several resources claim host %s: %s.\n", c.Host, view.Claims(c))
		if c.Apart != "" {
			p.printf("They are not united: %s.\n", c.Apart)
		}
	}
	p.WriteString("\n")
	p.table(tableOf(view.Copies, e.Sources, now))
	for _, c := range e.Sources {
		for _, line := range c.Trouble {
			p.printf("%s\n", line)
		}
	}
	p.WriteString("\n")
	if len(e.Clients) == 0 {
		p.WriteString("No client subscribes to this kind.\n")
	} else {
		p.table(tableOf(view.Receipts, e.Clients, now))
		counts, _ := view.Distribution(e.Distribution)
		p.printf("%s\n", counts)
	}
	p.part("\n", listed("", view.SinkCopies, e.Sinks, now))
	for _, s := range e.Sources {
		if diffs && s.From != nil && e.Served != nil && s.Outcome != admin.Renamed {
			p.WriteString(CleanLines(view.Difference("upstream "+s.Upstream, s.From, "served", e.Served)))
		}
	}
	return p.String()
}

// Elsewhere lists resources of the same name in other namespaces, with the commands that explain them. It
// returns "" when there are none.
func Elsewhere(e admin.Explanation) (all string) {
	for _, r := range e.Elsewhere {
		all += fmt.Sprintf("\n  %s exists: %s", Clean(view.KeyText(r)), Clean(explainCommand(r)))
	}
	return all
}

// explainCommand returns the command that explains a resource.
func explainCommand(r mirror.Key) string {
	command := "relay explain " + text.Word(r.Kind.String()) + " " + text.Word(r.Name)
	if r.Namespace != "" {
		command += " -n " + text.Word(r.Namespace)
	}
	return command
}

// Conflicts returns the conflicts between upstreams as tables.
func Conflicts(all admin.Conflicts, now time.Time) string {
	var p page
	p.WriteString(listed("No two upstreams have the same resource.\n", conflictColumns, all.Keys, now))
	p.part("\n", listed("No two resources claim the same host.\n", view.HostConflicts, all.Hosts, now))
	p.part("\nHosts whose parts come from different upstreams:\n\n", listed("", view.Hybrids, all.Hybrids, now))
	p.part("\n", listed("", view.LeftOut, all.Refused, now))
	return p.String()
}
