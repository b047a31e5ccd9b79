package intake

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/zeebo/xxh3"

	"meshrelay/config"
	"meshrelay/federation"
	"meshrelay/federation/services"
	"meshrelay/mirror"
	"meshrelay/state"
)

// Endpoints that services.mode: discover finds, and those of a registry (guard.profile), are addresses and no config.
// What is served follows them always: while the upstream is frozen, after a rollback, and while a deletion is held.

// keepFor is how long a ServiceEntry that a registry has left out is served without endpoints, in time of contact.
const keepFor = time.Hour

// keep is a ServiceEntry that a registry has left out, at a time of Intake.connected.
type keep struct {
	scope *scope
	name  string
	since time.Duration
}

// isRegistry reports whether the source leaves out services without a healthy instance.
func (in *Intake) isRegistry() bool { return in.registry }

// isAddressed reports whether the endpoints of a ServiceEntry are addresses. original is its content in the source,
// nil if that is unknown or the same. relay: it comes from a relay, which has found the endpoints.
func (im *Rules) isAddressed(r, original *mirror.Resource, relay bool) bool {
	if r.Kind() != federation.ServiceEntry {
		return false
	}
	original = cmp.Or(original, r)
	return im.cfg.Guard.Profile == config.ProfileRegistry || (im.discovering() || relay) && im.isMade(original) || im.selects(original)
}

// isMade reports whether the endpoints of a ServiceEntry decide which of its ports are served. original is as in
// isAddressed.
func (in *Intake) isMade(r, original *mirror.Resource) bool {
	return !in.isRegistry() && in.rules.isMade(cmp.Or(original, r))
}

// keep has a registry's ServiceEntry served without endpoints for a time, in place of its deletion. It reports
// whether the record stays.
func (in *Intake) keep(sc *scope, name string, rec *record) bool {
	if !in.isRegistry() || sc.Kind != federation.ServiceEntry || rec.resource == nil || rec.kept {
		return rec.kept && in.leftOf(in.keeping[rec]) > 0
	}
	before := rec.load(len(name))
	bare, err := services.Without(rec.resource)
	original := rec.original
	if err == nil && original != nil {
		original, err = services.Without(original)
	}
	if err != nil {
		return false
	}
	rec.resource, rec.original, rec.kept = bare, original, true
	rec.setSiblings(nil, nil)
	rec.hash = xxh3.Uint128{} // it is decoded when it comes again
	sc.setMark(rec, 0)
	in.account(before, rec.load(len(name)))
	if len(in.keeping) == 0 {
		in.keptSince = in.connected
	}
	in.keeping[rec] = keep{sc, name, in.connected}
	sc.kept++
	return true
}

// endKeep notes that the source has a record again, or that the record is deleted.
func (in *Intake) endKeep(sc *scope, rec *record) {
	if rec.kept {
		rec.kept = false
		sc.kept--
		delete(in.keeping, rec)
	}
}

// leftOf returns for how much longer a record is kept.
func (in *Intake) leftOf(k keep) time.Duration { return k.since + keepFor - in.connected }

// endKeeping deletes the records whose time is over.
func (in *Intake) endKeeping() {
	if len(in.keeping) == 0 || !in.isConnected() {
		return
	}
	if in.leftOf(keep{since: in.keptSince}) > 0 {
		return
	}
	first := in.connected
	var gone []*record
	for rec, k := range in.keeping {
		if in.leftOf(k) <= 0 {
			gone = append(gone, rec)
			continue
		}
		first = min(first, k.since)
	}
	in.keptSince = first
	in.gate.BeginUpdate()
	in.deleteKept(gone)
}

func (in *Intake) deleteKept(gone []*record) {
	names := make([]string, 0, len(gone))
	for _, rec := range gone {
		k := in.keeping[rec]
		in.delete(k.scope, k.name, rec)
		names = append(names, k.name)
	}
	in.reconcile(in.kind(federation.ServiceEntry), names)
}

// makeRoom deletes kept records for a new resource that the source has: those of the same name, else the oldest eighth. It
// reports whether there were any.
func (in *Intake) makeRoom(name string) bool {
	if len(in.keeping) == 0 {
		return false
	}
	var same, all []*record
	for rec, k := range in.keeping {
		if all = append(all, rec); k.name == name {
			same = append(same, rec)
		}
	}
	if len(same) == 0 {
		slices.SortFunc(all, func(a, b *record) int {
			x, y := in.keeping[a], in.keeping[b]
			return cmp.Or(cmp.Compare(x.since, y.since), cmp.Compare(x.name, y.name))
		})
		same = all[:len(all)/8+1]
	}
	in.deleteKept(same)
	return true
}

// empty returns 1 for a service that is served without endpoints because it has none, otherwise 0. r may be nil.
func empty(r *mirror.Resource) int {
	if r != nil && services.Told(r) {
		return 1
	}
	return 0
}

// withoutEndpoints tells why a record is served without endpoints, empty if it is not.
func (in *Intake) withoutEndpoints(rec *record) string {
	switch {
	case rec.kept:
		left := max(in.leftOf(in.keeping[rec]), 0).Round(time.Second)
		return fmt.Sprintf("the upstream does not have it any more: it is served without endpoints for another %v of contact", left)
	case services.Told(rec.resource):
		return "it is served without endpoints: the upstream has none for it"
	}
	return ""
}

// bare returns the content of a registry's service that has no healthy instance now. had is its content before.
func (in *Intake) bare(r, had *mirror.Resource) (*mirror.Resource, error) {
	if r.Kind() != federation.ServiceEntry || !in.isRegistry() || federation.HasEndpoints(r.BodyValue()) {
		return r, nil
	}
	return services.WithoutFrom(r, had)
}

