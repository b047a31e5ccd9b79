package records

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"slices"
	"time"

	"github.com/zeebo/xxh3"

	"meshrelay/federation"
	"meshrelay/federation/services"
	"meshrelay/internal/panics"
	"meshrelay/mirror"
	"meshrelay/state"
)

// Endpoints that services.mode: discover finds, here or in the relay before, and those of a registry (guard.profile)
// are addresses and no config (isAddressed). The endpoints of all other ServiceEntries are config.
// What is served follows them always: while the upstream is frozen, after a rollback, and while a deletion is held.

// keepFor is how long a ServiceEntry that a registry has left out is served without endpoints, in time of contact.
const keepFor = time.Hour

// keepers counts the ServiceEntries that a registry has left out, and has a time of contact before which none was.
type keepers struct {
	kept      int
	keptSince time.Duration
}

// isAddressed reports whether the endpoints of a ServiceEntry are addresses. original is its content in the source,
// nil if that is unknown or the same. relay: it comes from a relay, which has found the endpoints.
func (im *Rules) isAddressed(r, original *mirror.Resource, relay bool) bool {
	if r.Kind() != federation.ServiceEntry {
		return false
	}
	original = cmp.Or(original, r)
	return im.registry || (im.discovering() || relay) && im.isMade(original) || im.selects(original)
}

// isMade reports whether the endpoints of a ServiceEntry decide which of its ports are served. original is as in
// isAddressed.
func (rs *Records) isMade(r, original *mirror.Resource) bool {
	return !rs.rules.registry && rs.rules.isMade(cmp.Or(original, r))
}

// keep has a registry's ServiceEntry served without endpoints for a time, in place of its deletion. It reports
// whether the record stays.
func (rs *Records) keep(sc *scope, name string, rec *record) bool {
	if !rs.rules.registry || sc.Kind != federation.ServiceEntry || rec.resource == nil || rec.kept > 0 {
		return rec.kept > 0 && rs.leftOf(rec.kept) > 0
	}
	original := rec.original
	bare, err := panics.Value(func() (*mirror.Resource, error) { return services.Without(rec.resource) })
	if err == nil && original != nil {
		original, err = services.Without(original)
	}
	if err != nil {
		return false
	}
	rec.resource, rec.original, rec.kept = bare, original, rs.connected+1
	rec.setSiblings(nil, nil)
	rec.hash = xxh3.Uint128{} // it is decoded when it comes again
	sc.setMark(rec, 0)
	rs.count(rec, len(name))
	if rs.kept == 0 {
		rs.keptSince = rec.kept
	}
	rs.kept++
	sc.kept++
	return true
}

// endKeep notes that the source has a record again, or that the record is deleted.
func (rs *Records) endKeep(sc *scope, rec *record) {
	if rec.kept > 0 {
		rec.kept = 0
		sc.kept--
		rs.kept--
	}
}

// leftOf returns for how much longer a record is kept, from record.kept.
func (rs *Records) leftOf(kept time.Duration) time.Duration { return kept - 1 + keepFor - rs.connected }

// EndKeeping deletes the services that a registry has left out for long enough. It reports whether it was time to look.
func (rs *Records) EndKeeping() bool {
	if rs.kept == 0 || rs.leftOf(rs.keptSince) > 0 {
		return false
	}
	rs.keptSince = rs.connected + 1
	var gone []place
	for p, rec := range rs.allKept() {
		if rs.leftOf(rec.kept) <= 0 {
			gone = append(gone, p)
		} else {
			rs.keptSince = min(rs.keptSince, rec.kept)
		}
	}
	rs.deleteKept(gone)
	return true
}

func (rs *Records) allKept() iter.Seq2[place, *record] {
	return func(yield func(place, *record) bool) {
		for p, rec := range rs.all(federation.ServiceEntry) {
			if rec.kept > 0 && !yield(p, rec) {
				return
			}
		}
	}
}

func (rs *Records) deleteKept(gone []place) {
	for _, p := range gone {
		rs.delete(p.scope, p.name, p.byName[p.name])
		rs.touch(rs.kind(p.Kind), false, p.name)
	}
}

// makeRoom deletes kept records for a new resource that the source has: those of the same name, else the oldest eighth. It
// reports whether there were any.
func (rs *Records) makeRoom(name string) bool {
	if rs.kept == 0 {
		return false
	}
	var same, all []place
	for p := range rs.allKept() {
		if all = append(all, p); p.name == name {
			same = append(same, p)
		}
	}
	if len(same) == 0 {
		slices.SortFunc(all, func(a, b place) int {
			return cmp.Or(cmp.Compare(a.byName[a.name].kept, b.byName[b.name].kept), cmp.Compare(a.name, b.name))
		})
		same = all[:len(all)/8+1]
	}
	rs.deleteKept(same)
	return true
}

