package records

import (
	"errors"
	"strings"

	"meshrelay/federation"
	"meshrelay/internal/panics"
	"meshrelay/mirror"
	"meshrelay/state"
)

// extensions is the scope of the TrafficExtensions that extend makes.
var extensions = DerivedScope(federation.TrafficExtension)

// extend makes the TrafficExtension of a WasmPlugin follow the WasmPlugin's record, nil if it has none: it is imported,
// held and frozen with it. A TrafficExtension of that name which the source has itself is served instead. It returns the
// name of the TrafficExtension.
func (rs *Records) extend(name string, plugin *record) string {
	name += federation.Translated
	_, sc := rs.scope(extensions)
	sc.answered = true
	rec := sc.byName[name]
	if plugin == nil {
		if rec != nil {
			rs.delete(sc, name, rec)
		}
		return name
	}
	made, err := panics.Value(func() (*mirror.Resource, error) { return federation.ExtensionOf(plugin.resource) })
	if p := (*panics.Panic)(nil); errors.As(err, &p) {
		_ = rs.Panicked(name, p)
	}
	if err != nil {
		rs.refuse(sc, name, err, &Result{})
		return name
	}
	if rec == nil {
		rec = &record{generation: sc.generation + 1} // not one that the source has still to send
		sc.byName[name] = rec
	}
	if rec.resource == nil || !rec.resource.Equal(made) {
		rec.resource, rec.at = made, plugin.at
	}
	rs.count(rec, len(name))
	return name
}

// isExtension reports whether a kept record was made by extend. It is made again when records are adopted.
func isExtension(r *state.Record) bool {
	return r.TypeURL == extensions.Name && strings.HasSuffix(r.Resource.FullName(), federation.Translated)
}
