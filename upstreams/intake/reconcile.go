package intake

import (
	"cmp"
	"encoding/binary"
	"errors"
	"maps"
	"slices"

	"github.com/zeebo/xxh3"

	"meshrelay/federation"
	"meshrelay/federation/services"
	"meshrelay/mirror"
	"meshrelay/state"
)

// end ends an update, which gate.BeginUpdate began. It has the gate judge the deletions, and returns how many that carried
// out. syncing: the source has more to send.
func (in *Intake) end(syncing bool) (removed int) {
	removed = in.gate.EndUpdate(syncing, in.isTorn())
	in.boundJournal()
	return removed
}

// reconcile makes the served resources of some names follow the records. It returns how many of them are new
// or changed for clients. It is called between gate.BeginUpdate and end.
func (in *Intake) reconcile(k *kind, names []string) (differ int) {
	var all []want
	for _, name := range names {
		all = in.wants(all[:0], k, name)
		for _, w := range all {
			if in.obey(w) {
				differ++
			}
		}
	}
	return differ
}

func keyOf(kind mirror.Kind, name string) (mirror.Key, bool) {
	if kind == mirror.MeshConfig {
		return mirror.Key{Kind: kind, Name: mirror.MeshConfigName}, true
	}
	namespace, name, err := mirror.ParseFullName(name)
	return mirror.Key{Kind: kind, Namespace: namespace, Name: name}, err == nil
}

// delete removes a record and reports whether it had content. The caller reconciles its name only then:
// without content, a resource that is served under the name comes from another record.
func (in *Intake) delete(sc *scope, name string, rec *record) (held bool) {
	in.account(rec.load(len(name)), load{})
	in.endKeep(sc, rec)
	sc.setLeftOut(rec, imported)
	sc.setMark(rec, 0)
	delete(sc.byName, name)
	in.forgive(sc, name)
	delete(sc.panicked, name)
	if rec.resource == nil {
		in.discovery.unfollow(rec)
		return false
	}
	delete(in.discovery.waiting, rec)
	in.dropFormer(rec.resource.Key())
	in.former[rec.resource.Key()] = rec // its endpoints are followed until it is not served any more
	return true
}

// deleteAll removes all records of a scope, and returns the names that had content.
func (in *Intake) deleteAll(sc *scope) (gone []string) {
	for name, rec := range sc.byName {
		if in.delete(sc, name, rec) {
			gone = append(gone, name)
		}
	}
	in.forgiveAll(sc)
	return gone
}

// revive gives a record without content the last good content of its name, if that is still served
// and the rules have left out nothing newer. It reports whether it did.
func (in *Intake) revive(rec *record, kind mirror.Kind, name string) bool {
	original, ok := keyOf(kind, name)
	if !ok || rec.resource != nil || rec.leftOut != imported || len(in.former) == 0 {
		return false
	}
	f := in.former[in.rules.keyOf(original)]
	if f == nil || f.name() != name {
		return false
	}
	rec.resource, rec.original, rec.siblings, rec.at = f.resource, f.original, f.siblings, f.at
	return true
}

func (in *Intake) eachServed(f func(*mirror.Resource)) {
	for _, kind := range in.served.Kinds() {
		for _, r := range in.served.List(kind, "") {
			f(r)
		}
	}
}

func (in *Intake) servedKeys() map[mirror.Key]struct{} {
	keys := make(map[mirror.Key]struct{}, in.gate.Size())
	in.eachServed(func(r *mirror.Resource) { keys[r.Key()] = struct{}{} })
	return keys
}

// kept returns the records with content, in the form of the disk.
func (in *Intake) kept() []state.Record {
	out := make([]state.Record, 0, in.resources)
	in.all(func(sc *scope, name string, rec *record) {
		if rec.resource == nil {
			return
		}
		if rec.kept { // another scope may have it
			if found, _ := in.kind(sc.Kind).find(name); found != rec {
				return
			}
		}
		out = append(out, in.rules.kept(sc, rec))
		for _, p := range rec.siblings {
			if p != nil {
				out = append(out, in.rules.kept(sc, rec.sibling(p)))
			}
		}
	})
	return out
}

