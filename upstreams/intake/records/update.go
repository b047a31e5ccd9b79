package records

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"maps"

	"github.com/zeebo/xxh3"

	"meshrelay/internal/panics"
	"meshrelay/mirror"
)

var (
	errDuplicate = errors.New("the name comes twice in one response; the first is kept")
	errNoName    = errors.New("the element has no name")
	errNoMCP     = errors.New("the element is not an istio.mcp.v1alpha1.Resource")
	errLetGo     = errors.New("its content was removed while its kind was listed: the relay lists the kind again")
)

// unnamedElement names refused elements without a readable name.
const unnamedElement = "(an element without a readable name)"

// counted counts the elements of a complete answer, over all its parts.
type counted struct {
	seen    int     // names in the answer
	unnamed int     // elements without a readable name
	late    []int32 // numbers of new elements that have no room before the deletions
	crowded bool    // an earlier part had elements without room
	// resources and bytes are the totals of all records when crowded was set.
	resources, bytes int
}

// replace sets a scope to a complete update and its earlier parts. first: it is the first update on
// its stream. unsure: restored records that are not in the update stay.
func (rs *Records) replace(k *kind, sc *scope, u *Update, first, unsure bool, out *Result) {
	before := sc.parts
	if before == nil {
		rs.forgiveAll(sc)
		before = &counted{}
	}
	same := rs.repeated(sc, u)
	t := rs.takeElements(sc, u, same, nil, out)
	t.seen, t.unnamed, t.crowded = t.seen+before.seen, t.unnamed+before.unnamed, before.crowded
	if sc.parts = nil; u.Part {
		sc.parts = &counted{seen: t.seen, unnamed: t.unnamed, crowded: t.crowded, resources: before.resources, bytes: before.bytes}
		if !t.crowded && len(t.late) > 0 {
			sc.parts.crowded, sc.parts.resources, sc.parts.bytes = true, rs.resources, rs.bytes
		}
	}
	if !u.Part {
		sc.torn = t.unnamed > 0
	}
	switch {
	case u.Part:
	case t.seen == len(sc.byName)-sc.kept:
	case t.unnamed > 0:
		// A missing name may be that of an unnamed element.
		out.Unread = true
		out.Refuse(sc.Name, fmt.Errorf("%d elements have no readable name: this response deletes nothing", t.unnamed))
	default:
		if t.seen == 0 && len(t.late) == 0 && !first && len(k.scopes) > 1 && k.graceUntil.IsZero() {
			k.graceUntil = rs.now.Add(versionGrace)
		}
		rs.deleteWhere(k, sc, maps.All(sc.byName), out, func(rec *record) bool {
			return rec.generation != sc.generation && !same.has(rec.mark) && (!unsure || rec.generation != unconfirmed)
		})
	}
	if len(t.late) > 0 {
		rs.takeElements(sc, u, same, t.late, out) // after the deletions; a part refuses these elements
	}
	if t.crowded && !u.Part {
		// If nothing was deleted since, another list would have the same result, without end.
		out.Relist = out.Relist || rs.resources < before.resources || rs.bytes < before.bytes
	}
}

// patch applies an incomplete update to a scope.
func (rs *Records) patch(k *kind, sc *scope, u *Update, out *Result) {
	t := rs.takeElements(sc, u, nil, nil, out)
	defer func() { sc.torn = t.unnamed > 0 || sc.torn && len(sc.refused)+sc.moreRefused > 0 }()
	if u.Removed == nil {
		return
	}
	removed := func(yield func(string, *record) bool) {
		for name := range u.Removed {
			if sc.Kind == mirror.MeshConfig {
				name = []byte(mirror.MeshConfigName)
			}
			if len(sc.refused) > 0 {
				rs.forgive(sc, string(name))
			}
			// Allocate no string for an unknown name: there may be millions.
			if rec := sc.byName[string(name)]; rec != nil && !yield(string(name), rec) {
				return
			}
		}
	}
	rs.deleteWhere(k, sc, removed, out, func(rec *record) bool { return rec.generation != sc.generation })
}

