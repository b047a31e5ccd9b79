package ingress

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"

	"meshrelay/internal/text"
)

// Problem is a part of an Ingress that is left out, or that no request reaches.
type Problem struct {
	Ingress Name
	// Field is the path of the part: "spec.rules[0].http.paths[1]".
	Field  string
	Reason string
}

// String returns "Ingress namespace/name: FIELD: REASON".
func (p Problem) String() string {
	return fmt.Sprintf("Ingress %s: %s: %s", p.Ingress, p.Field, p.Reason)
}

// Problems iterates over the problems of the Ingresses. It includes Ingresses that are not converted because
// of their namespace. Problems of single Ingresses come first, sorted by Ingress; those of paths follow,
// sorted by host. Each call finds them again. The State must not change meanwhile.
func (s *State) Problems() iter.Seq[Problem] {
	return func(yield func(Problem) bool) {
		byName := func(a, b Name) int {
			return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
		}
		for _, name := range slices.SortedFunc(maps.Keys(s.ingresses), byName) {
			for _, p := range s.options.problems(s.ingresses[name]) {
				if !yield(p) {
					return
				}
			}
		}
		for _, name := range slices.Sorted(maps.Keys(s.hosts)) {
			for _, p := range s.hostProblems(name) {
				if !yield(p) {
					return
				}
			}
		}
	}
}

// problems returns the problems of an Ingress by itself.
func (o *Options) problems(e *entry) (found []Problem) {
	add := func(field, reason string) { found = append(found, Problem{e.Name, field, reason}) }
	if ambiguous(e.Namespace) && o.Mode != ModeOff {
		add("metadata.namespace", fmt.Sprintf("not converted: the name of the namespace contains %q, which makes names of Gateways ambiguous", generatedName+"-"))
	}
	if !e.converted {
		return found
	}
	if e.Spec.DefaultBackend != nil {
		add("spec.defaultBackend", "not converted: write a rule without host and path instead")
	}
	for i, tls := range e.Spec.TLS {
		if tls.Secret == "" {
			add(fmt.Sprintf("spec.tls[%d]", i), "not converted: it has no secretName")
		}
	}
	for i, rule := range e.Spec.Rules {
		if rule.HTTP == nil {
			add(fmt.Sprintf("spec.rules[%d]", i), "not converted: it has no http")
		}
	}
	return found
}

// hostProblems returns the problems of the paths of a host.
func (s *State) hostProblems(name string) (found []Problem) {
	add := func(ing Name, field, reason string) { found = append(found, Problem{ing, field, reason}) }
	type path struct {
		text  string
		exact int
		all   bool
	}
	first := map[path]route{}
	for _, r := range s.options.routes(s.parts(s.hosts[name], name), s.port, add) {
		_, exact := rank(r.match)
		p := path{r.match.GetExact() + r.match.GetPrefix(), exact, r.match == nil}
		if by, ok := first[p]; ok {
			add(r.from, r.field, fmt.Sprintf("shadowed: %s of Ingress %s has the same path of host %s and comes first", by.field, by.from, text.Abbreviate(name)))
			continue
		}
		first[p] = r
	}
	return found
}
