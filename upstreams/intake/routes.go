package intake

import (
	"slices"

	"meshrelay/federation"
	"meshrelay/mirror"
)

// route is a record whose content has ServiceEntries as parents, by their full names. It claims their hosts, which pass
// import.hosts as long as they are imported.
type route struct {
	scope   *scope
	name    string
	parents []string
}

// check returns why r, the content of a record, is left out. It notes the ServiceEntries that decide it.
func (in *Intake) check(sc *scope, rec *record, r *mirror.Resource, way mirror.Way) leftOut {
	var parents []string
	why := in.rules.check(r, way, rec.relayed, func(key mirror.Key) []string {
		name, f := key.FullName(), in.former[in.rules.keyOf(key)]
		parents = append(parents, name)
		if is, _ := in.kind(key.Kind).find(name); is != nil || f != nil && f.name() == name { // imported, or still served
			return nil
		}
		return federation.Unknown(key)
	})
	if len(parents) > 0 {
		in.routes[rec] = route{sc, r.FullName(), parents}
	} else {
		delete(in.routes, rec)
	}
	return why
}

// entryChanged notes whether a resource, by its full name at the source, is imported now, or no longer.
func (in *Intake) entryChanged(kind mirror.Kind, name string, changed bool) {
	if changed && len(in.routes) > 0 && kind == federation.ServiceEntry {
		in.entries[name] = true
	}
}

// rejudgeRoutes judges the routes of changed ServiceEntries again. One that is left out goes without the guard, which has
// judged the ServiceEntry.
func (in *Intake) rejudgeRoutes(out *Result) {
	if len(in.entries) == 0 {
		return
	}
	for rec, route := range in.routes {
		if !slices.ContainsFunc(route.parents, func(name string) bool { return in.entries[name] }) {
			continue
		}
		k, name, had := in.kind(route.scope.Kind), route.name, rec.resource != nil
		in.rejudge(route.scope, rec, name, out)
		if found, _ := k.find(name); found != nil {
			out.Changed += in.reconcile(k, []string{name})
		} else if key, ok := keyOf(k.kind, name); ok && had {
			delete(k.pending, name)
			in.expel(in.rules.keyOf(key))
			in.tallies.forget()
		}
	}
	clear(in.entries)
}
