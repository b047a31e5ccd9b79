package ledger

import (
	"iter"
	"slices"
	"strings"

	"github.com/zeebo/xxh3"

	"meshrelay/mirror"
	"meshrelay/upstreams/intake"
	"meshrelay/upstreams/intake/records"
	"meshrelay/upstreams/kubernetes/object"
)

// chunk bounds the objects of one event, so that the upstream's lock is not held for long.
const chunk = 1000

// Replace feeds all objects of an entry to the intake.
func (l *Ledger) Replace(e *Entry, all []*object.Object) (results []records.Result) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !e.awaited || !l.open {
		l.begin(e)
	}
	e.listed, e.ok, e.quiet, e.awaited = true, true, false, false
	if e.Kind == Namespaces {
		results = l.choose(true, all)
	} else {
		all = l.pass(e, all)
	}
	if l.Mirrors(e.Kind) {
		results = l.replace(e, all)
	}
	for _, d := range l.taking(e.Kind) {
		results = append(results, d.Replace(e.Kind, e.Namespace, all))
		if !slices.ContainsFunc(l.entries[e.Kind], func(other *Entry) bool { return !other.listed }) {
			d.Synced(e.Kind)
		}
		if !l.awaitsInputs(d) {
			results = append(results, l.tell(d.Answer())...)
		}
	}
	e.Cramped.Store(lacksRoom(results))
	return results
}

// Put feeds a new or changed object to the intake.
func (l *Ledger) Put(e *Entry, o *object.Object) (results []records.Result) {
	l.mu.Lock()
	defer l.mu.Unlock()
	some := []*object.Object{o}
	if e.Kind == Namespaces {
		results = l.choose(false, some)
	} else if some = l.pass(e, some); len(some) == 0 {
		return nil
	}
	if l.Mirrors(e.Kind) {
		results = l.tell([]records.Update{{Scope: records.KindScope(e.Kind), Elements: elementsOf(some), Part: l.awaits(e.Kind)}})
	}
	for _, d := range l.taking(e.Kind) {
		err := d.Set(e.Kind, o)
		if results = append(results, l.tell(l.changes(d))...); err != nil {
			var refused records.Result
			refused.Refuse(e.Kind.String()+" "+o.FullName(), err)
			results = append(results, refused)
		}
	}
	if lacksRoom(results) {
		e.Cramped.Store(true)
	}
	return results
}

// Delete feeds the deletion of an object to the intake.
func (l *Ledger) Delete(e *Entry, o *object.Object) []records.Result {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e.Kind == Namespaces && l.selection != nil {
		l.feed.Keep(-l.selection.remove(o.Name))
	}
	var results []records.Result
	if l.Mirrors(e.Kind) {
		u := unchanged(e.Kind)
		u.Removed, u.Part = Names([]string{o.FullName()}), l.awaits(e.Kind)
		results = l.tell([]records.Update{u})
	}
	for _, d := range l.taking(e.Kind) {
		d.Delete(e.Kind, o)
		results = append(results, l.tell(l.changes(d))...)
	}
	return results
}

// pass returns the objects of an entry in selected namespaces, in the same array.
func (l *Ledger) pass(e *Entry, all []*object.Object) []*object.Object {
	return slices.DeleteFunc(all, func(o *object.Object) bool { return o.Unselected || l.selection.Skips(e, o.Namespace) })
}

// tell feeds updates as one event, unless there are none.
func (l *Ledger) tell(updates []records.Update) []records.Result {
	if len(updates) == 0 {
		return nil
	}
	return []records.Result{l.feed.Tell(intake.Received{Updates: updates})}
}

