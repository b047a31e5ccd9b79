package records

import (
	"cmp"
	"errors"
	"iter"
	"maps"
	"slices"

	"meshrelay/federation"
	"meshrelay/federation/services"
	"meshrelay/internal/panics"
	"meshrelay/mirror"
	"meshrelay/state"
)

// delete removes a record and reports whether it had content. The caller reconciles its name only then:
// without content, a resource that is served under the name comes from another record.
func (rs *Records) delete(sc *scope, name string, rec *record) (held bool) {
	rs.setCount(rec, 0, false)
	rs.endKeep(sc, rec)
	sc.setLeftOut(rec, imported)
	sc.setMark(rec, 0)
	delete(sc.byName, name)
	rs.forgive(sc, name)
	if rec.resource == nil {
		rs.discovery.unfollow(rec)
		return false
	}
	delete(rs.discovery.waiting, rec)
	rs.setFormer(rec) // its endpoints are followed until it is not served any more
	return true
}

// deleteAll removes all records of a scope, and returns the names that had content.
func (rs *Records) deleteAll(sc *scope) (gone []string) {
	for name, rec := range sc.byName {
		if rs.delete(sc, name, rec) {
			gone = append(gone, name)
		}
	}
	rs.forgiveAll(sc)
	return gone
}

// revive gives a record without content the last good content of its name, if that is still served
// and the rules have left out nothing newer. It reports whether it did.
func (rs *Records) revive(rec *record, kind mirror.Kind, name string) bool {
	original, ok := keyOf(kind, name)
	if !ok || rec.resource != nil || rec.leftOut != imported || len(rs.former) == 0 {
		return false
	}
	f := rs.former[rs.rules.keyOf(original)]
	if f == nil || f.name() != name {
		return false
	}
	rec.resource, rec.original, rec.siblings, rec.at = f.resource, f.original, f.siblings, f.at
	return true
}

// reviveRefused gives the last good content of a name that no scope has any more to a scope that has refused the name: the source
// has it still. It returns nil if there is no such scope.
func (rs *Records) reviveRefused(k *kind, name string) (*record, *scope) {
	for _, sc := range k.scopes {
		rec := sc.byName[name]
		if rec == nil || rec.resource != nil {
			continue
		}
		if rs.revive(rec, k.kind, name) {
			rs.count(rec, len(name))
			return rec, sc
		}
	}
	return nil, nil
}

// Kept returns the records with content, in the form of the disk.
func (rs *Records) Kept() []state.Record {
	out := make([]state.Record, 0, rs.resources)
	for p, rec := range rs.all() {
		if rec.resource == nil {
			continue
		}
		if rec.kept > 0 { // another scope may have it
			if found, _ := rs.kind(p.Kind).find(p.name); found != rec {
				continue
			}
		}
		out = append(out, rs.rules.saved(p.scope, rec))
		for _, s := range rec.siblings {
			if s != nil {
				out = append(out, rs.rules.saved(p.scope, rec.sibling(s)))
			}
		}
	}
	return out
}

// Adopt takes over the records of a former source or of the disk. same is set if the rules have not changed
// since. Otherwise it imports the records again, and returns the served keys of those that need not be served by the rules.
func (rs *Records) Adopt(records []state.Record, same bool) (ruled map[mirror.Key]struct{}) {
	followed := rs.discovery
	rs.book, rs.discovery, rs.streams, rs.touched = newBook(), newDiscovery(), streams{}, nil
	rs.kept = 0
	for _, rec := range rs.former { // they are served on
		if s, is := followed.services[rec]; is {
			_, sc := rs.scope(s.scope.Scope)
			rs.followFormer(sc, rec)
		}
	}
	held := map[mirror.Key]struct{}{}
	scopes := rs.scopesOf(records)
	for _, siblings := range []bool{false, true} { // those of a service need its record
		for i, sc := range scopes {
			switch r := &records[i]; {
			case isExtension(r):
				held[r.Resource.Key()] = struct{}{} // until its WasmPlugin is reconciled
			case sc == nil || (r.Original != nil && r.Resource.HasAnnotation(mirror.SiblingAnnotation)) != siblings:
			default:
				if key, judged := rs.adoptOne(sc, r, same); judged {
					held[key] = struct{}{}
				}
			}
		}
	}
	if same {
		for p := range rs.all(federation.WasmPlugin) {
			if rec, _ := rs.kind(p.Kind).find(p.name); rec != nil {
				rs.extend(p.name, rec)
			}
		}
		return nil
	}
	rs.parents = true // they may have come after their routes
	rs.RejudgeRoutes(&Result{})
	return held
}

