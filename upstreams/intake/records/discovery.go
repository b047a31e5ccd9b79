package records

import (
	"errors"
	"maps"
	"slices"

	"meshrelay/federation/services"
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
	services := map[*record]*scope{}
	for c, a := range answers {
		if _, asked := rs.discovery.asked[c]; asked {
			rs.discovery.answers[c] = a
		}
		for rec := range rs.discovery.users[c] {
			services[rec] = rs.discovery.services[rec].scope
		}
	}
	for rec, sc := range services {
		if rec.original == nil {
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
	for _, sc := range services {
		rs.reportRefused(sc)
	}
}