func (rs *Records) deleteWhere(k *kind, sc *scope, records iter.Seq2[string, *record], out *Result, which func(*record) bool) {
	var gone, kept []string
	for name, rec := range records {
		switch {
		case !which(rec):
		case rs.keep(sc, name, rec):
			kept = append(kept, name)
		case rs.delete(sc, name, rec):
			gone = append(gone, name)
		}
	}
	out.Gone += len(gone)
	rs.touch(k, false, kept...)
	rs.touch(k, false, gone...)
}

// takeElements applies the elements of an update that are not in same: all, or those with the
// numbers in only. An unchanged element costs a hash and a look-up. Nothing is decoded or allocated
// for it.
func (rs *Records) takeElements(sc *scope, u *Update, same *same, only []int32, out *Result) (t counted) {
	if same != nil && only == nil {
		t.seen = same.n
	}
	if u.Elements == nil || same != nil && same.all {
		return t
	}
	var changed []string
	if len(sc.byName) == 0 && u.Room > 0 {
		sc.byName, changed = make(map[string]*record, u.Room), make([]string, 0, u.Room)
		if u.Marks != nil {
			sc.groups = newGroups(u.Room)
		}
	}
	at := int32(-1)
	for el := range rs.elements(u, same) {
		if at++; only != nil {
			if len(only) == 0 {
				break
			}
			if at != only[0] {
				continue
			}
			only = only[1:]
		}
		if el.Mark = rs.mark(el.Mark, el.size()); !u.Complete {
			el.Mark = 0
		}
		name, rec, err := rs.find(sc, u, &el)
		switch {
		case err != nil:
			t.unnamed++
			rs.refuse(sc, cmp.Or(string(el.Name), unnamedElement), err, out)
			continue
		case rec != nil && rec.generation == sc.generation:
			rs.refuse(sc, string(name), errDuplicate, out)
			continue
		case rec != nil && rs.isAsItWas(rec, el.hash(), el.size()): // needs no room
			t.seen++
			rec.generation = sc.generation
			rec.setVersion(el.Version) // an istiod's delta stream repeats everything on each push
			rs.count(rec, len(name))
			sc.setMark(rec, el.Mark)
			if len(sc.refused) > 0 {
				rs.forgive(sc, string(name))
			}
			continue
		}
		err = rs.room(sc, rec, name, &el)
		if errors.Is(err, errFull) && rs.makeRoom(string(name)) {
			rec = sc.byName[string(name)]
			err = rs.room(sc, rec, name, &el)
		}
		if err != nil {
			if back := (&record{}); rec == nil && rs.tooLarge(el.size()) && rs.revive(back, sc.Kind, string(name)) {
				rs.count(back, len(name))
				rec, sc.byName[string(name)] = back, back
				changed = append(changed, string(name))
			}
			switch {
			case rec != nil:
				t.seen++
				rs.endKeep(sc, rec)
				rec.hash, rec.generation = xxh3.Uint128{}, sc.generation
				sc.setMark(rec, 0)
			case only == nil && u.Complete && errors.Is(err, errFull):
				t.late = append(t.late, at)
				continue
			}
			rs.refuse(sc, string(name), err, out)
			continue
		}
		t.seen++
		if full, differs := rs.takeElement(sc, rec, name, &el, out); differs {
			changed = append(changed, full)
		}
	}
	rs.touch(rs.kind(sc.Kind), false, changed...)
	return t
}

// find returns the name of an element, and the record of that name or nil.
func (rs *Records) find(sc *scope, u *Update, el *Element) (name []byte, rec *record, err error) {
	name, err = peekName(sc.Kind, el)
	rec = sc.byName[string(name)]
	switch {
	case err != nil || !el.isBytes() || sc.Kind == mirror.MeshConfig:
	case u.Complete:
		if rec == nil && !IsMCP(el.peek()) {
			err = errNoMCP // its name may be wrong, too
		}
	case string(name) != string(el.Name):
		err = fmt.Errorf("the element is named %q and the resource in it %q", el.Name, name)
	}
	return name, rec, err
}

