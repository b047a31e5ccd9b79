package upstreams

import (
	"errors"
	"time"

	"meshrelay/federation/services"
	"meshrelay/mirror"
)

// take makes r, which the source has and which has passed the relays of path, the content
// of a record: left out or reshaped. It reports whether what is held is another now. An
// error leaves the record as it is.
func (t *table) take(sp *spelling, rec *record, r *mirror.Resource, path []string) (differs bool, err error) {
	defer func() {
		if p := mirror.Recovered(recover()); p != nil {
			differs, err = false, t.costs(r.FullName(), p)
		}
	}()
	if t.fault != nil {
		t.fault(r)
	}
	had := rec.resource != nil
	reason, detail := t.importer.check(r, path, rec.relayed)
	if reason != imported {
		t.unfollow(rec, r.FullName())
		t.leaveOut(sp, rec, nil, reason, detail)
		return had, nil
	}
	held, reshaped, err := t.reshape(rec, r)
	switch {
	case had && (errors.Is(err, errWaiting) || errors.Is(err, errUnanswered)):
		rec.original = r // what was known before stays in force until then
		return false, nil
	case errors.Is(err, errWaiting), errors.Is(err, errUnanswered), errors.Is(err, errNoEndpoints), errors.Is(err, services.ErrUnreachable):
		t.leaveOut(sp, rec, r, reasonEndpoints, err.Error())
		return had, nil
	case err != nil:
		// What is held is of the last good content, and so are the endpoints to follow.
		if t.discovery != nil && rec.original != nil && t.importer.discovers(rec.original) {
			t.discovery.follow(rec, rec.original) //nolint:errcheck // it was followed before
		}
		return false, err
	}
	sp.countDropped(rec, imported)
	rec.resource, rec.original, rec.detail = held, nil, ""
	if reshaped {
		rec.original = r
	}
	return true, nil
}

func (t *table) leaveOut(sp *spelling, rec *record, r *mirror.Resource, reason Reason, detail string) {
	sp.countDropped(rec, reason)
	rec.resource, rec.original, rec.detail = nil, r, detail
}

// reshape returns what a record is to hold of r.
func (t *table) reshape(rec *record, r *mirror.Resource) (held *mirror.Resource, reshaped bool, err error) {
	var known services.Assignments
	discovers := t.discovery != nil && t.importer.discovers(r)
	if discovers {
		if known, err = t.discovery.follow(rec, r); err != nil {
			return nil, false, err
		}
	} else {
		t.unfollow(rec, r.FullName())
	}
	held, reshaped, err = t.importer.reshape(r, known)
	if err == nil && discovers && services.IsSynthetic(held) {
		err = errNoEndpoints
	}
	return held, reshaped, err
}

func (t *table) unfollow(rec *record, name string) {
	if t.discovery != nil {
		t.discovery.unfollow(rec, name)
	}
}

// reconsider folds in what has become known of some clusters.
func (t *table) reconsider(kind mirror.Kind, clusters []string) (changed int, err error) {
	var differ []string
	var errs []error
	names := t.discovery.services(clusters)
	for _, sp := range t.byKind[kind] {
		for name := range names {
			rec := sp.byName[name]
			if rec == nil || rec.original == nil {
				continue
			}
			before := rec.size()
			differs, err := t.take(sp, rec, rec.original, nil)
			t.account(before, rec.size())
			if err != nil {
				var out outcome
				sp.refuse(name, err, &out)
				errs = append(errs, out.err())
				continue
			}
			if rec.good() {
				delete(sp.refused, name)
			}
			if differs {
				rec.at = time.Now().Unix()
				differ = append(differ, name)
			}
		}
	}
	return t.fold(kind, differ), errors.Join(errs...)
}