// adopt takes over the records of a former source or of the disk. same is set if the rules have not changed
// since. Otherwise adopt imports the records again, and the intake asks the source for all content.
func (in *Intake) adopt(records []state.Record, same bool) {
	followed := in.discovery
	in.records = newRecords()
	in.keepFollowing(followed)
	clear(in.keeping)
	in.stream = stream{unswept: true}
	in.gate.Unopen()
	held := map[mirror.Key]struct{}{}
	for i := range records {
		if isExtension(&records[i]) {
			held[records[i].Resource.Key()] = struct{}{} // until its WasmPlugin is reconciled
		}
	}
	scopes := in.scopesOf(records)
	for _, siblings := range []bool{false, true} { // those of a service need its record
		for i, sc := range scopes {
			if sc == nil || (records[i].Original != nil && records[i].Resource.HasAnnotation(mirror.SiblingAnnotation)) != siblings {
				continue
			}
			if key, judged := in.adoptOne(sc, &records[i], same); judged && in.served.Get(key) != nil {
				held[key] = struct{}{}
			}
		}
	}
	if same {
		for _, sc := range in.kind(federation.WasmPlugin).scopes {
			for name := range sc.byName {
				if rec, _ := in.kind(federation.WasmPlugin).find(name); rec != nil {
					in.extend(name, rec)
				}
			}
		}
		return
	}
	in.parents = true // they may have come after their routes
	in.rejudgeRoutes(&in.out.Result)
	in.reconcileOver(held, true)
	in.end(true)
}

// scopesOf returns the scope of each adopted record, nil if it has none now. The scopes are new,
// and have room for their records.
func (in *Intake) scopesOf(records []state.Record) []*scope {
	out, counts := make([]*scope, len(records)), map[*scope]int{}
	for i := range records {
		if i > 0 && records[i-1].TypeURL == records[i].TypeURL && records[i-1].Resource.Kind() == records[i].Resource.Kind() {
			out[i] = out[i-1] // nearly always
		} else if isExtension(&records[i]) {
			continue
		} else if s, err := in.rules.scopeOf(&records[i]); err == nil {
			_, out[i] = in.scope(s)
		}
		counts[out[i]]++
	}
	delete(counts, nil)
	for sc, n := range counts {
		sc.byName = make(map[string]*record, n)
	}
	return out
}

// adoptOne makes a record of a kept one. It returns the key that was served. judged is set if the key is gone
// when the rules leave the record out; it is not set while the record waits for its endpoints.
func (in *Intake) adoptOne(sc *scope, r *state.Record, same bool) (served mirror.Key, judged bool) {
	served = r.Resource.Key()
	original := cmp.Or(r.Original, r.Resource)
	if !same {
		original = in.judgeProvenance(original)
	}
	name := original.FullName()
	key, ok := keyOf(sc.Kind, name)
	elsewhere := !ok || in.rules.keyOf(key) != served
	if main := sc.byName[name]; main != nil && r.Resource.HasAnnotation(mirror.SiblingAnnotation) {
		if _, waits := in.discovery.waiting[main]; !same && !waits {
			return served, true
		}
		main.setSiblings(append(slices.Collect(maps.Values(main.siblings)), r.Resource), nil)
		in.bytes += len(r.Resource.DeltaEntry())
		return served, false
	} else if main != nil || same && elsewhere {
		return served, false // it comes from older rules
	}
	rec := &record{resource: r.Resource, original: r.Original, at: seconds(r.At), relayed: in.rules.believed(original) || in.rules.relayed && !in.isRegistry() && services.Told(original)}
	sc.byName[name] = rec
	defer func() { in.account(load{}, rec.load(len(name))) }()
	if same {
		rec.hash, rec.version = hashOf(r.Hash), r.Version
		if in.rules.discovers(original, rec.relayed) {
			rec.original = original
			in.discovery.follow(sc, rec, original) //nolint:errcheck // the content stays until its endpoints are known
		}
		if in.rules.filter.JudgesHosts() && slices.Contains(federation.Routing, sc.Kind) {
			in.check(rec, original, mirror.Way{}) // notes its parents
		}
		return served, false
	}
	if elsewhere {
		rec.resource, rec.original = nil, nil // it gets another key
	}
	if _, err := in.importRecord(sc, rec, original, mirror.Way{}); err != nil {
		in.refuse(sc, name, err, &Result{})
		if errors.As(err, new(*mirror.Panic)) {
			rec.resource, rec.original = nil, nil // it is not served
		}
	}
	_, waits := in.discovery.waiting[rec]
	return served, !waits
}

func hashOf(b [16]byte) xxh3.Uint128 {
	return xxh3.Uint128{Hi: binary.BigEndian.Uint64(b[:8]), Lo: binary.BigEndian.Uint64(b[8:])}
}