// withoutEndpoints tells why a record is served without endpoints, empty if it is not.
func (rs *Records) withoutEndpoints(rec *record) string {
	switch {
	case rec.kept > 0:
		left := max(rs.leftOf(rec.kept), 0).Round(time.Second)
		return fmt.Sprintf("the upstream does not have it any more: it is served without endpoints for another %v of contact", left)
	case services.Told(rec.resource):
		return "it is served without endpoints: the upstream has none for it"
	}
	return ""
}

// bare returns the content of a registry's service that has no healthy instance now. had is its content before.
func (rs *Records) bare(r, had *mirror.Resource) (*mirror.Resource, error) {
	if r.Kind() != federation.ServiceEntry || !rs.rules.registry || federation.HasEndpoints(r.BodyValue()) {
		return r, nil
	}
	return services.WithoutFrom(r, had)
}

// Join returns what is served under the key of a want, with the endpoints of now and the config of served; nil if nothing
// changes. A new sibling has the config of its service.
func (rs *Records) Join(w Want, served func(mirror.Key) *mirror.Resource) (out *mirror.Resource) {
	rec := w.record
	has := cmp.Or(served(w.Key), served(w.service))
	if has == nil || !rs.rules.isAddressed(rec.resource, rec.original, rec.relayed) {
		return nil
	}
	p := panics.Try(func() {
		r, err := services.Follow(has, rec.resource, rs.isMade(rec.resource, rec.original))
		if err == nil && w.Key != w.service {
			r, err = services.AsSibling(r, w.service)
		}
		if err == nil && !r.Equal(has) {
			out = r
		}
	})
	if p != nil {
		_ = rs.Panicked(w.Key.String(), p) // its endpoints stay
	}
	return out
}

// Bare returns what is served of a service that the source does not have any more: without endpoints, nil if nothing changes.
// Discovered endpoints go when the source says so.
func (rs *Records) Bare(served *mirror.Resource) *mirror.Resource {
	if served == nil || served.Kind() != federation.ServiceEntry || !rs.rules.registry {
		return nil
	}
	if out, err := services.Without(served); err == nil && out != served {
		return out
	}
	return nil
}

// PendingServices returns the keys of the services that a registry may have left out: a scope has still to answer.
func (rs *Records) PendingServices() (keys []mirror.Key) {
	if !rs.rules.registry {
		return nil
	}
	for name := range rs.kind(federation.ServiceEntry).pending {
		if original, ok := keyOf(federation.ServiceEntry, name); ok {
			keys = append(keys, rs.rules.keyOf(original))
		}
	}
	return keys
}

// Present returns records of an earlier revision with the endpoints that the source has now.
func (rs *Records) Present(records []state.Record) []state.Record {
	if !rs.rules.relayed && !rs.rules.discovering() && !rs.rules.registry {
		return records
	}
	now := map[mirror.Key]*mirror.Resource{}
	for key, rec := range rs.former {
		now[key] = rec.resource
		maps.Copy(now, rec.siblings)
	}
	for _, sc := range slices.Backward(rs.kind(federation.ServiceEntry).scopes) {
		for _, rec := range sc.byName {
			if rec.resource != nil && (rec.kept == 0 || now[rec.resource.Key()] == nil) {
				now[rec.resource.Key()] = rec.resource
				maps.Copy(now, rec.siblings)
			}
		}
	}
	out := slices.Clone(records)
	for i := range out {
		r := out[i].Resource
		original := cmp.Or(out[i].Original, r)
		if !rs.rules.isAddressed(r, original, rs.rules.believed(original)) {
			continue
		}
		var err error
		if has := now[r.Key()]; has != nil {
			r, err = services.Follow(r, has, rs.isMade(r, original))
		} else {
			r, err = services.Without(r)
		}
		if err == nil {
			out[i].Resource = r
		}
	}
	return slices.DeleteFunc(out, func(r state.Record) bool { // siblings without endpoints are none
		return r.Resource.HasAnnotation(mirror.SiblingAnnotation) && now[r.Resource.Key()] == nil
	})
}

// SameConfig reports whether the content of a key changes in its endpoints only, and still has some or none.
func (rs *Records) SameConfig(old, r *mirror.Resource, o Origin) bool {
	if old == nil || r.Kind() != federation.ServiceEntry || federation.HasEndpoints(old.BodyValue()) != federation.HasEndpoints(r.BodyValue()) {
		return false
	}
	if o.Endpoints || o.record == nil {
		return o.Endpoints
	}
	return rs.rules.isAddressed(r, o.record.original, o.record.relayed) && services.SameConfig(old, r)
}
