package records

import (
	"maps"
	"slices"
	"strings"

	"meshrelay/federation"
	"meshrelay/mirror"
)

// What is what the records want of a key.
type What int

// What records want.
const (
	Resource  What = iota // it has a resource
	Gone                  // the source has it no more
	RuledOut              // the rules leave it out
	Unknown               // a scope that may have it has still to answer; what is served stays until then
	Addresses             // the source has it no more; what is served gets the endpoints of now
)

// Want is what the records want of a served key.
type Want struct {
	What
	Key      mirror.Key
	Resource *mirror.Resource // nil unless What is Resource
	Origin
	service mirror.Key // Key, or that of the service whose sibling it is
}

// Origin is where the content of a key comes from. It is empty for a key without a record.
type Origin struct {
	record *record
	scope  *scope
	// Endpoints: only endpoints differ from what is on disk.
	Endpoints bool
}

// touched is a name whose wants may have changed, or a key that the rules leave out, or a record that is only followed.
type touched struct {
	kind      *kind
	name      string
	endpoints bool
	ruledOut  mirror.Key
	former    *record
	scope     *scope
}

func (rs *Records) touch(k *kind, endpoints bool, names ...string) {
	rs.touched = slices.Grow(rs.touched, len(names))
	for _, name := range names {
		rs.touched = append(rs.touched, touched{kind: k, name: name, endpoints: endpoints})
	}
}

func (rs *Records) ruleOut(key mirror.Key) { rs.touched = append(rs.touched, touched{ruledOut: key}) }

// Wants calls obey with what the records want of all that was touched since the last call.
func (rs *Records) Wants(obey func(Want)) {
	all := rs.touched
	rs.touched = nil
	for _, t := range all {
		switch {
		case t.kind != nil:
			rs.wants(t.kind, t.name, t.endpoints, obey)
		case t.former != nil:
			key := t.former.resource.Key()
			obey(Want{Addresses, key, nil, Origin{t.former, t.scope, true}, key})
		default:
			obey(Want{What: RuledOut, Key: t.ruledOut})
		}
	}
}

// All calls obey with what the records want of all names that have content, or are not known yet.
func (rs *Records) All(obey func(Want)) {
	for _, k := range rs.kinds {
		names := maps.Clone(k.pending)
		if names == nil {
			names = map[string]struct{}{}
		}
		for _, sc := range k.scopes {
			for name, rec := range sc.byName {
				if rec.resource != nil {
					names[name] = struct{}{}
				}
			}
		}
		if made := rs.scopes[extensions.Name]; k.kind == federation.WasmPlugin && made != nil {
			for name := range made.byName {
				names[strings.TrimSuffix(name, federation.Translated)] = struct{}{}
			}
		}
		for name := range names {
			rs.wants(k, name, false, obey)
		}
	}
}

// wants calls obey with what the records want of a name, and of what they make of it. settle asks again for what is not known
// yet.
func (rs *Records) wants(k *kind, name string, endpoints bool, obey func(Want)) {
	rec, sc := k.find(name)
	if rec == nil {
		rec, sc = rs.reviveRefused(k, name)
	}
	if k.kind == federation.WasmPlugin && (rec != nil || !k.waits()) {
		rs.wants(rs.kind(federation.TrafficExtension), rs.extend(name, rec), false, obey)
	}
	if rec != nil && (!rec.kept || !k.waits()) {
		key := rec.resource.Key()
		rs.LetGo(key)
		obey(Want{Resource, key, rec.resource, Origin{rec, sc, endpoints}, key})
		return
	}
	original, ok := keyOf(k.kind, name)
	if !ok {
		return
	}
	want := Want{What: Gone, Key: rs.rules.keyOf(original)}
	if k.waits() {
		if k.pending == nil {
			k.pending = map[string]struct{}{}
		}
		k.pending[name] = struct{}{}
		want.What = Unknown
	}
	obey(want)
}

// Siblings returns what else is to be served of a record, and what no more: with nil in place of Resource. The caller obeys all.
func (rs *Records) Siblings(w Want) (all []Want) {
	if w.record == nil || len(w.record.siblings) == 0 {
		return nil
	}
	for key, s := range w.record.siblings {
		all = append(all, Want{w.What, key, s, Origin{w.record.sibling(s), w.scope, w.Endpoints}, w.service})
		if s == nil {
			delete(w.record.siblings, key)
		}
	}
	return all
}

// SiblingKeys returns the keys of what else is, or was, to be served of a record.
func (rs *Records) SiblingKeys(w Want) []mirror.Key {
	if w.record == nil || len(w.record.siblings) == 0 {
		return nil
	}
	return slices.Collect(maps.Keys(w.record.siblings))
}

// SiblingsOf returns the keys of the siblings of the last record of a key.
func (rs *Records) SiblingsOf(key mirror.Key) []mirror.Key {
	if f := rs.former[key]; f != nil {
		return slices.Collect(maps.Keys(f.siblings))
	}
	return nil
}

// Stored has a record share the bytes that are served.
func (rs *Records) Stored(w Want, stored *mirror.Resource) {
	before := w.record.load(0)
	w.record.resource = stored
	rs.account(before, w.record.load(0))
}
