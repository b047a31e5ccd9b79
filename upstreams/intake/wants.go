package intake

import (
	"maps"
	"strings"

	"meshrelay/events"
	"meshrelay/federation"
	"meshrelay/mirror"
)

// wanted is what the records want of a name.
type wanted int

const (
	isWanted  wanted = iota // the resource of a record
	isGone                  // no scope has the name
	isUnknown               // a scope that may have the name has still to answer
)

// want is what the records want of a served key.
type want struct {
	wanted
	key   mirror.Key
	rec   *record // nil unless isWanted
	scope *scope
}

// wants adds what the records want of a name, and of what they make of it. settle asks again for what is not known yet.
func (in *Intake) wants(all []want, k *kind, name string) []want {
	rec, sc := k.find(name)
	if k.kind == federation.WasmPlugin && (rec != nil || !k.waits()) {
		all = in.wants(all, in.kind(federation.TrafficExtension), in.extend(name, rec))
	}
	original, ok := keyOf(k.kind, name)
	switch {
	case rec != nil && (!rec.kept || !k.waits()):
		return append(all, want{isWanted, rec.resource.Key(), rec, sc})
	case !ok:
		return all
	case k.waits():
		if k.pending == nil {
			k.pending = map[string]struct{}{}
		}
		k.pending[name] = struct{}{}
		return append(all, want{wanted: isUnknown, key: in.rules.keyOf(original)})
	}
	return append(all, want{wanted: isGone, key: in.rules.keyOf(original)})
}

// obey has the gate do what the records want. It reports whether clients see a change.
func (in *Intake) obey(w want) (changed bool) {
	switch w.wanted {
	case isWanted:
		return in.serve(w.key, w.rec, w.scope)
	case isGone:
		in.remove(w.key)
	case isUnknown: // what is served stays until then
	}
	return false
}

// reconcileAll has all that is served follow the records. Served keys without a record are gone.
func (in *Intake) reconcileAll() {
	if in.gate.Frozen() {
		in.gate.Recount()
	}
	in.reconcileOver(in.servedKeys(), false)
}

// reconcileOver has all names follow the records. Those of keys that have no record are gone. meant: a change of the config
// removes them, so the guard does not judge that.
func (in *Intake) reconcileOver(keys map[mirror.Key]struct{}, meant bool) {
	var all []want
	for _, k := range in.kinds {
		for name := range in.namesOf(k) {
			all = in.wants(all[:0], k, name)
			for _, w := range all {
				delete(keys, w.key)
				if in.obey(w); w.rec != nil {
					for key := range w.rec.siblings {
						delete(keys, key)
					}
				}
			}
		}
	}
	if meant {
		in.because(events.ByConfig, "config")
	}
	ruled := meant
	for key := range keys {
		ruled = in.gate.Unwanted(key, meant, in.unswept) || ruled
	}
	if !in.gate.Frozen() {
		in.gate.Recount()
		if ruled {
			in.gate.Meant()
		}
	}
}

// namesOf returns the names of a kind that have content, or are not known yet.
func (in *Intake) namesOf(k *kind) map[string]struct{} {
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
	if made := in.scopes[extensions.Name]; k.kind == federation.WasmPlugin && made != nil {
		for name := range made.byName {
			names[strings.TrimSuffix(name, federation.Translated)] = struct{}{}
		}
	}
	return names
}
