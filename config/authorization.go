package config

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"meshrelay/internal/identity"
	"meshrelay/mirror"
)

const (
	// maxRules and maxPatterns bound the rules of authorization and the identities of one rule: each new
	// client is compared with them.
	maxRules    = 1000
	maxPatterns = 100
)

// AuthorizationRule lets clients in, and chooses their view. The first rule that fits a client counts.
type AuthorizationRule struct {
	// Name is unique.
	Name string `yaml:"name"`
	// Identities are patterns of what the client has proven. Empty: every client of Listeners.
	Identities []string `yaml:"identities,omitempty"`
	// Listeners are addresses of Downstream.Listeners. Empty: all.
	Listeners []string `yaml:"listeners,omitempty"`
	View      string   `yaml:"view,omitempty"`
	// Kinds and Namespaces narrow the view.
	Kinds      []string `yaml:"kinds,omitempty"`
	Namespaces Globs    `yaml:"namespaces,omitempty"`
	Debug      bool     `yaml:"debug"`
}

// Rules returns the filter rules that narrow the view.
func (r AuthorizationRule) Rules() Import { return Import{Kinds: r.Kinds, Namespaces: r.Namespaces} }

// limits reports whether a view shows less than everything to its clients.
func (w View) limits() bool { return len(w.Sources) > 0 || w.Rules().LimitsContent() }

// on reports whether a rule is for a listener.
func (r AuthorizationRule) on(l Listener) bool {
	return len(r.Listeners) == 0 || slices.Contains(r.Listeners, l.Address)
}

// Proves reports whether a client of the listener can prove an identity that a pattern matches.
func (l Listener) Proves(p identity.Pattern) bool {
	switch {
	case !l.verifies():
		return false
	case p.IsDNS() || l.TLS.ClientCAFile != "":
		return l.TLS.ClientCAFile != ""
	}
	return slices.ContainsFunc(l.TLS.ClientCAs, func(ca ClientCA) bool { return p.MatchesTrustDomain(ca.TrustDomain) })
}

// TakesAnonymous reports whether the listener takes clients that prove nothing.
func (l Listener) TakesAnonymous() bool { return !l.verifies() || l.AllowAnonymous }

// authorized returns the listener as exposure must see it if rules choose the views: they decide which identities
// get in.
func (l Listener) authorized() Listener {
	l.AllowAnyIdentity, l.View = true, ""
	return l
}

// authorization checks the rules: each must let some client in.
func (v *validator) authorization(c *Config) {
	all := c.Authorization
	if all == nil && !v.noted("authorization") {
		return
	}
	v.errorIf(len(all) == 0, "authorization", "empty: leave it out to let the views choose their clients, or add a rule: without one no client would get in")
	v.errorIf(len(all) > maxRules, "authorization", "%d rules: at most %d are allowed; one rule can have several identities", len(all), maxRules)
	v.leftToRules(c)
	if v.reported("authorization") {
		return
	}
	before := map[string]*identity.Index{}
	for i, r := range all {
		at := fmt.Sprintf("authorization[%d]", i)
		v.label(at+".name", r.Name)
		if n := slices.IndexFunc(all[:i], func(o AuthorizationRule) bool { return o.Name == r.Name }); n >= 0 {
			v.errorf(at+".name", "%q is the name of authorization[%d] already: names must differ", r.Name, n)
		}
		v.notEmpty(at+".identities", r.Identities)
		v.notEmpty(at+".listeners", r.Listeners)
		if len(r.Identities)+len(r.Listeners) == 0 {
			v.errorf(at, "it has neither identities nor listeners: name the clients of rule %q", r.Name)
			continue
		}
		patterns := v.patterns(at, r, c.Downstream.Listeners)
		v.ruleView(at, r, c.Views)
		v.ruleDebug(at, r, c)
		if v.reported(at+".identities") || v.reported(at+".listeners") {
			continue
		}
		if by := covered(before, i, r, patterns, c.Downstream.Listeners); len(by) > 0 {
			v.errorf(at, "rule %q lets in nobody: %s before it fit all of its clients, and the first rule that fits counts: put it before them, or leave it out", r.Name, ruleNames(all, by))
		}
	}
}