// replace feeds all objects of a mirrored entry.
func (l *Ledger) replace(e *Entry, all []*object.Object) (results []records.Result) {
	gone := l.vanished(e, all)
	for first := true; first || len(all) > 0; first = false {
		some := all[:min(chunk, len(all))]
		all = all[len(some):]
		u := records.Update{Scope: records.KindScope(e.Kind), Elements: elementsOf(some), Room: len(some) + len(all)}
		if e.Namespace == "" {
			u.Complete, u.Part = true, len(all) > 0
		} else if u.Part = len(all) > 0 || l.awaits(e.Kind); len(all) == 0 && len(gone) > 0 {
			u.Removed = Names(gone)
		}
		results = append(results, l.feed.Tell(intake.Received{Updates: []records.Update{u}}))
	}
	return results
}

// vanished returns the names of the entry's namespace that the intake has and the list all lacks. When the
// last entry of a kind answers, it adds the names in namespaces without an entry. It returns nothing for an
// entry of all namespaces: the intake then finds deleted names itself.
func (l *Ledger) vanished(e *Entry, all []*object.Object) (gone []string) {
	if e.Namespace == "" {
		return nil
	}
	listed := make(map[string]bool, len(all))
	for _, o := range all {
		listed[o.FullName()] = true
	}
	watched := map[string]bool{}
	for _, other := range l.entries[e.Kind] {
		watched[other.Namespace] = true
	}
	last := !l.awaits(e.Kind)
	return l.having(e.Kind, func(namespace, name string) bool {
		return namespace == e.Namespace && !listed[name] || last && !watched[namespace]
	})
}

// having returns the names of a kind that the intake has, and for which a function returns true.
func (l *Ledger) having(kind mirror.Kind, is func(namespace, full string) bool) (all []string) {
	for name := range l.feed.Versions(records.KindScope(kind)) {
		if namespace, _, _ := strings.Cut(name, "/"); is(namespace, name) {
			all = append(all, name)
		}
	}
	return all
}

// elementsOf returns prepared objects as elements of an update.
func elementsOf(all []*object.Object) func(int, records.Known) iter.Seq[records.Element] {
	return records.Elements(all, func(o *object.Object) records.Element {
		m := o.Made
		el := ElementOf(o.FullName(), m.Digest, m.Size, m.Resource, m.Err)
		el.Version, el.Lacks = []byte(o.ResourceVersion), len(m.Unknown) > 0
		return el
	})
}

// ElementOf returns an element without bytes: unchanged if there is neither a resource nor an error.
func ElementOf(name string, digest xxh3.Uint128, size int, r *mirror.Resource, err error) records.Element {
	el := records.Element{Name: []byte(name), Size: size, Digest: digest, Resource: r, Err: err}
	if r != nil {
		el.Way.Path = r.Provenance().Path
	}
	return el
}

// Names returns names for records.Update.Removed.
func Names(all []string) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for _, name := range all {
			if !yield([]byte(name)) {
				return
			}
		}
	}
}

// unchanged returns an update of a kind without changes.
func unchanged(kind mirror.Kind) records.Update {
	return records.Update{Scope: records.KindScope(kind), Elements: records.Resources()}
}

// lacksRoom reports whether a limit refused an object. It also returns true if the results do not name all
// refusals.
func lacksRoom(results []records.Result) bool {
	return slices.ContainsFunc(results, func(r records.Result) bool {
		return r.RefusedTotal > len(r.Refused) || slices.ContainsFunc(r.Refused, func(one records.Refusal) bool { return strings.Contains(one.Reason, object.OverLimit) })
	})
}

// changes returns the changes of the outputs of a Deriver.
func (l *Ledger) changes(d Deriver) []records.Update { return d.Changes(l.awaitsInputs(d)) }

// Change calls change, which sets options of a Deriver.
func (l *Ledger) Change(d Deriver, change func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change()
	l.tell(l.changes(d))
}

// Settle calls change, which sets options of Derivers. It notes that the entry with these options can be read.
func (l *Ledger) Settle(e *Entry, change func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change()
	followed := e.ok
	e.listed, e.ok = true, true
	switch {
	case !l.open && !followed:
		l.begin(nil)
	case e.awaited:
		l.answer(e)
	default:
		for _, d := range l.taking(e.Kind) {
			l.tell(l.changes(d))
		}
	}
}