// scopesOf returns the scope of each adopted record, nil if it has none now. The scopes are new,
// and have room for their records.
func (rs *Records) scopesOf(records []state.Record) []*scope {
	out, counts := make([]*scope, len(records)), map[*scope]int{}
	for i := range records {
		if i > 0 && records[i-1].TypeURL == records[i].TypeURL && records[i-1].Resource.Kind() == records[i].Resource.Kind() {
			out[i] = out[i-1] // nearly always
		} else if isExtension(&records[i]) {
			continue
		} else if s, err := rs.rules.scopeOf(&records[i]); err == nil {
			_, out[i] = rs.scope(s)
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
func (rs *Records) adoptOne(sc *scope, r *state.Record, same bool) (served mirror.Key, judged bool) {
	served = r.Resource.Key()
	original := cmp.Or(r.Original, r.Resource)
	if im := rs.rules; !same && im.relayed && !im.trusts(rs.server) && im.believed(original) {
		original = original.Stamped(im.stamp) // it comes from a server that the rules do not believe any more
	}
	name := original.FullName()
	key, ok := keyOf(sc.Kind, name)
	elsewhere := !ok || rs.rules.keyOf(key) != served
	if main := sc.byName[name]; main != nil && r.Resource.HasAnnotation(mirror.SiblingAnnotation) {
		if _, waits := rs.discovery.waiting[main]; !same && !waits {
			return served, true
		}
		main.setSiblings(append(slices.Collect(maps.Values(main.siblings)), r.Resource), nil)
		rs.count(main, len(name))
		return served, false
	} else if main != nil || same && elsewhere {
		return served, false // it comes from older rules
	}
	rec := &record{resource: r.Resource, original: r.Original, at: seconds(r.At), relayed: rs.rules.believed(original) || rs.rules.relayed && !rs.rules.registry && services.Told(original)}
	sc.byName[name] = rec
	defer rs.count(rec, len(name))
	if same {
		rec.hash, rec.version = hashOf(r.Hash), r.Version
		if rs.rules.discovers(original, rec.relayed) {
			rec.original = original
			rs.discovery.follow(sc, rec, original) //nolint:errcheck // the content stays until its endpoints are known
		}
		if rs.rules.filter.JudgesHosts() && slices.Contains(federation.Routing, sc.Kind) {
			rs.check(rec, original, mirror.Way{}) // notes its parents
		}
		return served, false
	}
	if elsewhere {
		rec.resource, rec.original = nil, nil // it gets another key
	}
	if _, err := rs.importRecord(sc, rec, original, mirror.Way{}); err != nil {
		rs.refuse(sc, name, err, &Result{})
		if errors.As(err, new(*panics.Panic)) {
			rec.resource, rec.original = nil, nil // it is not served
		}
	}
	_, waits := rs.discovery.waiting[rec]
	return served, !waits
}

// Saved returns the record to write for a key that is served as r, from its origin.
func (rs *Records) Saved(o Origin, r *mirror.Resource) state.Record {
	rec, sc := o.record, o.scope
	f := rs.former[r.Key()]
	if f != nil && rs.discovery.services[f].scope != nil && (rec == nil || rec.resource == nil || services.SameConfig(f.resource, r)) {
		rec, sc = f, rs.discovery.services[f].scope // a record that was written before may have no content now
	}
	switch {
	case o.Disk != nil && o.Disk.Resource.Equal(r):
		return *o.Disk
	case rec == nil:
	case rec.resource.Equal(r):
		return rs.rules.saved(sc, rec)
	case sc != nil && rs.rules.isAddressed(r, rec.original, rec.relayed):
		out := rs.rules.saved(sc, rec) // its config is that of before, with the endpoints of the record
		out.Original, out.Resource, out.Hash = cmp.Or(out.Original, out.Resource), r, [16]byte{}
		return out
	}
	return state.Record{Resource: r}
}

// Origins returns the origins of all keys that have a record: of several, that from which it is served.
func (rs *Records) Origins() map[mirror.Key]Origin {
	origins := make(map[mirror.Key]Origin, rs.resources)
	for p, rec := range rs.all() {
		if found, _ := rs.kind(p.Kind).find(p.name); found != rec {
			continue
		}
		// The record has this content, but the source need not have it.
		origins[rec.resource.Key()] = Origin{record: rec, scope: p.scope}
		for key, s := range rec.siblings {
			origins[key] = Origin{record: rec.sibling(s), scope: p.scope}
		}
	}
	return origins
}

// Keys has the keys that have a record with content. A key comes once for each such scope.
func (rs *Records) Keys() iter.Seq[mirror.Key] {
	return func(yield func(mirror.Key) bool) {
		for _, rec := range rs.all() {
			if rec.resource != nil && !yield(rec.resource.Key()) {
				return
			}
		}
	}
}

// IsAddressed reports whether the endpoints of what is served under a key are addresses, and no part of its config.
func (rs *Records) IsAddressed(r *mirror.Resource) bool {
	f := rs.former[r.Key()]
	if f == nil { // it is served without a record, from the disk or by a rollback
		f = &record{}
	}
	return rs.rules.isAddressed(r, f.original, f.relayed)
}