// leftToRules reports fields that have no effect when rules choose the views.
func (v *validator) leftToRules(c *Config) {
	const why = "with authorization its rules choose the view of a client: "
	for i, w := range c.Views {
		at := fmt.Sprintf("views[%d]", i)
		v.errorIf(!reflect.ValueOf(w.Match).IsZero(), at+".match", why+"leave this out, and name the view %q in a rule", w.Name)
		v.errorIf(w.Default, at+".default", why+"leave this out, and name the view %q in the last rule", w.Name)
		used := slices.ContainsFunc(c.Authorization, func(r AuthorizationRule) bool { return r.View == w.Name }) ||
			slices.ContainsFunc(c.Sinks, func(s Sink) bool { return s.View == w.Name })
		v.errorIf(!used, at, "no client can get this view: no rule of authorization names it")
	}
	for i, l := range c.Downstream.Listeners {
		at := fmt.Sprintf("downstream.listeners[%d]", i)
		v.errorIf(l.View != "", at+".view", why+"leave this out, and add a rule with listeners: [%q] and view: %s", l.Address, l.View)
		v.errorIf(l.AllowAnyIdentity, at+".allowAnyIdentity", "with authorization its rules decide which identities get in: leave this out, and add a rule with listeners: [%q] to let in all of them", l.Address)
	}
}

// patterns checks who fits a rule, and returns the parsed identities. Each of them must be one that a listener of
// the rule can verify, and each listener one that can verify one of them.
func (v *validator) patterns(at string, r AuthorizationRule, listeners []Listener) []identity.Pattern {
	on := slices.DeleteFunc(slices.Clone(listeners), func(l Listener) bool { return !r.on(l) })
	for i, address := range r.Listeners {
		field := fmt.Sprintf("%s.listeners[%d]", at, i)
		known := slices.ContainsFunc(listeners, func(l Listener) bool { return l.Address == address })
		v.errorIf(!known, field, "no listener has the address %q: write it as in downstream.listeners", address)
		v.errorIf(slices.Contains(r.Listeners[:i], address), field, "%q is named twice", address)
	}
	v.errorIf(len(r.Identities) > maxPatterns, at+".identities", "%d identities: at most %d are allowed; use wildcards or another rule", len(r.Identities), maxPatterns)
	var all []identity.Pattern
	for i, text := range r.Identities {
		field := fmt.Sprintf("%s.identities[%d]", at, i)
		p, err := identity.Parse(text)
		v.errorOf(field, err)
		if err != nil || v.reported(at+".listeners") {
			continue
		}
		if v.proven(field, p, text, on, "listener of this rule") {
			all = append(all, p)
		}
	}
	for i, address := range r.Listeners {
		n := slices.IndexFunc(listeners, func(l Listener) bool { return l.Address == address })
		if len(all) == 0 || n < 0 || slices.ContainsFunc(all, listeners[n].Proves) {
			continue
		}
		v.errorf(fmt.Sprintf("%s.listeners[%d]", at, i), "no client of %s can prove one of these identities: leave this listener out, or let it verify them", address)
	}
	return all
}

// proven reports whether a client of some listeners can prove an identity that a pattern matches. If not, it reports a
// mistake.
func (v *validator) proven(field string, p identity.Pattern, text string, on []Listener, which string) bool {
	const wrong = "%q matches nobody: no %s "
	switch {
	case slices.ContainsFunc(on, func(l Listener) bool { return l.Proves(p) }):
		return true
	case !slices.ContainsFunc(on, Listener.verifies):
		v.errorf(field, wrong+"verifies identities: set tls.clientCAFile or tls.clientCAs of one, or name another listener", text, which)
	case p.IsDNS():
		v.errorf(field, "%q matches nobody: only certificates of tls.clientCAFile have DNS names: write a SPIFFE ID, or set tls.clientCAFile of a listener", text)
	default:
		v.errorf(field, wrong+"has client CAs for its trust domain: add it to tls.clientCAs of one", text, which)
	}
	return false
}

