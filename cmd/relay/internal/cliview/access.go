package cliview

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"meshrelay/admin"
	"meshrelay/admin/view"
	"meshrelay/downstream"
	"meshrelay/internal/text"
)

const (
	noneConfigured = "none configured"
	everything     = "everything but what its own cluster has"
)

// Access returns what a client would get as text. The first word is yes or no.
func Access(a admin.AccessAnswer) string {
	var p page
	if a.Allowed {
		p.WriteString("yes\n\n")
	} else {
		p.printf("no: %s\n\n", a.Reason)
	}
	p.printf("Identities: %s\nListener:   %s\n", listed(a.Identities, "none"), a.Listener)
	if !a.Allowed {
		return p.String()
	}
	p.printf("Rule:       %s\nView:       %s\nDebug:      %s\n", cmp.Or(a.Rule, noneConfigured), cmp.Or(a.View, everything),
		map[bool]string{true: "if the listener lets it", false: "no"}[a.Debug])
	for _, s := range a.Shows {
		p.printf("Shows by %s: upstreams %s; kinds %s; namespaces %s", s.Of, listed(s.Upstreams, "all"), listed(s.Kinds, "all"), listed(s.Include, "all"))
		if len(s.Exclude) > 0 {
			p.printf(" without %s", listed(s.Exclude, ""))
		}
		if s.Selector != "" {
			p.printf("; selector %s", s.Selector)
		}
		if s.Expression != "" {
			p.printf("; expression %s", view.OneLine(s.Expression))
		}
		p.WriteString("\n")
	}
	return p.String()
}

// listed joins texts, or returns none if there are none.
func listed(list []string, none string) string { return cmp.Or(strings.Join(list, ", "), none) }

// Whoami returns how a relay identifies the caller as text.
func Whoami(w downstream.Whoami) string {
	var p page
	p.printf("Identities: %s\n", listed(w.Identities, "none"))
	for _, of := range []struct{ title, value string }{{"Namespace:  ", w.Namespace}, {"Account:    ", w.ServiceAccount}} {
		if of.value != "" {
			p.printf("%s%s\n", of.title, of.value)
		}
	}
	if !w.Expires.IsZero() {
		p.printf("Expires:    %s\n", w.Expires.UTC().Format(time.RFC3339))
	}
	p.printf("Address:    %s\nListener:   %s\nRule:       %s\nView:       %s\nDebug:      %s\n", w.Address, w.Listener,
		cmp.Or(w.Rule, noneConfigured), cmp.Or(w.View, everything), map[bool]string{true: "yes", false: "no"}[w.Debug])
	return p.String()
}

// clientChanges returns the clients that a plan would give another rule or view.
func clientChanges(changes []downstream.ClientChange) *table {
	t := titled("CLIENT", "IDENTITY", "NOW", "PLANNED", "GAINS", "LOSES")
	for _, c := range changes {
		t.add(clientChange(c)...)
	}
	return t
}

// clientChange returns the cells of a change of a client.
func clientChange(c downstream.ClientChange) []any {
	planned := ruleAndView(c.NewRule, c.NewView)
	if c.Refused != "" {
		planned = "refused"
	}
	return []any{text.Name(view.ClientName(c.NodeID)), cmp.Or(c.Identity, none), ruleAndView(c.OldRule, c.OldView), planned, c.Gained, c.Lost}
}

// ruleAndView names a rule and a view.
func ruleAndView(rule, name string) string {
	name = cmp.Or(name, "everything")
	if rule == "" {
		return "view " + name
	}
	return fmt.Sprintf("rule %s, view %s", rule, name)
}
