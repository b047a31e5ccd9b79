package intake

import (
	"cmp"
	"encoding/binary"
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/zeebo/xxh3"

	"meshrelay/events"
	"meshrelay/federation"
	"meshrelay/federation/services"
	"meshrelay/mirror"
	"meshrelay/state"
)

// begin starts an update: changes until end are applied together.
func (in *Intake) begin() {
	if len(in.leaving) == 0 && (!in.syncing || !in.now.Before(in.syncingUntil)) {
		in.tallies.settle() // no deletion waits, so additions until now are not new any more
		if in.syncing && in.opening {
			in.before = hold{} // no deletion of the former hold is left
		}
	}
}

// end judges the deletions of an update and returns how many it carried out. syncing: the source
// has more to send.
func (in *Intake) end(syncing bool) (removed int) {
	if syncing && !in.syncing {
		in.syncingUntil = in.now.Add(syncPatience)
	}
	// The first readable answer of a torn stream counts, too, unless something departed since it
	// began.
	answered := (in.opening || in.torn && in.departures == in.openedAt) && !syncing
	in.syncing = syncing
	removed = in.judge(answered && !in.isTorn())
	if answered {
		in.opening = false
		in.before = hold{}
		in.torn = in.isTorn()
	}
	in.boundJournal()
	return removed
}

// reconcile makes the served resources of some names follow the records. It returns how many of them are new
// or changed for clients. It is called between begin and end.
func (in *Intake) reconcile(k *kind, names []string) (differ int) {
	for _, name := range names {
		if in.reconcileOne(k, name) {
			differ++
		}
	}
	return differ
}

// reconcileOne reconciles one name. After a panic, its served resource stays.
func (in *Intake) reconcileOne(k *kind, name string) (differs bool) {
	defer func() {
		if p := mirror.Recovered(recover()); p != nil {
			_ = in.panicked(name, p) // without the error: no update is there to refuse it
			differs = false
		}
	}()
	rec, sc := k.find(name)
	if k.kind == federation.WasmPlugin && (rec != nil || !k.waits()) {
		in.reconcileOne(in.kind(federation.TrafficExtension), in.extend(name, rec))
	}
	if rec != nil && (!rec.kept || !k.waits()) {
		return in.serve(rec, sc)
	}
	original, ok := keyOf(k.kind, name)
	if !ok {
		return false
	}
	key := in.rules.keyOf(original)
	if k.waits() {
		if k.pending == nil {
			k.pending = map[string]struct{}{}
		}
		k.pending[name] = struct{}{}
		delete(in.unseen, key) // it stays served until then
		return false
	}
	in.remove(key)
	return false
}

func keyOf(kind mirror.Kind, name string) (mirror.Key, bool) {
	if kind == mirror.MeshConfig {
		return mirror.Key{Kind: kind, Name: mirror.MeshConfigName}, true
	}
	namespace, name, err := mirror.ParseFullName(name)
	return mirror.Key{Kind: kind, Namespace: namespace, Name: name}, err == nil
}

// serve serves a record, unless the upstream is frozen or the kind withheld. It reports whether
// clients see a change.
func (in *Intake) serve(rec *record, sc *scope) (changed bool) {
	key := rec.resource.Key()
	if in.stay(key) && in.held != nil {
		in.held.returned = in.now
	}
	delete(in.unseen, key)
	delete(in.outdated, key)
	in.dropFormer(key)
	switch {
	case in.frozen != nil:
		in.follow(key, key, rec, sc)
		in.serveSiblings(rec, sc)
		in.compare(key, rec.resource)
		return false
	case in.stale.withholds(key.Kind):
		return false
	}
	stored, changed := in.put(key, rec.resource, origin{record: rec, scope: sc, endpoints: in.addressing})
	before := rec.load(0)
	rec.resource = stored
	in.account(before, rec.load(0))
	return in.serveSiblings(rec, sc) || changed
}

