package intake

import (
	"errors"
	"slices"

	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"

	"meshrelay/federation/services"
	"meshrelay/mirror"
)

// Assignments is what is known of the endpoints of clusters.
type Assignments interface {
	// Known returns the endpoints of a cluster, nil when none were ever told.
	Known(cluster string) *endpointv3.ClusterLoadAssignment
	// Settled reports whether nothing more is waited for.
	Settled(cluster string) bool
}

// Endpoints is the event that other endpoints of some clusters are known. The services that
// have one of the clusters are imported anew.
type Endpoints struct {
	// From has the endpoints, from now on.
	From Assignments
	// Clusters are those that have changed.
	Clusters []string
}

// discovery is which clusters of Envoy have the endpoints of the services that are imported, and
// which services those are.
type discovery struct {
	from     Assignments // nil while nothing is known
	clusters map[*record][]services.Cluster
	waiting  map[*record]struct{}      // whose endpoints are not known yet
	names    map[string]map[string]int // names of the source, by cluster; and how often
	asked    map[string]struct{}       // the clusters that are asked for
	differs  bool                      // asked is not what should be asked for
}

func newDiscovery() *discovery {
	return &discovery{
		clusters: map[*record][]services.Cluster{}, waiting: map[*record]struct{}{},
		names: map[string]map[string]int{}, asked: map[string]struct{}{},
	}
}

// errWaiting tells that the endpoints of a service are not known yet.
var errWaiting = errors.New("its endpoints have been asked for, and not been answered yet")

// errUnanswered tells that the server was asked for the endpoints of a service, and has never
// told any.
var errUnanswered = errors.New("its endpoints have been asked for, and the upstream does not tell them")

// errNoEndpoints tells that a service has no endpoints: a ServiceEntry can not express that.
var errNoEndpoints = errors.New("the service has no endpoints that are healthy and reachable")

// follow notes that a record is the service r, and returns its endpoints.
func (d *discovery) follow(rec *record, r *mirror.Resource) (services.Assignments, error) {
	clusters, err := services.Clusters(r)
	if err != nil {
		d.unfollow(rec, r.FullName())
		return nil, err
	}
	if !slices.Equal(clusters, d.clusters[rec]) {
		d.unfollow(rec, r.FullName())
		d.add(rec, r.FullName(), clusters)
	}
	delete(d.waiting, rec)
	out := services.Assignments{}
	waiting, answered := false, 0
	for _, c := range clusters {
		_, asked := d.asked[c.Name]
		if !asked || d.from == nil || !d.from.Settled(c.Name) {
			waiting = true
		} else if cla := d.from.Known(c.Name); cla != nil {
			out[c.Port] = cla
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

// waitsFor reports whether the endpoints of a record are waited for.
func (d *discovery) waitsFor(rec *record) bool {
	_, ok := d.waiting[rec]
	return ok
}

func (d *discovery) add(rec *record, name string, clusters []services.Cluster) {
	d.clusters[rec] = clusters
	for _, c := range clusters {
		byName := d.names[c.Name]
		if byName == nil {
			byName = map[string]int{}
			d.names[c.Name] = byName
		}
		byName[name]++
		_, asked := d.asked[c.Name]
		d.differs = d.differs || !asked
	}
}

// unfollow notes that a record is no service any more.
func (d *discovery) unfollow(rec *record, name string) {
	for _, c := range d.clusters[rec] {
		byName := d.names[c.Name]
		if byName[name]--; byName[name] == 0 {
			delete(byName, name)
		}
		if len(byName) == 0 {
			delete(d.names, c.Name)
			d.differs = true
		}
	}
	delete(d.clusters, rec)
	delete(d.waiting, rec)
}

// ask returns the clusters to ask for, nil when those are the same as before.
func (d *discovery) ask() map[string]struct{} {
	if !d.differs {
		return nil
	}
	d.differs = false
	d.asked = make(map[string]struct{}, len(d.names))
	for c := range d.names {
		d.asked[c] = struct{}{}
	}
	return d.asked
}

// services returns the names of the services that have any of the clusters.
func (d *discovery) services(clusters []string) map[string]struct{} {
	out := map[string]struct{}{}
	for _, c := range clusters {
		for name := range d.names[c] {
			out[name] = struct{}{}
		}
	}
	return out
}

// reimportServices imports again the services that have any of the clusters.
func (in *Intake) reimportServices(clusters []string, out *Result) {
	k := in.kind(serviceEntryKind)
	names := in.discovery.services(clusters)
	var differ []string
	for _, sc := range k.scopes {
		for name := range names {
			rec := sc.byName[name]
			if rec == nil || rec.original == nil {
				continue
			}
			before := rec.size()
			differs, err := in.importRecord(sc, rec, rec.original, nil)
			in.account(before, rec.size())
			if err != nil {
				sc.refuse(name, err, out)
				continue
			}
			if rec.accepted() {
				delete(sc.refused, name)
			}
			if differs {
				rec.at = in.now.Unix()
				differ = append(differ, name)
			}
		}
	}
	out.Changed += in.reconcile(k, differ)
}

var serviceEntryKind = mirror.Kind{Group: "networking.istio.io", Kind: "ServiceEntry"}
