package kubernetes

import (
	"fmt"
	"maps"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/labels"
)

// choice decides by labels which namespaces are mirrored: none before the server has listed it. It does
// no I/O.
type choice struct {
	selectors []labels.Selector // any of them

	mu     sync.RWMutex // guards picked: decoders look while the ledger tells the intake
	picked map[string]bool
	listed bool // all namespaces were told
	// refused has, by namespace, what is wrong with its newest metadata.
	refused map[string]error

	// passed are the namespaces with objects of a target that were passed over since its last list.
	// The ledger guards it.
	passed map[*target]map[string]struct{}
}

// newChoice returns the choice of label selectors, which have been checked; nil for none.
func newChoice(selectors []string) *choice {
	if len(selectors) == 0 {
		return nil
	}
	c := &choice{picked: map[string]bool{}, refused: map[string]error{}, passed: map[*target]map[string]struct{}{}}
	for _, text := range selectors {
		if selector, err := labels.Parse(text); err == nil {
			c.selectors = append(c.selectors, selector)
		}
	}
	return c
}

// has reports whether the objects of a namespace are mirrored; those without one always are.
func (c *choice) has(namespace string) bool {
	if c == nil || namespace == "" {
		return true
	}
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.picked[namespace]
}

// counts returns how many namespaces there are, and how many of them are mirrored.
func (c *choice) counts() (all, picked int) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	for _, is := range c.picked {
		if is {
			picked++
		}
	}
	return len(c.picked), picked
}

// problems returns what is wrong with namespaces, some by name, and how many there are.
func (c *choice) problems() (named []string, all int) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	for _, ns := range slices.Sorted(maps.Keys(c.refused)) {
		if len(named) == maxProblems {
			break
		}
		named = append(named, fmt.Sprintf("Namespace %s: %v: what is mirrored of it stays as it was", ns, c.refused[ns]))
	}
	return named, len(c.refused)
}

// complete reports whether all namespaces were told.
func (c *choice) complete() bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.listed
}

// set takes over namespaces, all that there are or some. It returns those that are mirrored from now
// on, and those that are so no longer though the server has them.
func (c *choice) set(all bool, namespaces []*object) (gained, lost []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	before := c.picked
	if all {
		c.picked, c.listed = make(map[string]bool, len(namespaces)), true
		clear(c.refused)
	}
	for _, ns := range namespaces {
		was, known := before[ns.name]
		is := c.picks(ns.labels)
		delete(c.refused, ns.name)
		if ns.err != nil { // nobody knows its labels: it is as it was
			c.refused[ns.name] = ns.err
			if is = was; !known {
				continue
			}
		}
		switch c.picked[ns.name] = is; {
		case is && !was:
			gained = append(gained, ns.name)
		case was && !is:
			lost = append(lost, ns.name)
		}
	}
	return gained, lost
}

func (c *choice) picks(of labels.Set) bool {
	for _, selector := range c.selectors {
		if selector.Matches(of) {
			return true
		}
	}
	return false
}

// remove forgets a namespace that is gone. Its objects go by their own events.
func (c *choice) remove(namespace string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.picked, namespace)
	delete(c.refused, namespace)
}

// pass returns the objects of a target that are mirrored, and notes the namespaces of the others.
// all: these are all that the target has. missed: some would be mirrored, and came while they were not.
func (c *choice) pass(t *target, all bool, objects []*object) (kept []*object, missed bool) {
	if c == nil {
		return objects, false
	}
	if all {
		delete(c.passed, t)
	}
	for _, o := range objects {
		is := c.has(o.namespace)
		if is && !o.bare {
			kept = append(kept, o)
			continue
		}
		missed = missed || is
		c.note(t, o.namespace)
	}
	return kept, missed
}

// note notes that objects of a target in a namespace are not mirrored.
func (c *choice) note(t *target, namespace string) {
	if c.passed[t] == nil {
		c.passed[t] = map[string]struct{}{}
	}
	c.passed[t][namespace] = struct{}{}
}

// lacking returns the targets that were passed over in one of some namespaces: they have to list anew.
func (c *choice) lacking(namespaces []string) (all []*target) {
	for t, passed := range c.passed {
		for _, ns := range namespaces {
			if _, is := passed[ns]; is {
				all = append(all, t)
				break
			}
		}
	}
	return all
}

// forget forgets a target that ends.
func (c *choice) forget(t *target) {
	if c != nil {
		delete(c.passed, t)
	}
}
