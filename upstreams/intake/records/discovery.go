package records

import (
	"errors"
	"maps"
	"slices"

	"meshrelay/federation"
	"meshrelay/federation/services"
	"meshrelay/internal/panics"
	"meshrelay/mirror"
)

// Assignment is what the upstream has told of a cluster. Known is false if that was nothing, not even that there are no
// endpoints, and the intake need not wait for it.
type Assignment struct {
	Endpoints services.Packed
	Known     bool
}

// discovery has the imported services, and the Envoy clusters with their endpoints.
type discovery struct {
	services map[*record]service
	waiting  map[*record]struct{}            // services whose endpoints are not known yet
	users    map[string]map[*record]struct{} // services by cluster
	asked    map[string]struct{}             // clusters that the source must ask for
	answers  map[string]Assignment           // of those that are asked for; others are awaited
	differs  bool                            // asked has changed
}

// service is a record whose endpoints are followed.
type service struct {
	scope    *scope
	clusters []services.Cluster
}

var (
	errWaiting    = errors.New("its endpoints were asked for, and the upstream has not answered yet")
	errUnanswered = errors.New("its endpoints were asked for, and the upstream does not answer")
)

// follow notes that a record is the service r, and returns its endpoints.
func (d *discovery) follow(sc *scope, rec *record, r *mirror.Resource) (services.Assignments, error) {
	clusters, err := services.Clusters(r)
	if err != nil {
		d.unfollow(rec)
		return nil, err
	}
	if !slices.Equal(clusters, d.services[rec].clusters) {
		d.unfollow(rec)
		for _, c := range clusters {
			if d.users[c.Name] == nil {
				d.users[c.Name] = map[*record]struct{}{}
			}
			d.users[c.Name][rec] = struct{}{}
			_, asked := d.asked[c.Name]
			d.differs = d.differs || !asked
		}
	}
	d.services[rec] = service{sc, clusters}
	delete(d.waiting, rec)
	out := services.Assignments{}
	waiting, answered := false, 0
	for _, c := range clusters {
		if a, settled := d.answers[c.Name]; !settled {
			waiting = true
		} else if a.Known {
			out[c.Port] = a.Endpoints.Unpack()
			answered++
		}
	}
	if waiting {
		d.waiting[rec] = struct{}{}
		return nil, errWaiting
	}
	if answered == 0 && len(clusters) > 0 {
		return nil, errUnanswered
	}
	return out, nil
}

// unfollow notes that a record is not a service any more.
func (d *discovery) unfollow(rec *record) {
	for _, c := range d.services[rec].clusters {
		delete(d.users[c.Name], rec)
		if len(d.users[c.Name]) == 0 {
			delete(d.users, c.Name)
			d.differs = true
		}
	}
	delete(d.services, rec)
	delete(d.waiting, rec)
}

// ask returns the clusters to ask for, nil if they are the same as before.
func (d *discovery) ask() map[string]struct{} {
	if !d.differs {
		return nil
	}
	d.differs = false
	d.asked = make(map[string]struct{}, len(d.users))
	for c := range d.users {
		d.asked[c] = struct{}{}
	}
	maps.DeleteFunc(d.answers, func(c string, _ Assignment) bool { return d.users[c] == nil })
	return d.asked
}

