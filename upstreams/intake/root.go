package intake

import (
	"cmp"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"meshrelay/events"
	"meshrelay/federation/filter"
	"meshrelay/internal/identity"
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
func (in *Intake) addRoot(root string) {
	roots := strings.Split(cmp.Or(in.root, filter.DefaultRoot), ",")
	if slices.Contains(roots, root) || strings.Contains(root, ",") || len(in.root)+len(root) > maxRoots {
		return // no namespace has such a name
	}
	in.root = strings.Join(append(roots, root), ",")
	in.journal.reported = time.Time{}
	in.note(slog.LevelWarn, "root namespaces added", "roots", text.Abbreviate(in.root), "see", "relay release "+in.name+" --all")
}

// Rooted is the event that the MeshConfig that is served names a root namespace.
type Rooted struct{ Namespace string }

func (e Rooted) step(in *Intake, out *Output) {
	in.meshRoot = e.Namespace
	in.addRoot(in.meshRoot)
	in.reroot(&out.Result)
}

// releaseRoots has only those root namespaces count that MeshConfigs name now. It reports whether others did.
func (in *Intake) releaseRoots(o Order, out *Output) bool {
	named := slices.DeleteFunc(strings.Split(in.root, ","), func(root string) bool { return root != in.ownRoot && root != in.meshRoot })
	now := strings.Join(named, ",")
	if !o.All || now == "" || now == in.root {
		return false
	}
	if !o.DryRun {
		in.tellOrder(o, events.Event{Type: events.Released, Text: "root namespaces are now " + now + ", before " + in.root})
		in.root = now
		in.journal.reported = time.Time{}
		in.reroot(&out.Result)
	}
	return true
}

// reroot judges all resources again that come from, or into, root namespaces that have changed. What is left out goes without
// the guard: a rule of the config leaves it out.
func (in *Intake) reroot(out *Result) {
	before, next := in.rules, in.rules.withRoot(in.root)
	if next == before {
		return
	}
	in.rules = next
	back := map[*kind][]string{}
	in.all(func(sc *scope, name string, rec *record) {
		k := in.kind(sc.Kind)
		key, ok := keyOf(k.kind, name)
		switch {
		case !ok || (next.checkRoot(key) == imported) == (before.checkRoot(key) == imported):
			return
		case sc.Name == extensions.Name: // it comes back with its WasmPlugin
			in.delete(sc, name, rec)
			in.expel(next.keyOf(key))
			return
		}
		if in.rejudge(sc, rec, name, out); next.checkRoot(key) == imported {
			back[k] = append(back[k], name)
		} else {
			delete(k.pending, name)
			in.expel(next.keyOf(key))
		}
	})
	for key, f := range in.former {
		if original, ok := keyOf(key.Kind, f.name()); ok && next.checkRoot(original) != imported {
			in.expel(key)
		}
	}
	for k, names := range back {
		out.Changed += in.reconcile(k, names)
	}
	in.gate.Meant()
}

// rejudge imports the content of a record again.
func (in *Intake) rejudge(sc *scope, rec *record, name string, out *Result) {
	r := cmp.Or(rec.original, rec.resource)
	if r == nil {
		return
	}
	before := rec.load(len(name))
	_, err := in.importRecord(sc, rec, r, mirror.Way{})
	in.account(before, rec.load(len(name)))
	if err != nil {
		in.refuse(sc, name, err, out)
	}
}

// trusts reports whether the provenance that a server tells is believed. server has the identities that it has proven.
func (im *Rules) trusts(server []string) bool {
	return len(im.via) == 0 || slices.ContainsFunc(im.via, func(p identity.Pattern) bool { return slices.ContainsFunc(server, p.Matches) })
}

// meet notes the identities of a server. The disk keeps them with the provenance that was believed from it.
func (in *Intake) meet(server []string) {
	if !slices.Equal(in.server, server) {
		in.server = slices.Clone(server)
		in.journal.reported = time.Time{}
	}
}

// judgeProvenance drops the provenance of a resource from the disk or from a former source, if the present rules would
// not believe the server that it came from.
func (in *Intake) judgeProvenance(r *mirror.Resource) *mirror.Resource {
	if in.rules.relayed && !in.rules.trusts(in.server) && in.rules.believed(r) {
		return r.Stamped(in.rules.stamp)
	}
	return r
}
