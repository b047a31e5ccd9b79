package ingress

import (
	"iter"
	"slices"
	"strings"
)

type (
	set[K comparable]      map[K]struct{}
	index[K, V comparable] map[K]set[V]
)

func (x index[K, V]) add(key K, v V) {
	if x[key] == nil {
		x[key] = set[V]{}
	}
	x[key][v] = struct{}{}
}

func (x index[K, V]) remove(key K, v V) {
	if delete(x[key], v); len(x[key]) == 0 {
		delete(x, key)
	}
}

// entry is an Ingress in a State.
type entry struct {
	*Ingress
	converted bool
	rules     []int // indexes of the rules with paths, sorted by host
}

func newEntry(i *Ingress) *entry {
	e := &entry{Ingress: i}
	for at, rule := range i.Spec.Rules {
		if rule.HTTP != nil {
			e.rules = append(e.rules, at)
		}
	}
	slices.SortStableFunc(e.rules, func(a, b int) int { return strings.Compare(e.host(a), e.host(b)) })
	return e
}

// host returns the host of a rule.
func (e *entry) host(rule int) string {
	if h := e.Spec.Rules[rule].Host; h != "" {
		return h
	}
	return anyHost
}

// hosts iterates over the hosts of the rules, each once.
func (e *entry) hosts() iter.Seq[string] {
	return func(yield func(string) bool) {
		for i, rule := range e.rules {
			if host := e.host(rule); (i == 0 || host != e.host(e.rules[i-1])) && !yield(host) {
				return
			}
		}
	}
}

// of returns the rules for a host, in their order.
func (e *entry) of(host string) []int {
	from, _ := slices.BinarySearchFunc(e.rules, host, func(rule int, host string) int { return strings.Compare(e.host(rule), host) })
	to := from
	for to < len(e.rules) && e.host(e.rules[to]) == host {
		to++
	}
	return e.rules[from:to]
}

// services iterates over the Services in which the Ingress names a port. A Service may come more than once.
func (e *entry) services() iter.Seq[Name] {
	return func(yield func(Name) bool) {
		for _, rule := range e.rules {
			for _, p := range e.Spec.Rules[rule].HTTP.Paths {
				if b := p.Backend.Service; b != nil && b.Port.Number <= 0 && !yield(Name{e.Namespace, b.Name}) {
					return
				}
			}
		}
	}
}
