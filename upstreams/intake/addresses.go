package intake

import (
	"fmt"
	"slices"
	"time"

	"meshrelay/config"
	"meshrelay/federation"
	"meshrelay/federation/services"
	"meshrelay/mirror"
	"meshrelay/state"
)

// Endpoints that services.mode: discover finds, and those of a registry (guard.profile), are addresses and no config.
// What is served follows them always: while the upstream is frozen, after a rollback, and while a deletion is held.

// keep is a ServiceEntry that a registry has left out. It is served without endpoints until the clock of the contact
// reaches ends.
type keep struct {
	scope *scope
	name  string
	ends  time.Duration
}

// isRegistry reports whether the source leaves out services without a healthy instance.
func (in *Intake) isRegistry() bool { return in.guard.Profile == config.ProfileRegistry }

// isAddressed reports whether the endpoints of a ServiceEntry are addresses. original is its content in the source,
// nil if that is unknown or the same.
func (in *Intake) isAddressed(r, original *mirror.Resource) bool {
	if r.Kind() != federation.ServiceEntry {
		return false
	}
	if original == nil {
		original = r
	}
	return in.isRegistry() || in.rules.discovering() && services.IsMade(original)
}

// keepFor has a registry's ServiceEntry served without endpoints for a time, in place of its deletion. It reports
// whether the record stays.
func (in *Intake) keepFor(sc *scope, name string, rec *record) bool {
	if !in.isRegistry() || in.guard.KeepFor <= 0 || sc.Kind != federation.ServiceEntry || rec.resource == nil {
		return false
	}
	if k, kept := in.keeping[rec]; kept {
		return in.stale.contact(in.now) < k.ends
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
	rec.hash.Hi, rec.hash.Lo = 0, 0 // it is decoded when it comes again
	sc.setMark(rec, 0)
	in.account(before, rec.load(len(name)))
	in.keeping[rec] = keep{sc, name, in.stale.contact(in.now) + in.guard.KeepFor.D()}
	return true
}

// withoutEndpoints tells why a record is served without endpoints, empty if it is not.
func (in *Intake) withoutEndpoints(rec *record) string {
	switch {
	case rec.kept:
		left := max(in.keeping[rec].ends-in.stale.contact(in.now), 0).Round(time.Second)
		return fmt.Sprintf("the upstream does not have it any more: it is served without endpoints for another %v of contact (guard.keepFor)", left)
	case services.Told(rec.resource):
		return "it is served without endpoints: the upstream has none for it"
	}
	return ""
}

// endKeeping deletes the records whose time is over.
func (in *Intake) endKeeping(later func(time.Time)) {
	if len(in.keeping) == 0 || !in.stale.inContact {
		return
	}
	ran := in.stale.contact(in.now)
	var gone []string
	for rec, k := range in.keeping {
		if left := k.ends - ran; left > 0 {
			later(in.now.Add(left))
			continue
		}
		in.delete(k.scope, k.name, rec)
		gone = append(gone, k.name)
	}
	if len(gone) > 0 {
		in.begin()
		in.reconcile(in.kind(federation.ServiceEntry), gone)
	}
}

// bare returns the content of a registry's service that has no healthy instance now. had is its content before.
func (in *Intake) bare(r, had *mirror.Resource) (*mirror.Resource, error) {
	if r.Kind() != federation.ServiceEntry || !in.isRegistry() || federation.HasEndpoints(r.BodyValue()) {
		return r, nil
	}
	out, err := services.Without(r)
	if err == nil && out != r {
		out, err = services.WithPorts(out, had)
	}
	return out, err
}

// follow gives what a frozen upstream serves under a key the endpoints of a record.
func (in *Intake) follow(key mirror.Key, rec *record, sc *scope) {
	served := in.stale.plain(in.served, key)
	if served == nil || !in.isAddressed(rec.resource, rec.original) {
		return
	}
	out, err := services.Follow(served, rec.resource, !in.isRegistry())
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
	served := in.stale.plain(in.served, key)
	if served == nil {
		return
	}
	if out, err := services.Without(served); err == nil && out != served {
		in.put(key, out, origin{endpoints: true})
	}
}

// refollow gives a service whose record is deleted its endpoints, while it is served.
func (in *Intake) refollow(rec *record, sc *scope) {
	known, err := in.discovery.follow(sc, rec, rec.original)
	delete(in.discovery.waiting, rec) // the source need not answer
	if err != nil {
		return
	}
	held, err := in.discovered(rec, known)
	if err != nil {
		return
	}
	rec.resource = held
	key := held.Key()
	switch served := in.served.Get(key); {
	case served == nil:
	case in.frozen != nil:
		in.follow(key, rec, sc)
	default:
		in.put(key, held, origin{record: rec, scope: sc, endpoints: true})
	}
}

// discovered returns the content of a service with these endpoints.
func (in *Intake) discovered(rec *record, known services.Assignments) (*mirror.Resource, error) {
	held, _, err := in.rules.reshape(rec.original, known, rec.relayed)
	if err == nil && !federation.HasEndpoints(held.BodyValue()) {
		held, err = services.Without(held)
	}
	return held, err
}

// dropFormer forgets the last record of a key.
func (in *Intake) dropFormer(key mirror.Key) {
	if f := in.former[key]; f != nil {
		in.discovery.unfollow(f)
		delete(in.former, key)
	}
}

// present returns records of an earlier revision with the endpoints that the source has now.
func (in *Intake) present(records []state.Record) []state.Record {
	if !in.isRegistry() && !in.rules.discovering() {
		return records
	}
	now := map[mirror.Key]*mirror.Resource{}
	for key, rec := range in.former {
		now[key] = rec.resource
	}
	if k := in.kinds[federation.ServiceEntry]; k != nil {
		for _, sc := range slices.Backward(k.scopes) {
			for _, rec := range sc.byName {
				if rec.resource != nil {
					now[rec.resource.Key()] = rec.resource
				}
			}
		}
	}
	out := slices.Clone(records)
	for i := range out {
		r := out[i].Resource
		if !in.isAddressed(r, out[i].Original) {
			continue
		}
		var err error
		if has := now[r.Key()]; has != nil {
			r, err = services.Follow(r, has, !in.isRegistry())
		} else {
			r, err = services.Without(r)
		}
		if err == nil {
			out[i].Resource = r
		}
	}
	return out
}

// sameConfig reports whether the content of a key changes in its endpoints only, and still has some or none.
func (in *Intake) sameConfig(old, r *mirror.Resource, o origin) bool {
	if old == nil || r.Kind() != federation.ServiceEntry || federation.HasEndpoints(old.BodyValue()) != federation.HasEndpoints(r.BodyValue()) {
		return false
	}
	return o.endpoints || in.isRegistry() && services.SameConfig(old, r)
}
