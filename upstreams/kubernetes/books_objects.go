package kubernetes

import (
	"iter"

	"meshrelay/mirror"
	"meshrelay/upstreams/intake"
)

// replaceObjects tells all objects of a target.
func (l *ledger) replaceObjects(t *target, all []*object) (results []intake.Result) {
	gone := l.vanished(t, all)
	for first := true; first || len(all) > 0; first = false {
		some := all[:min(chunk, len(all))]
		all = all[len(some):]
		u := intake.Update{Scope: intake.KindScope(t.kind), Elements: t.elements(some), Room: len(some) + len(all)}
		if t.namespace == "" {
			u.Complete, u.Part = true, len(all) > 0
		} else if u.Part = len(all) > 0 || l.awaits(t.kind); len(all) == 0 && len(gone) > 0 {
			u.Removed = names(gone)
		}
		results = append(results, l.feed.Tell(intake.Received{Updates: []intake.Update{u}}))
	}
	return results
}

// vanished returns the names that a target of one namespace had, and has no more. With the last
// one of a kind, they are also those in no namespace that is watched.
func (l *ledger) vanished(t *target, all []*object) (gone []string) {
	if t.namespace == "" {
		return nil // the intake finds them in a complete answer
	}
	listed := make(map[string]bool, len(all))
	for _, o := range all {
		listed[o.fullName()] = true
	}
	watched := map[string]bool{}
	for _, other := range l.targets[t.kind] {
		watched[other.namespace] = true
	}
	last := !l.awaits(t.kind)
	for name := range l.feed.Versions(intake.KindScope(t.kind).Name) {
		namespace, _, err := mirror.ParseFullName(name)
		if err == nil && (namespace == t.namespace && !listed[name] || last && !watched[namespace]) {
			gone = append(gone, name)
		}
	}
	return gone
}

func names(all []string) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for _, name := range all {
			if !yield([]byte(name)) {
				return
			}
		}
	}
}

// unchanged is the answer of a kind that has nothing new.
func unchanged(kind mirror.Kind) intake.Update {
	return intake.Update{Scope: intake.KindScope(kind), Elements: intake.Resources()}
}
