package records

import (
	"errors"
	"fmt"
	"strings"

	"meshrelay/federation"
	"meshrelay/federation/filter"
	"meshrelay/federation/services"
	"meshrelay/internal/panics"
	"meshrelay/mirror"
)

// importRecord sets the content of a record to r, which came by way: left out or reshaped. It
// reports whether the content changed. An error leaves the record as it is.
func (rs *Records) importRecord(sc *scope, rec *record, r *mirror.Resource, way mirror.Way) (differs bool, err error) {
	if r.Kind() == mirror.MeshConfig {
		rs.roots.own = RootOf(r)
		rs.addRoot(rs.roots.own)
	}
	had := rec.resource != nil
	defer func() { rs.parents = rs.parents || r.Kind() == federation.ServiceEntry && had != (rec.resource != nil) }()
	r, why, held, siblings, err := rs.judge(sc, rec, r, way)
	if why != imported {
		rs.leaveOut(sc, rec, why)
		reason := filter.Reason(why.Value().reason)
		if reason == filter.ReasonRoot || reason == filter.ReasonHosts && rec.child {
			rec.original = r // it may pass with another root namespace, or with its parents
		}
		return had, nil
	}
	waits := errors.Is(err, errWaiting) || errors.Is(err, errUnanswered)
	switch {
	case waits && (had || rs.revive(rec, sc.Kind, r.FullName())):
		rec.original = r // the former content is served until then
		return !had, nil
	case waits, errors.Is(err, services.ErrUnreachable):
		if !waits {
			rs.detach(sc, rec)
		}
		sc.setLeftOut(rec, leftOutBy(reasonEndpoints, err.Error()))
		rec.resource, rec.original = nil, r
		return had, nil
	case err != nil:
		// The record keeps the last good content: follow the endpoints of that.
		if rec.original != nil && rs.rules.discovers(rec.original, rec.relayed) {
			rs.discovery.follow(sc, rec, rec.original) //nolint:errcheck // it was followed before
		}
		return false, err
	}
	sc.setLeftOut(rec, imported)
	rec.resource, rec.original = held, nil
	rec.setSiblings(siblings, rs.former[held.Key()])
	if held != r {
		rec.original = r
	}
	return true, nil
}

// leaveOut notes that a record is left out. It reports whether it had content.
func (rs *Records) leaveOut(sc *scope, rec *record, why leftOut) (had bool) {
	had = rec.resource != nil
	rs.detach(sc, rec)
	sc.setLeftOut(rec, why)
	rec.resource, rec.original = nil, nil
	return had
}

// judge returns what is believed of a resource, and why it is left out, or the content of its record and its siblings. A panic
// is an error of the resource.
func (rs *Records) judge(sc *scope, rec *record, r *mirror.Resource, way mirror.Way) (believed *mirror.Resource, why leftOut, held *mirror.Resource, siblings []*mirror.Resource, err error) {
	believed = r
	p := panics.Try(func() {
		if rs.Fault != nil {
			rs.Fault(r)
		}
		if !rec.relayed && r.Kind() == federation.ServiceEntry {
			if believed, err = services.Believed(r); err != nil {
				return
			}
		}
		if why = rs.check(rec, believed, way); why == imported {
			held, siblings, err = rs.reshape(sc, rec, believed)
		}
	})
	if p != nil {
		return r, imported, nil, nil, rs.Panicked(r.FullName(), p)
	}
	return believed, why, held, siblings, err
}

// reshape returns the content of a record for r, and its siblings.
func (rs *Records) reshape(sc *scope, rec *record, r *mirror.Resource) (held *mirror.Resource, siblings []*mirror.Resource, err error) {
	var known services.Assignments
	discovers := rs.rules.discovers(r, rec.relayed)
	if !discovers {
		rs.discovery.unfollow(rec)
	} else if known, err = rs.discovery.follow(sc, rec, r); err != nil {
		return nil, nil, err
	}
	held, siblings, err = rs.rules.reshape(r, known, rec.relayed)
	switch {
	case err != nil:
	case discovers && !federation.HasEndpoints(held.BodyValue()):
		held, err = services.Without(held)
	case !discovers:
		held, err = rs.bare(held, rec.resource)
	}
	return held, siblings, err
}

// overLimit is the beginning of the reason if a limit refuses a resource.
const overLimit = "over the limit: "

func isOverLimit(reason string) bool { return strings.HasPrefix(reason, overLimit) }

var (
	// errFull is the error of a new resource without room.
	errFull = errors.New("the upstream has more than")
	// errHeldFull is the error of a new resource for which the held deletions leave no room.
	errHeldFull = fmt.Errorf("%w twice limits.maxResources or limits.maxBytes, with the deletions that its guard holds", errFull)
)

// room returns an error if an element exceeds the limits. The held content of the name stays. rec is nil for
// a new name.
func (rs *Records) room(sc *scope, rec *record, name []byte, el *Element) error {
	l, size := rs.limits, el.size()
	if len(name) > maxKeptName {
		return fmt.Errorf("the name has %d characters: want %d at most", len(name), maxKeptName)
	}
	if rs.tooLarge(size) {
		return fmt.Errorf(overLimit+"%d bytes, and a resource may have %d", size, l.MaxResourceBytes)
	}
	held, content, needed := 0, false, recordBytes+len(name)+len(el.Version)+size
	if rec != nil {
		held, content = int(rec.counted), rec.content
	}
	if !content && l.MaxResources > 0 && rs.resources >= l.MaxResources {
		return fmt.Errorf(overLimit+"%w limits.maxResources, which is %d", errFull, l.MaxResources)
	}
	if l.MaxBytes > 0 && needed > held && rs.Size()+needed-held > l.MaxBytes {
		return fmt.Errorf(overLimit+"%w limits.maxBytes, which is %d", errFull, l.MaxBytes)
	}
	if !content && !rs.held.Frozen {
		return rs.roomBesideHeld(sc.Kind, string(name), size)
	}
	return nil
}

// tooLarge reports whether an element of this size exceeds the limit of one resource.
func (rs *Records) tooLarge(size int) bool {
	return rs.limits.MaxResourceBytes > 0 && size > rs.limits.MaxResourceBytes
}

// roomBesideHeld returns an error when the records and what is served without a record together are more than
// twice the limits: names that come and go must not fill the memory.
func (rs *Records) roomBesideHeld(kind mirror.Kind, name string, size int) error {
	original, ok := keyOf(kind, name)
	if !ok {
		return nil
	}
	if rs.former[rs.rules.keyOf(original)] != nil {
		return nil // it returns
	}
	l, waiting, bytes := rs.limits, rs.held.N+len(rs.former), rs.held.Bytes+rs.formerBytes
	if waiting > 0 && (l.MaxResources > 0 && rs.resources+waiting >= 2*l.MaxResources || l.MaxBytes > 0 && rs.bytes+size+bytes > 2*l.MaxBytes) {
		return fmt.Errorf(overLimit+"%w: see \"relay upstreams --held %s\"", errHeldFull, rs.name)
	}
	return nil
}
