package records

import (
	"maps"
	"strings"

	"meshrelay/federation"
	"meshrelay/mirror"
	"meshrelay/state"
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
	Sibling               // it comes and goes with the endpoints of a service, whatever holds the config
)

// Want is what the records want of a served key.
type Want struct {
	What
	Key      mirror.Key
	Resource *mirror.Resource // of a Resource; of a Sibling nil if it is to be served no more
	Origin
	service mirror.Key // Key, or that of the service whose sibling it is
}

// Origin is where the content of a key comes from. It is empty for a key without a record.
type Origin struct {
	record *record
	scope  *scope
	// Endpoints: only endpoints differ from what is on disk.
	Endpoints bool
	// Disk is the record that the disk has of it, nil if it comes from the source.
	Disk *state.Record
}

// touched is a name whose wants may have changed, or a want.
type touched struct {
	kind      *kind
	name      string
	endpoints bool
	want      *Want
}

// ruleOut wants that a name goes without the guard.
func (rs *Records) ruleOut(p place) {
	if key, ok := p.key(); ok {
		delete(rs.kind(p.Kind).pending, p.name)
		rs.want(Want{What: RuledOut, Key: rs.rules.keyOf(key)})
	}
}

// Wants calls obey with what the records want of all that was touched since the last call.
func (rs *Records) Wants(obey func(Want)) {
	all := rs.touched
	rs.touched = nil
	for _, t := range all {
		switch {
		case t.want == nil:
			rs.wants(t.kind, t.name, t.endpoints, obey)
		case t.want.What != Addresses || rs.former[t.want.Key] == t.want.record: // else the key has a record again, which tells its own
			t.want.obeyed(obey)
		}
	}
}

// obeyed calls obey with a want, and with those of the siblings of its record.
func (w Want) obeyed(obey func(Want)) {
	obey(w)
	if w.record == nil {
		return
	}
	for key, s := range w.record.siblings {
		obey(Want{Sibling, key, s, Origin{record: w.record.sibling(s), scope: w.scope, Endpoints: w.Endpoints}, w.Key})
		if s == nil {
			delete(w.record.siblings, key)
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
		for p, rec := range rs.all(k.kind) {
			if rec.resource != nil {
				names[p.name] = struct{}{}
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
	if rec != nil && (rec.kept == 0 || !k.waits()) {
		key := rec.resource.Key()
		rs.LetGo(key)
		Want{Resource, key, rec.resource, Origin{record: rec, scope: sc, Endpoints: endpoints}, key}.obeyed(obey)
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

// Stored has a record share the bytes that are served.
func (rs *Records) Stored(w Want, stored *mirror.Resource) { w.record.resource = stored }
