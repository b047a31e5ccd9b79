package upstreams

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"meshrelay/mirror"
)

// Trace is what became of one resource of a source on its way in.
type Trace struct {
	Upstream string
	// Original is the key under which the source has the resource, Key that under which it
	// is held here.
	Original, Key mirror.Key
	// Reason is why the resource is left out, empty when it is imported; Detail says it in
	// a sentence.
	Reason, Detail string
	// Refused says what is wrong with the newest content; the last good one, if there was
	// one, stays in force.
	Refused string
	// Resource is what is held, nil when the resource is left out or never was good. Since
	// is since when it is what it is.
	Resource *mirror.Resource
	Since    time.Time
	// From is what the source has, nil when that is not known. Besides its provenance, it
	// is Resource when nothing has been reshaped.
	From *mirror.Resource
}

// LeftOut is a resource of a source that is not imported.
type LeftOut struct {
	Upstream string `json:"upstream"`
	// Kind is "group/Kind"; it, Namespace and Name are as the source has them.
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	// Reason is the rule that leaves it out, Detail says it in a sentence.
	Reason string `json:"reason"`
	Detail string `json:"detail,omitempty"`
}

func leftOut(upstream string, key mirror.Key, reason Reason, detail string) LeftOut {
	return LeftOut{upstream, key.Kind.String(), key.Namespace, key.Name, reason.String(), detail}
}

func sortLeftOut(all []LeftOut) []LeftOut {
	slices.SortFunc(all, func(a, b LeftOut) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return all
}

// LeftOut implements Source.
func (x *XDS) LeftOut() []LeftOut {
	x.mu.Lock()
	defer x.mu.Unlock()
	var out []LeftOut
	for kind, spellings := range x.table.byKind {
		seen := map[string]bool{}
		for _, sp := range spellings {
			for name, rec := range sp.byName {
				key, ok := keyOf(kind, name)
				if !ok || rec.dropped == imported || seen[name] {
					continue
				}
				seen[name] = true
				out = append(out, leftOut(x.table.importer.source, key, rec.dropped, rec.detail))
			}
		}
	}
	return sortLeftOut(out)
}

// Trace implements Source.
func (x *XDS) Trace(key mirror.Key) []Trace {
	x.mu.Lock()
	defer x.mu.Unlock()
	out := x.table.trace(key)
	if t, ok := x.gate.trace(key); ok && len(out) == 0 {
		out = append(out, t)
	}
	return out
}

// trace returns the traces of the names that are, or are held as, a key. Of the spellings
// of a name it is the one that is in force.
func (t *table) trace(key mirror.Key) []Trace {
	byName := map[string]Trace{}
	for _, sp := range t.byKind[key.Kind] {
		names := slices.Collect(maps.Keys(sp.byName))
		for name := range sp.refused {
			if sp.byName[name] == nil {
				names = append(names, name)
			}
		}
		for _, name := range names {
			original, ok := keyOf(key.Kind, name)
			if !ok || original != key && t.importer.keyOf(original) != key {
				continue
			}
			if have, there := byName[name]; there && have.Resource != nil {
				continue
			}
			byName[name] = t.traceOf(sp, original, name)
		}
	}
	return slices.SortedFunc(maps.Values(byName), func(a, b Trace) int {
		return cmp.Compare(a.Original.FullName(), b.Original.FullName())
	})
}

func (t *table) traceOf(sp *spelling, original mirror.Key, name string) Trace {
	tr := Trace{
		Upstream: t.importer.source, Original: original, Key: t.importer.keyOf(original), Refused: sp.refused[name],
	}
	rec := sp.byName[name]
	if rec == nil {
		return tr
	}
	tr.Resource, tr.From, tr.Reason = rec.resource, rec.original, rec.dropped.String()
	tr.Detail = rec.detail
	if tr.From == nil {
		tr.From = rec.resource
	}
	if rec.at != 0 {
		tr.Since = time.Unix(rec.at, 0).UTC()
	}
	return tr
}
