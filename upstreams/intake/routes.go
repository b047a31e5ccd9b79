package intake

import (
	"meshrelay/federation"
	"meshrelay/mirror"
)

// check returns why r, the content of a record, is left out. A route claims the hosts of ServiceEntries that are its parents:
// they pass import.hosts as long as they are imported, or still served.
func (in *Intake) check(rec *record, r *mirror.Resource, way mirror.Way) leftOut {
	rec.child = false
	return in.rules.check(r, way, rec.relayed, func(key mirror.Key) []string {
		rec.child = true
		f := in.former[in.rules.keyOf(key)]
		if is, _ := in.kind(key.Kind).find(key.FullName()); is != nil || f != nil && f.name() == key.FullName() {
			return nil
		}
		return []string{federation.AnyHost}
	})
}

// rejudgeRoutes judges routes again whose parents may be imported now, or no longer. One that is left out goes without the
// guard, which has judged the parent.
func (in *Intake) rejudgeRoutes(out *Result) {
	if !in.parents || !in.rules.filter.JudgesHosts() {
		return
	}
	in.parents = false
	for _, kind := range federation.Routing {
		for _, sc := range in.kind(kind).scopes {
			for name, rec := range sc.byName {
				if rec.child {
					in.rejudgeRoute(sc, rec, name, out)
				}
			}
		}
	}
}

func (in *Intake) rejudgeRoute(sc *scope, rec *record, name string, out *Result) {
	k, had := in.kind(sc.Kind), rec.resource != nil
	in.rejudge(sc, rec, name, out)
	if found, _ := k.find(name); found != nil {
		out.Changed += in.reconcile(k, []string{name})
	} else if key, ok := keyOf(k.kind, name); ok && had {
		delete(k.pending, name)
		in.expel(in.rules.keyOf(key))
		in.gate.Meant()
	}
}
