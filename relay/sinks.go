package relay

import (
	"fmt"
	"slices"

	"meshrelay/config"
	"meshrelay/mirror"
	"meshrelay/sink"
	"meshrelay/sink/lease"
	"meshrelay/upstreams"
	"meshrelay/upstreams/kubernetes/apiserver"
)

// newSinks makes the sinks of the config.
func (r *Relay) newSinks() (*sink.Set, error) {
	cfg := r.config.Load()
	specs, err := sinksOf(cfg)
	if err != nil {
		return nil, err
	}
	s := sink.New(sink.Deps{
		Resources: r.aggregate, Released: r.server.Released(), Blocked: r.sinkBlocked, Clusters: r.clusterUIDs, Record: r.events.Record,
		Relay: cfg.Provenance.Relay, Identity: cfg.Node.ID, Dir: cfg.State.Dir, Build: r.options.Build, Logger: r.log,
		Lease: func(o lease.Options) sink.Writer { return lease.New(o) },
	})
	s.Apply(specs)
	r.aggregate.RegisterHandler(func(c mirror.Change) { s.Changed(c.Key) })
	return s, nil
}

// sinksOf returns the sinks of a config with their views.
func sinksOf(cfg *config.Config) (specs []sink.Spec, err error) {
	views, err := viewsOf(cfg.Views)
	if err != nil {
		return nil, err
	}
	for _, s := range cfg.Sinks {
		i := slices.IndexFunc(cfg.Views, func(v config.View) bool { return v.Name == s.View })
		if i < 0 {
			return nil, fmt.Errorf("sink %s: there is no view %q", s.Name, s.View)
		}
		v := views[i]
		specs = append(specs, sink.Spec{Sink: s, Show: cfg.Views[i], Same: sameCluster(cfg, s.Cluster), Accepts: func(r *mirror.Resource) bool {
			own := v.ClusterID != "" && r.Cluster() == v.ClusterID
			return !own && (v.Accepts == nil || v.Accepts(r))
		}})
	}
	return specs, nil
}

// sinkBlocked returns a function for the present state of the upstreams: why one may still have a resource that is not
// served.
func (r *Relay) sinkBlocked() func(upstream string, key mirror.Key) string {
	all, refuses := r.manager.Status(), map[string]func(mirror.Key) bool{}
	for _, u := range all {
		if u.RefusedTotal > 0 {
			refuses[u.Name] = r.manager.Refuses(u.Name)
		}
	}
	return func(upstream string, key mirror.Key) string {
		if refused := refuses[upstream]; refused != nil && refused(key) {
			return fmt.Sprintf("the upstream %s has it, and its content is refused: relay upstreams %[1]s", upstream)
		}
		return r.mayHave(all, upstream, key.Kind)
	}
}

func (r *Relay) mayHave(all []upstreams.Status, upstream string, kind mirror.Kind) string {
	i := slices.IndexFunc(all, func(u upstreams.Status) bool { return u.Name == upstream })
	if i < 0 {
		if len(r.config.Load().Clusters) > 0 && !r.finder.Answered() {
			return fmt.Sprintf("the upstream %s may be a cluster that was not found again yet", upstream)
		}
		for _, u := range all { // it is not in the config any more: another one may have its resources
			if !u.Complete {
				return fmt.Sprintf("the upstream %s is gone, and %s, which may have its resources, has not told everything since the start", upstream, u.Name)
			}
		}
		return ""
	}
	u := all[i]
	switch {
	case !u.Complete:
		return fmt.Sprintf("the upstream %s has not told everything since the start", upstream)
	case u.Frozen != nil:
		return fmt.Sprintf("the upstream %s is frozen, and may have it now", upstream)
	case u.Type == "file" && u.RefusedTotal > 0:
		return fmt.Sprintf("the upstream %s has a file that is refused, and may have it there", upstream)
	case u.Stale || u.Expired[kind.String()] > 0:
		return fmt.Sprintf("the upstream %s is stale", upstream)
	}
	for _, k := range u.Following {
		if k.Kind == kind.String() && !k.Followed() && k.State != "unserved" {
			return fmt.Sprintf("the upstream %s does not follow %s: %s", upstream, kind, k.State)
		}
	}
	return ""
}

// clusterUIDs returns the UID of the cluster of each upstream that is an API server.
func (r *Relay) clusterUIDs() map[string]string {
	out := map[string]string{}
	for _, u := range r.manager.Status() {
		if uid := clusterUID(u); uid != "" {
			out[u.Name] = uid
		}
	}
	return out
}

// sameCluster returns the upstreams whose connection is visibly that of a cluster.
func sameCluster(cfg *config.Config, c config.Cluster) (names []string) {
	server := serverOf(c)
	for _, u := range cfg.Upstreams {
		o, is := u.Source.(interface{ Connection() config.Cluster })
		if !is {
			continue
		}
		of := o.Connection()
		visibly := c.InCluster && of.InCluster || c.Kubeconfig != "" && c.Kubeconfig == of.Kubeconfig && c.Context == of.Context
		if visibly || server != "" && server == serverOf(of) {
			names = append(names, u.Name)
		}
	}
	return names
}

// serverOf returns the URL of an API server, empty if it is not known. It runs no program.
func serverOf(c config.Cluster) string {
	server, _ := (&apiserver.Credentials{Cluster: c}).Server() // the sink reports an error
	return server
}

// SinkWarnings returns one line for each sink that probably is a mistake.
func SinkWarnings(cfg *config.Config) (lines []string) {
	for _, s := range cfg.Sinks {
		for _, u := range sameCluster(cfg, s.Cluster) {
			lines = append(lines, fmt.Sprintf("sink %s writes into the cluster that the upstream %s reads: it will not write, unless their clusters have different UIDs", s.Name, u))
		}
	}
	return lines
}
