package ledger

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"meshrelay/mirror"
	"meshrelay/upstreams/intake"
	"meshrelay/upstreams/kubernetes/object"

	"k8s.io/apimachinery/pkg/labels"
)

// Namespaces is the kind of the objects that a Selection uses.
var Namespaces = mirror.Kind{Kind: "Namespace"}

// MaxProblems bounds the problems that a status lists.
const MaxProblems = 20

// Selection selects namespaces by their labels. It selects none before the namespaces are listed. It does no
// I/O.
type Selection struct {
	selectors []labels.Selector // any of them

	mu     sync.RWMutex // guards picked, listed and refused: decoders read them while the ledger changes them
	picked map[string]bool
	listed bool // all namespaces are known
	// refused has the mistake in the newest metadata of a namespace, by name.
	refused map[string]error

	// passed has, by entry, the namespaces whose objects were skipped since the last list of the entry. The
	// ledger's lock guards it.
	passed map[*Entry]map[string]struct{}
}

// NewSelection returns a Selection with valid label selectors, nil without selectors.
func NewSelection(selectors []string) *Selection {
	if len(selectors) == 0 {
		return nil
	}
	s := &Selection{picked: map[string]bool{}, refused: map[string]error{}, passed: map[*Entry]map[string]struct{}{}}
	for _, text := range selectors {
		if selector, err := labels.Parse(text); err == nil {
			s.selectors = append(s.selectors, selector)
		}
	}
	return s
}

// Has reports whether a namespace is selected. Objects without a namespace are always mirrored.
func (s *Selection) Has(namespace string) bool {
	if s == nil || namespace == "" {
		return true
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.picked[namespace]
}

// Counts returns the number of namespaces, and of selected ones.
func (s *Selection) Counts() (all, picked int) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, is := range s.picked {
		if is {
			picked++
		}
	}
	return len(s.picked), picked
}

// Problems returns the mistakes in the metadata of namespaces, at most MaxProblems of them, and the number of
// all.
func (s *Selection) Problems() (named []string, all int) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, ns := range slices.Sorted(maps.Keys(s.refused)) {
		if len(named) == MaxProblems {
			break
		}
		named = append(named, fmt.Sprintf("Namespace %s: %v: what is mirrored of it stays as it was", ns, s.refused[ns]))
	}
	return named, len(s.refused)
}

// Complete reports whether all namespaces are known.
func (s *Selection) Complete() bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.listed
}

// set sets all namespaces, or changes some. It returns those that are newly selected, and those that are no
// longer selected but still exist.
func (s *Selection) set(all bool, namespaces []*object.Object) (gained, lost []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.picked
	if all {
		s.picked, s.listed = make(map[string]bool, len(namespaces)), true
		clear(s.refused)
	}
	for _, ns := range namespaces {
		was, known := before[ns.Name]
		is := s.picks(labels.Set(ns.Labels))
		delete(s.refused, ns.Name)
		if ns.Err != nil { // its labels are unknown: the selection stays
			s.refused[ns.Name] = ns.Err
			if is = was; !known {
				continue
			}
		}
		switch s.picked[ns.Name] = is; {
		case is && !was:
			gained = append(gained, ns.Name)
		case was && !is:
			lost = append(lost, ns.Name)
		}
	}
	return gained, lost
}

func (s *Selection) picks(of labels.Set) bool {
	for _, selector := range s.selectors {
		if selector.Matches(of) {
			return true
		}
	}
	return false
}

// remove forgets a deleted namespace. Its objects are deleted by their own events.
func (s *Selection) remove(namespace string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.picked, namespace)
	delete(s.refused, namespace)
}

// pass returns the objects of an entry in selected namespaces, and notes the namespaces of the others. all is
// set if these are all objects of the entry. missed is set if a namespace was selected after the decoder had
// dropped its objects.
func (s *Selection) pass(e *Entry, all bool, objects []*object.Object) (kept []*object.Object, missed bool) {
	if s == nil {
		return objects, false
	}
	if all {
		delete(s.passed, e)
	}
	for _, o := range objects {
		is := s.Has(o.Namespace)
		if is && !o.Unselected {
			kept = append(kept, o)
			continue
		}
		missed = missed || is
		s.note(e, o.Namespace)
	}
	return kept, missed
}

// note notes that objects of an entry in a namespace were skipped.
func (s *Selection) note(e *Entry, namespace string) {
	if s.passed[e] == nil {
		s.passed[e] = map[string]struct{}{}
	}
	s.passed[e][namespace] = struct{}{}
}

// lacking returns the entries with skipped objects in any of the namespaces. They must be listed again.
func (s *Selection) lacking(namespaces []string) (all []*Entry) {
	for e, passed := range s.passed {
		for _, ns := range namespaces {
			if _, is := passed[ns]; is {
				all = append(all, e)
				break
			}
		}
	}
	return all
}

// forget forgets an entry.
func (s *Selection) forget(e *Entry) {
	if s != nil {
		delete(s.passed, e)
	}
}

// choose sets or changes namespaces. Objects in namespaces that are no longer selected are deleted together.
func (l *Ledger) choose(all bool, namespaces []*object.Object) []intake.Result {
	gained, lost := l.selection.set(all, namespaces)
	for _, e := range l.selection.lacking(gained) {
		e.Relist()
	}
	var refused intake.Result
	for _, ns := range namespaces {
		if ns.Err != nil {
			refused.Refuse("Namespace "+ns.Name, ns.Err)
		}
	}
	results := l.leave(lost)
	if refused.RefusedTotal > 0 {
		results = append(results, refused)
	}
	return results
}

// leave deletes the objects in namespaces that are no longer selected.
func (l *Ledger) leave(lost []string) []intake.Result {
	if len(lost) == 0 {
		return nil
	}
	var updates []intake.Update
	for _, kind := range l.kinds {
		if gone := l.within(kind.String(), lost); len(gone) > 0 {
			u := unchanged(kind)
			u.Removed, u.Part = Names(gone), l.awaits(kind)
			updates = append(updates, u)
			l.passOver(l.entries[kind], lost)
		}
	}
	if l.deriver != nil {
		l.deriver.Leave(lost)
		for kind, entries := range l.entries {
			if l.derives(kind) {
				l.passOver(entries, lost)
			}
		}
		updates = append(updates, l.changes()...)
	}
	return l.tell(updates)
}

// passOver notes that objects of entries in these namespaces are skipped.
func (l *Ledger) passOver(entries []*Entry, namespaces []string) {
	for _, e := range entries {
		for _, ns := range namespaces {
			l.selection.note(e, ns)
		}
	}
}

// within returns the names in a scope whose namespaces are among namespaces.
func (l *Ledger) within(scope string, namespaces []string) (all []string) {
	in := make(map[string]bool, len(namespaces))
	for _, ns := range namespaces {
		in[ns] = true
	}
	for name := range l.feed.Versions(scope) {
		if namespace, _, _ := strings.Cut(name, "/"); in[namespace] {
			all = append(all, name)
		}
	}
	return all
}
