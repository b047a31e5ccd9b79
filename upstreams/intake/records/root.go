package records

import (
	"cmp"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"meshrelay/federation"
	"meshrelay/federation/filter"
	"meshrelay/internal/text"
	"meshrelay/internal/wire"
	"meshrelay/mirror"
)

// rootField is the number of the field root_namespace of a MeshConfig, and maxRoots bounds Intake.root, in bytes.
const rootField, maxRoots = 34, 1024

// RootOf returns the root namespace that a MeshConfig names.
func RootOf(meshConfig *mirror.Resource) string {
	return cmp.Or(string(wire.Last(meshConfig.BodyValue(), rootField)), filter.DefaultRoot)
}

// withRoot returns the rules for root namespaces that are joined by commas, empty if they are unknown.
func (im *Rules) withRoot(namespaces string) *Rules {
	roots := strings.Split(cmp.Or(namespaces, filter.DefaultRoot), ",")
	if slices.Equal(roots, im.roots) {
		return im
	}
	next := *im
	next.roots = roots
	return &next
}

// checkRoot returns why a resource from a root namespace of the source, or one that rewrite moves into a root namespace, is left
// out. With the profile all, rewrite.namespaces may.
func (im *Rules) checkRoot(k mirror.Key) leftOut {
	from, to, own := k.Namespace, im.keyOf(k).Namespace, im.cfg.Import.RootNamespace
	_, mapped := im.cfg.Rewrite.Namespaces[from]
	closed, isRoot := im.cfg.Import.Closed(), func(ns string) bool { return slices.Contains(im.roots, ns) }
	switch {
	case closed && from != "" && (from == own || own == "" && isRoot(from)):
		return leftOutBy(string(filter.ReasonRoot), fmt.Sprintf("namespace %q is the root namespace, of which profile %s lets nothing pass", from, im.cfg.Import.Profile))
	case from != to && (isRoot(to) || to == own) && (closed || !mapped):
		return leftOutBy(string(filter.ReasonRoot), fmt.Sprintf("rewrite moves it from %q to %q, which is a root namespace: map %q to another name", from, to, from))
	}
	return imported
}

// addRoot notes a root namespace that a MeshConfig names, also one that is not imported. Those before it count, too, until an
// operator releases the change. reroot applies it.
func (rs *Records) addRoot(root string) {
	roots := strings.Split(cmp.Or(rs.roots.all, filter.DefaultRoot), ",")
	if slices.Contains(roots, root) || strings.Contains(root, ",") || len(rs.roots.all)+len(root) > maxRoots {
		return // no namespace has such a name
	}
	rs.roots.all = strings.Join(append(roots, root), ",")
	rs.news = true
	rs.tell.Note(slog.LevelWarn, "root namespaces added", "roots", text.Abbreviate(rs.roots.all), "see", "relay release "+rs.name+" --all")
}

// Rooted notes the root namespace that the served MeshConfig names.
func (rs *Records) Rooted(namespace string) {
	rs.roots.mesh = namespace
	rs.addRoot(namespace)
}

// NamedRoots returns the root namespaces that MeshConfigs name now, of those that count; empty if they are the same or unknown.
func (rs *Records) NamedRoots() string {
	named := slices.DeleteFunc(strings.Split(rs.roots.all, ","), func(root string) bool { return root != rs.roots.own && root != rs.roots.mesh })
	if now := strings.Join(named, ","); now != rs.roots.all {
		return now
	}
	return ""
}

// SetRoots sets the root namespaces that count, joined by commas; empty if they are unknown.
func (rs *Records) SetRoots(all string) { rs.roots.all = all; rs.news = true }

// Roots returns the root namespaces that count, joined by commas; empty if they are unknown.
func (rs *Records) Roots() string { return rs.roots.all }

// Reroot judges all resources again that come from, or into, root namespaces that have changed. What is left out goes without
// the guard: a rule of the config leaves it out. It reports whether there are other roots.
func (rs *Records) Reroot(result *Result) (changed bool) {
	before, next := rs.rules, rs.rules.withRoot(rs.roots.all)
	if next == before {
		return false
	}
	rs.rules = next
	var back []place
	for p, rec := range rs.all() {
		key, ok := p.key()
		out := next.checkRoot(key) != imported
		switch {
		case !ok || out == (before.checkRoot(key) != imported):
			continue
		case p.Name == extensions.Name: // it comes back with its WasmPlugin
			rs.delete(p.scope, p.name, rec)
			out = true
		default:
			rs.rejudge(p, rec, result)
		}
		if out {
			rs.ruleOut(p)
		} else {
			back = append(back, p)
		}
	}
	for key, f := range rs.former {
		if original, ok := keyOf(key.Kind, f.name()); ok && next.checkRoot(original) != imported {
			rs.want(Want{What: RuledOut, Key: key})
		}
	}
	for _, p := range back {
		rs.touch(rs.kind(p.Kind), false, p.name)
	}
	return true
}

// rejudge imports the content of a record again.
func (rs *Records) rejudge(p place, rec *record, out *Result) {
	r := cmp.Or(rec.original, rec.resource)
	if r == nil {
		return
	}
	_, err := rs.importRecord(p.scope, rec, r, mirror.Way{})
	rs.count(rec, len(p.name))
	if err != nil {
		rs.refuse(p.scope, p.name, err, out)
	}
}

// Meet notes the identities of a server. The disk keeps them with the provenance that was believed from it.
func (rs *Records) Meet(server []string, believe bool) {
	rs.believe = believe && rs.rules.trusts(server)
	if !slices.Equal(rs.server, server) {
		rs.server = slices.Clone(server)
		rs.news = true
	}
}

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
