package upstreams

import (
	"errors"
	"maps"
	"slices"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	"google.golang.org/grpc"

	"meshrelay/adsclient"
	"meshrelay/config"
	"meshrelay/federation/services"
	"meshrelay/mirror"
)

// discovery is which clusters of Envoy have the endpoints of the services that a table
// imports, and which services those are. It belongs to the table.
type discovery struct {
	// known returns what is known of a cluster, nil when nothing is; settled reports whether
	// more is waited for.
	known   func(cluster string) *endpointv3.ClusterLoadAssignment
	settled func(cluster string) bool

	clusters map[*record][]services.Cluster
	waiting  map[*record]struct{}      // whose endpoints are not known yet
	names    map[string]map[string]int // names of the source, by cluster; and how often
	asked    map[string]struct{}       // the clusters that are asked for
	differs  bool                      // asked is not what should be asked for
}

func newDiscovery(e *endpoints) *discovery {
	return &discovery{
		known: e.get, settled: e.settled,
		clusters: map[*record][]services.Cluster{}, waiting: map[*record]struct{}{}, names: map[string]map[string]int{}, asked: map[string]struct{}{},
	}
}

// errWaiting says that the endpoints of a service are not known yet.
var errWaiting = errors.New("its endpoints have been asked for, and not been answered yet")

// errUnanswered says that the server was asked for the endpoints of a service, and has never
// said any.
var errUnanswered = errors.New("its endpoints have been asked for, and the upstream does not say them")

// errNoEndpoints says that a service has no endpoints: a ServiceEntry can not say so.
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
		if !asked || !d.settled(c.Name) {
			waiting = true
		} else if cla := d.known(c.Name); cla != nil {
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

// ask returns the clusters to ask for, when those are others than before.
func (d *discovery) ask() (clusters map[string]struct{}, differs bool) {
	if !d.differs {
		return nil, false
	}
	d.differs = false
	d.asked = make(map[string]struct{}, len(d.names))
	for c := range d.names {
		d.asked[c] = struct{}{}
	}
	return d.asked, true
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

// discover has the endpoints of the source's services followed.
func (x *XDS) discover(cfg config.Upstream, node config.Node, opts []grpc.DialOption) (err error) {
	x.endpoints, err = newEndpoints(endpointsConfig{
		Addresses: cfg.XDS.Addresses, DialOptions: opts,
		Node: func() *corev3.Node {
			return adsclient.EndpointsNode(adsclient.NodeConfig{
				Name: node.ID, Namespace: node.Namespace, IP: node.IP, ClusterID: node.ClusterID,
				Revision: node.Revision, Network: cfg.Services.Network,
			})
		},
		ResyncInterval: cfg.XDS.ResyncInterval.D(), FailbackAfter: cfg.XDS.FailbackAfter.D(), Logger: x.log,
		MaxResponseBytes: cfg.Limits.MaxResponseBytes, Gzip: slices.Contains(cfg.XDS.Compression, config.CompressionGzip),
	}, x.endpointsChanged)
	if err == nil {
		x.table.discovery = newDiscovery(x.endpoints)
	}
	return err
}

// endpointsChanged folds in what has become known of clusters.
func (x *XDS) endpointsChanged(clusters []string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.gate.begin()
	changed, err := x.table.reconsider(serviceEntryKind, clusters)
	if err != nil {
		x.log.Warn("services can not be given their endpoints; what they had stays in force", "err", err)
	}
	x.log.Debug("endpoints changed", "clusters", len(clusters), "services", changed)
	x.ask()
	x.gate.end(x.table.unsettled())
	x.settleSync()
	x.touch()
}

// ask tells which clusters are wanted, if those are others than before. The caller holds
// mu, and is between begin and end of the gate.
func (x *XDS) ask() {
	if x.endpoints == nil {
		return
	}
	if clusters, differs := x.table.discovery.ask(); differs {
		if err := x.endpoints.want(clusters); err != nil {
			// What is left out is as if it had none, which is known now.
			x.log.Warn("not the endpoints of all services can be asked for", "err", err)
			if _, err := x.table.reconsider(serviceEntryKind, slices.Collect(maps.Keys(clusters))); err != nil {
				x.log.Warn("services can not be given their endpoints; what they had stays in force", "err", err)
			}
		}
	}
}