// follow gives what is served under a key the endpoints of a record, and keeps its config. A new sibling has that of its service.
func (in *Intake) follow(key, service mirror.Key, rec *record, sc *scope) {
	served := cmp.Or(in.served.Get(key), in.served.Get(service))
	if served == nil || !in.rules.isAddressed(rec.resource, rec.original, rec.relayed) {
		return
	}
	out, err := services.Follow(served, rec.resource, in.isMade(rec.resource, rec.original))
	if err == nil && key != service {
		out, err = services.AsSibling(out, service)
	}
	if err == nil && !out.Equal(served) {
		in.put(key, out, origin{record: rec, scope: sc, endpoints: true})
	}
}

// withdraw has a service that the source does not have any more served without endpoints. Discovered endpoints go when
// the source says so.
func (in *Intake) withdraw(key mirror.Key) {
	if key.Kind != federation.ServiceEntry || !in.isRegistry() {
		return
	}
	served := in.served.Get(key)
	if served == nil {
		return
	}
	if out, err := services.Without(served); err == nil && out != served {
		in.put(key, out, origin{endpoints: true})
	}
}

// withdrawPending has services of a registry served without endpoints that it has left out, if it does not answer
// another version of the kind in time.
func (in *Intake) withdrawPending() {
	until, waits := in.gate.Patience()
	if !in.isRegistry() || !waits || in.now.Before(until) {
		return
	}
	for name := range in.kind(federation.ServiceEntry).pending {
		if original, ok := keyOf(federation.ServiceEntry, name); ok {
			in.withdraw(in.rules.keyOf(original))
		}
	}
}

// refollow gives a service whose record is deleted its endpoints, while it is served.
func (in *Intake) refollow(rec *record, sc *scope) {
	defer func() {
		if p := mirror.Recovered(recover()); p != nil {
			_ = in.panicked(rec.original.FullName(), p) // its endpoints stay
		}
	}()
	known, err := in.discovery.follow(sc, rec, rec.original)
	delete(in.discovery.waiting, rec) // the source need not answer
	if err != nil {
		return
	}
	held, siblings, err := in.rules.reshape(rec.original, known, rec.relayed)
	if err == nil && !federation.HasEndpoints(held.BodyValue()) {
		held, err = services.Without(held)
	}
	if err == nil {
		rec.resource = held
		rec.setSiblings(siblings, nil)
		in.follow(held.Key(), held.Key(), rec, sc)
		in.serveSiblings(rec, sc)
	}
}

// detach has the endpoints of a service followed whose record has no content any more, while it is served.
func (in *Intake) detach(sc *scope, rec *record) {
	if _, is := in.discovery.services[rec]; is && rec.resource != nil && rec.original != nil {
		former := *rec
		in.dropFormer(former.resource.Key())
		in.former[former.resource.Key()] = &former
		_, _ = in.discovery.follow(sc, &former, former.original) // it was followed before
		delete(in.discovery.waiting, &former)
	}
	in.discovery.unfollow(rec)
	rec.siblings = nil
}

// keepFollowing has the new records go on following the services whose records were deleted.
func (in *Intake) keepFollowing(before *discovery) {
	for _, rec := range in.former {
		if s, is := before.services[rec]; is {
			_, sc := in.scope(s.scope.Scope)
			_, _ = in.discovery.follow(sc, rec, rec.original) // it was followed before
			delete(in.discovery.waiting, rec)
		}
	}
}

// dropFormer forgets the last record of a key.
func (in *Intake) dropFormer(key mirror.Key) {
	if f := in.former[key]; f != nil {
		in.discovery.unfollow(f)
		in.parents = in.parents || key.Kind == federation.ServiceEntry
		delete(in.former, key)
	}
}

// present returns records of an earlier revision with the endpoints that the source has now.
func (in *Intake) present(records []state.Record) []state.Record {
	if !in.rules.relayed && !in.rules.discovering() && !in.isRegistry() {
		return records
	}
	now := map[mirror.Key]*mirror.Resource{}
	for key, rec := range in.former {
		now[key] = rec.resource
		maps.Copy(now, rec.siblings)
	}
	if k := in.kinds[federation.ServiceEntry]; k != nil {
		for _, sc := range slices.Backward(k.scopes) {
			for _, rec := range sc.byName {
				if rec.resource != nil && (!rec.kept || now[rec.resource.Key()] == nil) {
					now[rec.resource.Key()] = rec.resource
					maps.Copy(now, rec.siblings)
				}
			}
		}
	}
	out := slices.Clone(records)
	for i := range out {
		r := out[i].Resource
		original := cmp.Or(out[i].Original, r)
		if !in.rules.isAddressed(r, original, in.rules.believed(original)) {
			continue
		}
		var err error
		if has := now[r.Key()]; has != nil {
			r, err = services.Follow(r, has, in.isMade(r, original))
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

// sameConfig reports whether the content of a key changes in its endpoints only, and still has some or none.
func (in *Intake) sameConfig(old, r *mirror.Resource, o origin) bool {
	if old == nil || r.Kind() != federation.ServiceEntry || federation.HasEndpoints(old.BodyValue()) != federation.HasEndpoints(r.BodyValue()) {
		return false
	}
	if o.endpoints || o.record == nil {
		return o.endpoints
	}
	return in.rules.isAddressed(r, o.record.original, o.record.relayed) && services.SameConfig(old, r)
}