// ruleView checks the view of a rule, and that the rule narrows it.
func (v *validator) ruleView(at string, r AuthorizationRule, views []View) {
	v.rules(at, r.Rules())
	i := slices.IndexFunc(views, func(w View) bool { return w.Name == r.View })
	switch {
	case i < 0 && r.View != "":
		v.errorf(at+".view", "there is no view %q", r.View)
	case i < 0 && len(views) > 0:
		v.errorf(at+".view", "missing: name the view of the clients of rule %q", r.Name)
	}
	if i < 0 || len(views[i].Kinds) == 0 {
		return
	}
	shown := KindsOf(views[i].Kinds)
	for n, word := range r.Kinds {
		if kinds, err := mirror.ParseKinds(word); err == nil && !slices.ContainsFunc(kinds, func(k mirror.Kind) bool { return slices.Contains(shown, k) }) {
			v.errorf(fmt.Sprintf("%s.kinds[%d]", at, n), "the view %q does not show %s, and a rule only narrows its view: leave this out, or add it to the kinds of the view", r.View, word)
		}
	}
}

// KindsOf returns the kinds of words, and ignores wrong words.
func KindsOf(words []string) (all []mirror.Kind) {
	for _, word := range words {
		kinds, _ := mirror.ParseKinds(word) // wrong ones are reported elsewhere
		all = append(all, kinds...)
	}
	return all
}

// ruleDebug reports a rule whose clients can never have debug documents, although it allows them.
func (v *validator) ruleDebug(at string, r AuthorizationRule, c *Config) {
	if !r.Debug {
		return
	}
	limited := r.Rules().LimitsContent() || slices.ContainsFunc(c.Views, func(w View) bool { return w.Name == r.View && w.limits() })
	v.errorIf(limited, at+".debug", "debug documents show everything, and the clients of rule %q see only a part: leave this out", r.Name)
	open := slices.ContainsFunc(c.Downstream.Listeners, func(l Listener) bool { return r.on(l) && l.Debug != DebugOff })
	v.errorIf(!open, at+".debug", "every listener of rule %q has debug: off: leave this out, or change that", r.Name)
}

// covered adds the rule with number n to the rules before it, which it has by listener. It returns those that fit all
// clients of the rule, or nil.
func covered(before map[string]*identity.Index, n int, r AuthorizationRule, patterns []identity.Pattern, listeners []Listener) (by []int) {
	all := true
	for _, l := range listeners {
		if !r.on(l) {
			continue
		}
		x := before[l.Address]
		if x == nil {
			x = identity.NewIndex()
			before[l.Address] = x
		}
		if x.Anybody != identity.NoRule {
			by = append(by, x.Anybody)
			continue
		}
		if len(r.Identities) == 0 {
			x.Anybody, all = n, false
		}
		for _, p := range patterns {
			if !l.Proves(p) {
				continue
			}
			if all { // after a pattern that no earlier rule covers, the others need no look
				i := x.Covering(p)
				by, all = append(by, i), i != identity.NoRule
			}
			x.Add(p, n)
		}
	}
	if !all {
		return nil
	}
	slices.Sort(by)
	return slices.Compact(by)
}

// ruleNames names rules, at most three.
func ruleNames(all []AuthorizationRule, numbers []int) string {
	const most = 3
	var out []string
	for _, n := range numbers[:min(most, len(numbers))] {
		out = append(out, fmt.Sprintf("authorization[%d] (%s)", n, all[n].Name))
	}
	text := strings.Join(out, ", ")
	if more := len(numbers) - most; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// unguarded returns a line for each listener whose clients can prove nothing and have no rule.
func (c *Config) unguarded() (lines []string) {
	if len(c.Authorization) == 0 {
		return nil
	}
	for i, l := range c.Downstream.Listeners {
		ruled := slices.ContainsFunc(c.Authorization, func(r AuthorizationRule) bool { return len(r.Identities) == 0 && r.on(l) })
		if l.TakesAnonymous() && !ruled {
			lines = append(lines, fmt.Sprintf("downstream.listeners[%d] (%s): clients without an identity are refused, as no rule of authorization has this listener and no identities: add a rule with listeners: [%q], or leave out the listener or its allowAnonymous", i, l.Address, l.Address))
		}
	}
	return lines
}