// isAsItWas reports whether a record was made from an element of this hash and size.
func (rs *Records) isAsItWas(rec *record, hash xxh3.Uint128, size int) bool {
	return rec.accepted() && rec.relayed == rs.believe && !rs.tooLarge(size) && rec.hash == hash
}

// takeElement applies one new or changed element. rec is nil for a new name. It returns the name, and whether the content of
// the record changed. After an error or a panic, the last good content stays, also if its deletion waits.
func (rs *Records) takeElement(sc *scope, rec *record, name []byte, el *Element, out *Result) (full string, differs bool) {
	full = string(name)
	rs.forgive(sc, full)
	fresh := rec == nil
	if fresh {
		rec = &record{}
	}
	was := rec.resource
	rec.hash, rec.relayed, rec.generation = el.hash(), rs.believe, sc.generation
	rs.endKeep(sc, rec)
	sc.setMark(rec, el.Mark)
	rec.setVersion(el.Version)
	differs, err := rs.decode(sc, rec, full, el, out)
	if err != nil {
		rs.refuse(sc, full, err, out)
		rec.hash = xxh3.Uint128{} // check and report it again each time
		sc.setMark(rec, 0)
		differs = rs.revive(rec, sc.Kind, full)
	} else if rec.resource == nil || !rec.resource.Equal(was) {
		rec.at = seconds(rs.now)
	}
	rs.count(rec, len(full))
	if fresh {
		if rec.resource != nil && rec.resource.FullName() == full {
			full = rec.resource.FullName() // share one string, unless the name was rewritten
		}
		sc.byName[full] = rec
	}
	return full, differs
}

// decode sets the content of a record from an element, or returns the mistake in the element.
func (rs *Records) decode(sc *scope, rec *record, name string, el *Element, out *Result) (differs bool, err error) {
	stamp := rs.rules.stamp
	if rs.believe {
		stamp = rs.rules.relayStamp
	}
	r, way := el.Resource, el.Way
	switch left, is := errors.AsType[*LeftOutError](el.Err); {
	case is:
		return rs.leaveOut(sc, rec, leftOutBy(cmp.Or(left.Reason, reasonUnhealthy), left.Detail)), nil
	case el.Err != nil:
		err = el.Err
	case r != nil:
		if why := rs.rules.passed(way, true); why != imported {
			return rs.leaveOut(sc, rec, why), nil
		}
		r, way, rec.lacks = r.Stamped(stamp), mirror.Way{}, el.Lacks
	case !el.isBytes():
		out.Relist, err = true, errLetGo
	default:
		if r = rs.twin(sc, rec, name); r != nil {
			return rs.importRecord(sc, rec, r, way)
		}
		if p := panics.Try(func() { r, way, err = mirror.DecodeStamped(sc.Kind, el.Raw, rs.name, stamp) }); p != nil {
			err = p
		}
	}
	if p, is := errors.AsType[*panics.Panic](err); is {
		err = rs.Panicked(name, p)
	}
	if err != nil {
		return false, err
	}
	if rec.version == r.SourceVersion() {
		rec.version = r.SourceVersion() // share one string
	}
	return rs.importRecord(sc, rec, r, way)
}

// twin returns the resource that another scope of the kind has made from the same bytes, or nil. A server may
// send the same bytes for each version of a kind. They need no second check by the rules.
func (rs *Records) twin(sc *scope, rec *record, name string) *mirror.Resource {
	for _, other := range rs.kind(sc.Kind).scopes {
		t := other.byName[name]
		if other != sc && t != nil && t.resource != nil && t.hash == rec.hash && t.relayed == rec.relayed {
			return cmp.Or(t.original, t.resource)
		}
	}
	return nil
}
