package ledger

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"meshrelay/mirror"
	"meshrelay/upstreams/intake/records"
	"meshrelay/upstreams/kubernetes/object"

	"github.com/zeebo/xxh3"
	"k8s.io/apimachinery/pkg/labels"
)

// Namespaces is the kind of the objects that a Selection uses.
var Namespaces = mirror.Kind{Kind: "Namespace"}

// MaxProblems bounds the problems that a status lists.
const MaxProblems = 20

// maxRefused bounds the namespaces in Selection.refused.
const maxRefused = 256

// errNoRoom is the error of a new namespace without room.
var errNoRoom = errors.New(object.OverLimit + "the upstream has more than limits.maxBytes")

// Selection selects namespaces by their labels. It selects none before the namespaces are listed. It does no
// I/O. Any goroutine may call its methods.
type Selection struct {
	selectors []labels.Selector // any of them

	mu     sync.RWMutex // guards all below; decoders call Skips while the ledger changes them
	picked map[string]bool
	cost   int  // of picked
	listed bool // all namespaces are known
	// refused has the mistake in the newest metadata of a namespace, by name. There are maxRefused at most.
	refused map[string]error
	passed  map[*Entry]*passed
}

// passed has a bit for the hash of each namespace in which objects of an entry were skipped since the source began. Two
// namespaces with the same bit cause a list that is not needed.
type passed [256]uint64

func (p *passed) bit(namespace string) (word *uint64, bit uint64) {
	h := xxh3.HashString(namespace)
	return &p[h%256], 1 << (h >> 8 % 64)
}

func (p *passed) has(namespace string) bool {
	word, bit := p.bit(namespace)
	return *word&bit != 0
}

// NewSelection returns a Selection with valid label selectors, nil without selectors.
func NewSelection(selectors []string) *Selection {
	if len(selectors) == 0 {
		return nil
	}
	s := &Selection{picked: map[string]bool{}, refused: map[string]error{}, passed: map[*Entry]*passed{}}
	for _, text := range selectors {
		if selector, err := labels.Parse(text); err == nil {
			s.selectors = append(s.selectors, selector)
		}
	}
	return s
}

// Skips reports whether objects of an entry in a namespace are skipped, because the namespace is not selected. It
// notes that the entry must be listed again when the namespace becomes selected. Objects without a namespace are
// always mirrored.
func (s *Selection) Skips(e *Entry, namespace string) bool {
	if s == nil || namespace == "" {
		return false
	}
	s.mu.RLock()
	selected, noted := s.picked[namespace], s.passed[e]
	known := noted != nil && noted.has(namespace)
	s.mu.RUnlock()
	if selected || known {
		return !selected
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.picked[namespace] {
		return false
	}
	s.note(e, namespace)
	return true
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
// all, at most maxRefused.
func (s *Selection) Problems() (named []string, all int) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	names := slices.Sorted(maps.Keys(s.refused))
	for _, ns := range names[:min(len(names), MaxProblems)] {
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

// costOf returns about how many bytes a namespace takes in picked.
func costOf(namespace string) int { return object.Entry + len(namespace) }

// set sets all namespaces, or changes some. It returns those that are newly selected, and those that are no
// longer selected but still exist. It tells keep the memory of namespaces, in bytes. If a changed namespace is new and
// does not fit, set sets its Err. Namespaces of a list always fit: without them, what is mirrored would be deleted.
func (s *Selection) set(all bool, namespaces []*object.Object, keep func(int) (fits bool)) (gained, lost []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before, cost := s.picked, s.cost
	if all {
		s.picked, s.cost, s.listed = make(map[string]bool, len(before)), 0, true
		clear(s.refused)
	}
	for _, ns := range namespaces {
		was, known := before[ns.Name]
		if !all && !known && ns.Err == nil && !keep(0) {
			ns.Err = errNoRoom
		}
		is := slices.ContainsFunc(s.selectors, func(one labels.Selector) bool { return one.Matches(labels.Set(ns.Labels)) })
		delete(s.refused, ns.Name)
		if ns.Err != nil { // its labels are unknown: the selection stays
			if len(s.refused) < maxRefused {
				s.refused[ns.Name] = ns.Err
			}
			if is = was; !known {
				continue
			}
		}
		if _, is := s.picked[ns.Name]; !is {
			s.cost += costOf(ns.Name)
		}
		switch s.picked[ns.Name] = is; {
		case is && !was:
			gained = append(gained, ns.Name)
		case was && !is:
			lost = append(lost, ns.Name)
		}
	}
	keep(s.cost - cost)
	return gained, lost
}

// remove forgets a deleted namespace, and returns the bytes that it took. Its objects are deleted by their own
// events.
func (s *Selection) remove(namespace string) (freed int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, known := s.picked[namespace]; known {
		freed = costOf(namespace)
	}
	s.cost -= freed
	delete(s.picked, namespace)
	delete(s.refused, namespace)
	return freed
}

// note notes that objects of an entry in a namespace were skipped. The caller holds mu.
func (s *Selection) note(e *Entry, namespace string) {
	p := s.passed[e]
	if p == nil {
		p = &passed{}
		s.passed[e] = p
	}
	word, bit := p.bit(namespace)
	*word |= bit
}

// lacking returns the entries with skipped objects in any of the namespaces. They must be listed again.
func (s *Selection) lacking(namespaces []string) (all []*Entry) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for e, passed := range s.passed {
		if slices.ContainsFunc(namespaces, passed.has) {
			all = append(all, e)
		}
	}
	return all
}

// forget forgets an entry.
func (s *Selection) forget(e *Entry) {
	if s != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.passed, e)
	}
}

// choose sets or changes namespaces. Objects in namespaces that are no longer selected are deleted together.
func (l *Ledger) choose(all bool, namespaces []*object.Object) []records.Result {
	if l.selection == nil {
		return nil
	}
	gained, lost := l.selection.set(all, namespaces, l.feed.Keep)
	for _, e := range l.selection.lacking(gained) {
		e.Relist()
	}
	var refused records.Result
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
func (l *Ledger) leave(lost []string) []records.Result {
	if len(lost) == 0 {
		return nil
	}
	is := make(map[string]bool, len(lost))
	for _, ns := range lost {
		is[ns] = true
	}
	var updates []records.Update
	for _, kind := range l.kinds {
		if gone := l.having(kind, func(namespace, _ string) bool { return is[namespace] }); len(gone) > 0 {
			u := unchanged(kind)
			u.Removed, u.Part = Names(gone), l.awaits(kind)
			updates = append(updates, u)
			l.passOver(l.entries[kind], lost)
		}
	}
	for _, d := range l.derivers {
		d.Leave(lost)
		for kind, entries := range l.entries {
			if is, _ := d.Takes(kind); is {
				l.passOver(entries, lost)
			}
		}
		updates = append(updates, l.changes(d)...)
	}
	return l.tell(updates)
}

// passOver notes that objects of entries in these namespaces are skipped.
func (l *Ledger) passOver(entries []*Entry, namespaces []string) {
	l.selection.mu.Lock()
	defer l.selection.mu.Unlock()
	for _, e := range entries {
		for _, ns := range namespaces {
			l.selection.note(e, ns)
		}
	}
}
