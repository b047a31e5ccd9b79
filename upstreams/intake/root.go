package intake

import (
	"log/slog"
	"slices"
	"time"

	"meshrelay/federation"
	"meshrelay/federation/filter"
	"meshrelay/internal/identity"
	"meshrelay/internal/text"
	"meshrelay/internal/wire"
	"meshrelay/mirror"
	"meshrelay/state"
)

// rootField is the number of the field root_namespace of a MeshConfig, and maxNamespace the length of a namespace.
const (
	rootField    = 34
	maxNamespace = 63
)

// withRoot returns the rules for the root namespace of the upstream's MeshConfig, empty if that is unknown.
func (im *Rules) withRoot(namespace string) *Rules {
	f := im.filter.WithRoot(namespace)
	if f == im.filter {
		return im
	}
	next := *im
	next.filter = f
	return &next
}

// learnRoot notes the root namespace of a MeshConfig, also of one that is not imported. reroot applies it.
func (in *Intake) learnRoot(meshConfig *mirror.Resource) {
	root := string(wire.Last(meshConfig.BodyValue(), rootField))
	if root == "" {
		root = filter.DefaultRoot
	}
	if len(root) > maxNamespace || root == in.root {
		return // no namespace has a longer name
	}
	in.root = root
	in.journal.reported = time.Time{}
}

// learnRoots notes the root namespace of the MeshConfig among records, before they are judged.
func (in *Intake) learnRoots(records []state.Record) {
	for _, r := range records {
		if r.Resource.Kind() == mirror.MeshConfig {
			in.learnRoot(r.Resource)
		}
	}
	in.rules = in.rules.withRoot(in.root)
}

// reroot judges all resources of the former and of the new root namespace anew, after a MeshConfig has named another
// one. What is served of the new one goes first, without the guard: a rule of the config leaves it out.
func (in *Intake) reroot(out *Result) {
	next := in.rules.withRoot(in.root)
	if next == in.rules {
		return
	}
	former, root := in.rules.filter.Root(), next.filter.Root()
	in.rules = next
	in.note(slog.LevelInfo, "root namespace changed", "root", text.Abbreviate(root), "before", text.Abbreviate(former))
	back := map[*kind][]string{}
	for _, k := range in.kinds {
		for _, sc := range k.scopes {
			if sc.Name == extensions.Name {
				continue // they follow their WasmPlugins
			}
			for name, rec := range sc.byName {
				if key, ok := keyOf(k.kind, name); ok && (key.Namespace == former || key.Namespace == root) && (in.rejudge(sc, rec, name, out) || k.kind == federation.WasmPlugin) {
					back[k] = append(back[k], name)
				}
				if rec.resource == nil && rec.leftOut != imported {
					delete(k.pending, name)
				}
			}
		}
	}
	in.eachServed(func(r *mirror.Resource) {
		if r.Namespace() == next.keyOf(mirror.Key{Kind: r.Kind(), Namespace: root, Name: "x"}).Namespace && r.Kind() != mirror.MeshConfig {
			in.expel(r.Key())
		}
	})
	for k, names := range back {
		out.Changed += in.reconcile(k, names)
	}
	in.tallies.forget()
}

// rejudge imports the content of a record again. It reports whether the record has content now.
func (in *Intake) rejudge(sc *scope, rec *record, name string, out *Result) bool {
	r := rec.original
	if r == nil {
		r = rec.resource
	}
	if r == nil {
		return false
	}
	before := rec.load(len(name))
	_, err := in.importRecord(sc, rec, r, mirror.Way{})
	in.account(before, rec.load(len(name)))
	if err != nil {
		in.refuse(sc, name, err, out)
	}
	return rec.resource != nil
}

// expel removes a served resource that the rules leave out. A frozen upstream serves it until the end of the freeze.
func (in *Intake) expel(key mirror.Key) {
	if in.frozen != nil {
		in.outdated[key] = true
		in.remove(key)
		return
	}
	in.stay(key)
	in.drop(key)
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
