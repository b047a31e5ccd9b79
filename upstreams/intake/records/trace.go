package records

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"meshrelay/mirror"
)

// Trace explains the import of one resource of a source.
type Trace struct {
	Upstream string
	// Original is the key at the source, Key the served key.
	Original, Key mirror.Key
	// Reason is why the resource is left out, empty if it is imported. Detail is a sentence.
	Reason, Detail string
	// Refused is the mistake in the newest content. The last good one is served, if any.
	Refused string
	// Resource is the imported content, nil if it is left out or never was good. Since is when it came.
	Resource *mirror.Resource
	Since    time.Time
	// From is the resource before rewriting, nil if unknown. It is Resource if nothing was changed.
	From *mirror.Resource
}

// LeftOut is a resource of a source that is not imported, as the source names it.
type LeftOut struct {
	Upstream  string `json:"upstream"`
	Kind      string `json:"kind"` // "group/Kind"
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"` // empty for a kind that is not asked for
	// Reason is the rule that leaves it out. Detail is a sentence.
	Reason string `json:"reason"`
	Detail string `json:"detail,omitempty"`
}

// LeftOut returns the resources that are left out and the kinds that are not asked for, sorted.
func (rs *Records) LeftOut() []LeftOut {
	var out []LeftOut
	asked := Asked(rs.rules.cfg)
	for _, info := range mirror.Kinds() {
		if rs.rules.relayed && !asked(info.Kind) {
			reason, why := rs.rules.filter.OfKind(info.Kind)
			out = append(out, LeftOut{rs.name, info.Kind.String(), "", "", string(reason), "the kind is not asked for: " + why})
		}
	}
	seen := map[mirror.Key]bool{}
	for p, rec := range rs.all() {
		key, ok := p.key()
		if !ok || rec.leftOut == imported || seen[key] {
			continue
		}
		seen[key] = true
		why := rec.leftOut.Value()
		out = append(out, LeftOut{rs.name, key.Kind.String(), key.Namespace, key.Name, why.reason, why.detail})
	}
	slices.SortFunc(out, func(a, b LeftOut) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return out
}

// Trace returns the traces of the resources with a key, at the source or served. If several scopes
// have a name, it returns the served one.
func (rs *Records) Trace(key mirror.Key) []Trace {
	byName := map[string]Trace{}
	trace := func(sc *scope, name string) {
		if rec, from := rs.kind(key.Kind).find(name); rec != nil {
			sc = from
		}
		original, ok := keyOf(key.Kind, name)
		if rec := sc.byName[name]; rec != nil && rec.siblings[key] != nil {
			tr := rs.traceOf(sc, original, name)
			tr.Key, tr.Resource = key, rec.siblings[key]
			byName[name] = tr
		} else if ok && (original == key || rs.rules.keyOf(original) == key) && byName[name].Resource == nil {
			byName[name] = rs.traceOf(sc, original, name)
		}
	}
	if k := rs.kinds[key.Kind]; k != nil {
		for _, sc := range k.scopes {
			for name := range sc.byName {
				trace(sc, name)
			}
			for name := range sc.refused {
				trace(sc, name)
			}
		}
	}
	return slices.SortedFunc(maps.Values(byName), func(a, b Trace) int {
		return cmp.Compare(a.Original.FullName(), b.Original.FullName())
	})
}

// Refuses returns a function that reports whether the content of a served key may be refused.
func (rs *Records) Refuses() func(served mirror.Key) bool {
	keys, more := map[mirror.Key]struct{}{}, false
	for _, sc := range rs.scopes {
		more = more || sc.moreRefused > 0
		for name := range sc.refused {
			if original, ok := keyOf(sc.Kind, name); ok {
				keys[rs.rules.keyOf(original)] = struct{}{}
			}
		}
	}
	return func(key mirror.Key) bool { _, is := keys[key]; return more || is }
}

func (rs *Records) traceOf(sc *scope, original mirror.Key, name string) Trace {
	tr := Trace{Upstream: rs.name, Original: original, Key: rs.rules.keyOf(original), Refused: sc.refused[name]}
	rec := sc.byName[name]
	if rec == nil {
		return tr
	}
	tr.Resource, tr.From = rec.resource, cmp.Or(rec.original, rec.resource)
	if rec.leftOut != imported {
		tr.Reason, tr.Detail = rec.leftOut.Value().reason, rec.leftOut.Value().detail
	} else if rec.resource != nil {
		tr.Detail = rs.withoutEndpoints(rec)
	}
	if rec.at != 0 {
		tr.Since = rec.since().UTC()
	}
	return tr
}
