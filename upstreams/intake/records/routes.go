package records

import (
	"meshrelay/federation"
	"meshrelay/mirror"
)

// check returns why r, the content of a record, is left out. A route claims the hosts of ServiceEntries that are its parents:
// they pass import.hosts as long as they are imported, or still served.
func (rs *Records) check(rec *record, r *mirror.Resource, way mirror.Way) leftOut {
	rec.child = false
	return rs.rules.check(r, way, rec.relayed, func(key mirror.Key) []string {
		rec.child = true
		f := rs.former[rs.rules.keyOf(key)]
		if is, _ := rs.kind(key.Kind).find(key.FullName()); is != nil || f != nil && f.name() == key.FullName() {
			return nil
		}
		return []string{federation.AnyHost}
	})
}

// RejudgeRoutes judges routes again whose parents may be imported now, or no longer. One that is left out goes without the
// guard, which has judged the parent.
func (rs *Records) RejudgeRoutes(out *Result) {
	if !rs.parents || !rs.rules.filter.JudgesHosts() {
		return
	}
	rs.parents = false
	for p, rec := range rs.all(federation.Routing...) {
		if !rec.child {
			continue
		}
		had := rec.resource != nil
		rs.rejudge(p, rec, out)
		if found, _ := rs.kind(p.Kind).find(p.name); found != nil {
			rs.touch(rs.kind(p.Kind), false, p.name)
		} else if had {
			rs.ruleOut(p)
		}
	}
}