// Endpoints imports the services with any of these clusters again. It passes over clusters that nobody has asked for: when one
// is asked for, the source tells of it again.
func (rs *Records) Endpoints(answers map[string]Assignment, out *Result) {
	all := map[*record]struct{}{}
	for c, a := range answers {
		if _, asked := rs.discovery.asked[c]; asked {
			rs.discovery.answers[c] = a
		}
		maps.Copy(all, rs.discovery.users[c])
	}
	for rec := range all {
		sc := rs.discovery.services[rec].scope
		if sc == nil || rec.original == nil { // another took its key meanwhile
			continue
		}
		name := rec.original.FullName()
		if sc.byName[name] != rec {
			rs.refollow(rec, sc)
			continue
		}
		_, waited := rs.discovery.waiting[rec]
		differs, err := rs.importRecord(sc, rec, rec.original, mirror.Way{})
		rs.count(rec, len(name))
		if err != nil {
			rs.refuse(sc, name, err, out)
			continue
		}
		if rec.accepted() {
			rs.forgive(sc, name)
		}
		if differs {
			rec.at = seconds(rs.now)
			rs.touch(rs.kind(sc.Kind), !waited, name) // a config may have waited for its endpoints
		}
	}
	for _, sc := range rs.kind(federation.ServiceEntry).scopes {
		rs.reportRefused(sc)
	}
}

// refollow gives a service whose record is deleted its endpoints, while it is served.
func (rs *Records) refollow(rec *record, sc *scope) {
	var held *mirror.Resource
	var siblings []*mirror.Resource
	var err error
	p := panics.Try(func() { held, siblings, err = rs.reshape(sc, rec, rec.original) })
	delete(rs.discovery.waiting, rec) // the source need not answer
	switch {
	case p != nil:
		_ = rs.Panicked(rec.original.FullName(), p) // its endpoints stay
	case err == nil:
		before := rec.size()
		rec.resource = held
		rec.setSiblings(siblings, nil)
		rs.formerBytes += rec.size() - before
		key := held.Key()
		rs.want(Want{Addresses, key, nil, Origin{record: rec, scope: sc, Endpoints: true}, key})
	}
}

// detach has the endpoints of a service followed whose record has no content any more, while it is served.
func (rs *Records) detach(sc *scope, rec *record) {
	if _, is := rs.discovery.services[rec]; is && rec.resource != nil && rec.original != nil {
		former := *rec
		rs.setFormer(&former)
		rs.followFormer(sc, &former)
	}
	rs.discovery.unfollow(rec)
	rec.siblings = nil
}

// followFormer follows the endpoints of a former record, which were followed before. The source need not answer.
func (rs *Records) followFormer(sc *scope, rec *record) {
	_, _ = rs.discovery.follow(sc, rec, rec.original)
	delete(rs.discovery.waiting, rec)
}

// setFormer notes the last record of a key: what is served of it stays until LetGo.
func (rs *Records) setFormer(rec *record) {
	key := rec.resource.Key()
	rs.LetGo(key)
	rs.former[key] = rec
	rs.formerBytes += rec.size()
}

// LetGo notes that a key is served no more, or has a record again: its last record is forgotten. It returns the siblings
// of that.
func (rs *Records) LetGo(key mirror.Key) (siblings map[mirror.Key]*mirror.Resource) {
	f := rs.former[key]
	if f == nil {
		return nil
	}
	rs.discovery.unfollow(f)
	rs.parents = rs.parents || key.Kind == federation.ServiceEntry
	rs.formerBytes -= f.size()
	delete(rs.former, key)
	return f.siblings
}

// The siblings of a service are served beside its own key: a ServiceEntry for each other set of ports that endpoints serve.
// They come and go with the endpoints, whatever holds the config, and go with the service.

// setSiblings sets the siblings of a service. Former ones, also of its former record, are nil until a Want has told it.
func (r *record) setSiblings(all []*mirror.Resource, former *record) {
	if former == nil {
		former = r
	}
	if len(all)+len(r.siblings)+len(former.siblings) == 0 {
		return
	}
	next := map[mirror.Key]*mirror.Resource{}
	for _, was := range []*record{r, former} {
		for key := range was.siblings {
			next[key] = nil
		}
	}
	for _, s := range all {
		next[s.Key()] = s
	}
	r.siblings = next
}

// sibling returns a sibling as a record.
func (r *record) sibling(s *mirror.Resource) *record {
	return &record{resource: s, original: r.original, at: r.at, relayed: r.relayed}
}