// put serves a resource, which comes from o. It returns the stored resource.
func (in *Intake) put(key mirror.Key, r *mirror.Resource, o origin) (stored *mirror.Resource, changed bool) {
	old := in.served.Get(key)
	stored, changed = in.served.Put(r)
	if o.endpoints = changed && in.sameConfig(old, r, o); changed {
		in.empty += empty(r) - empty(old)
		in.dirty(key, o)
	}
	switch {
	case old == nil:
		in.tallies.add(key.Kind, 1)
		in.tallies.all.added++ // restored ones are not new
		in.tallies.kind(key.Kind).added++
		in.report.changes.Note(events.Addition, key)
	case changed && !o.endpoints:
		in.report.changes.Note(events.Modification, key)
		switch service, endpoint := services.Concerns(old, r); {
		case service:
			in.report.changes.Services++
		case endpoint:
			in.report.changes.Endpoints++
		}
	}
	return stored, changed
}

// remove notes that the source does not have a key. judge decides later.
func (in *Intake) remove(key mirror.Key) {
	isServed := in.served.Get(key) != nil
	if !isServed {
		in.dropFormer(key)
	}
	switch {
	case in.frozen != nil:
		in.withdraw(key)
		in.compare(key, nil)
	case isServed && !in.stale.withholds(key.Kind):
		in.depart(key)
	}
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

// drop removes a served resource, and the siblings of its last record.
func (in *Intake) drop(key mirror.Key) bool {
	if f := in.former[key]; f != nil {
		for sibling := range f.siblings {
			in.drop(sibling)
		}
	}
	in.dropFormer(key)
	in.dirty(key, origin{})
	old := in.served.Get(key)
	if !in.served.Remove(key) {
		return false
	}
	in.empty -= empty(old)
	in.tallies.remove(key.Kind)
	in.report.changes.Note(events.Removal, key)
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
	keys := make(map[mirror.Key]struct{}, in.tallies.all.size)
	in.eachServed(func(r *mirror.Resource) { keys[r.Key()] = struct{}{} })
	return keys
}

// reconcileAll reconciles all names, between begin and end. Served keys without a record are gone.
func (in *Intake) reconcileAll() {
	clear(in.differing) // compare fills it again
	in.reconcileOver(in.servedKeys(), false)
}

// reconcileOver reconciles all names. Those of keys that have no record are gone. meant: a change
// of the config removes them, so the guard does not judge that.
func (in *Intake) reconcileOver(keys map[mirror.Key]struct{}, meant bool) {
	in.unseen = keys
	for _, k := range in.kinds {
		names := make(map[string]struct{}, len(k.pending))
		maps.Copy(names, k.pending)
		for _, sc := range k.scopes {
			for name, rec := range sc.byName {
				if rec.resource != nil {
					names[name] = struct{}{}
				}
			}
		}
		if made := in.scopes[extensions.Name]; k.kind == federation.WasmPlugin && made != nil {
			for name := range made.byName {
				names[strings.TrimSuffix(name, federation.Translated)] = struct{}{}
			}
		}
		in.reconcile(k, slices.Collect(maps.Keys(names)))
	}
	if meant {
		in.because(events.ByConfig, "config")
	}
	ruled := meant
	for key := range in.unseen {
		_, leaves := in.leaving[key]
		ends, outdated := in.outdated[key]
		intended := meant || ends
		switch {
		case in.unswept && !meant && !outdated: // the source may still have it
		case in.frozen != nil:
			if meant {
				in.outdated[key] = true
			}
			in.remove(key)
		case !intended:
			in.remove(key)
		case meant && leaves: // the source had deleted it before
		default:
			in.drop(key)
			ruled = true
		}
	}
	in.unseen = nil
	if in.frozen == nil {
		clear(in.outdated)
		if ruled {
			in.tallies.forget()
		}
	}
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
	in.stream = stream{unswept: true, syncing: in.syncing, syncingUntil: in.syncingUntil}
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
