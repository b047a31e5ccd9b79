package clusters

import (
	"fmt"
	"log/slog"
	"reflect"
	"slices"

	"meshrelay/config"
	"meshrelay/upstreams/kubernetes/clusters/registry"
)

// Clusters that are gone are held when they are more than this share of all, and more than this many.
const gonePercent, goneCount = 30, 1

// maxClusters limits the clusters that a part follows at the same time: each has a watch for every kind.
const maxClusters = 1000

// policyOf returns the policy of a part. others are the clusters that other parts follow.
func policyOf(cfg *config.Config, i int, others map[string]registry.Other) registry.Policy {
	c := cfg.Clusters[i]
	p := registry.Policy{
		RemoveAfter: c.RemoveAfter.D(), Percent: gonePercent, Count: goneCount, Max: maxClusters, Ignore: c.Ignore,
		Names: map[string]string{}, IDs: map[string]string{}, Others: others,
	}
	for j, u := range cfg.Upstreams {
		p.Names[u.Name] = fmt.Sprintf("that of upstreams[%d]", j)
		switch {
		case u.OfAPIServer():
			p.IDs[u.ClusterID] = "upstream " + u.Name + " is the API server of that cluster"
		case p.IDs[u.ClusterID] == "":
			p.IDs[u.ClusterID] = "upstream " + u.Name + " has the clusterID of that cluster"
		}
	}
	return p
}

// set has the parts of a config, in their order. The lock of the Finder guards it.
type set struct {
	cfg   *config.Config
	parts []*part
	// take passes an event to the registry of a part.
	take func(*part, registry.Event) registry.Output
	// before has the IDs of the clusters that were followed with the last config.
	before map[string]bool
}

// next returns the parts for a config, each with a copy of its registry. The first part that has found a
// cluster takes it over, in the same step, if its former part no longer follows it. The caller holds mu.
func (f *Finder) next(cfg *config.Config, take func(*part, registry.Event) registry.Output) set {
	s := set{cfg: cfg, take: take, before: f.followed()}
	formers := f.formers(cfg)
	for i, c := range cfg.Clusters {
		p := &part{cfg: c, registry: registry.New(policyOf(cfg, i, s.others(nil)))}
		if of := formers[i].part; of != nil {
			p.registry, p.readAt, p.due = of.registry.Copy(), of.readAt, of.due
			if reflect.DeepEqual(of.cfg.Secrets, c.Secrets) && reflect.DeepEqual(trustOf(of.cfg), trustOf(c)) {
				p.entries = of.entries // it would read the same
			}
		} else {
			take(p, registry.Restored{Clusters: formers[i].Clusters})
		}
		s.parts = append(s.parts, p)
	}
	s.policies()
	return s
}

// followed returns the IDs of the clusters that parts follow.
func (s *set) followed() map[string]bool {
	all := map[string]bool{}
	for _, p := range s.parts {
		for _, c := range p.registry.Clusters() {
			all[c.ID] = true
		}
	}
	return all
}

// others returns the clusters that all parts except one follow. If several have one name, it returns the first.
func (s *set) others(but *part) map[string]registry.Other {
	all := map[string]registry.Other{}
	for _, p := range s.parts {
		for _, c := range p.registry.Clusters() {
			if _, is := all[c.Name]; !is && p != but {
				all[c.Name] = registry.Other{ID: c.ID, By: "clusters " + p.cfg.Name, Origin: c.Origin}
			}
		}
	}
	return all
}

// policies gives each part the clusters that the others follow. The first part that has found a cluster takes
// it over, in the same step, if its former part no longer follows it.
func (s *set) policies() {
	for range 2 { // in the second round, a part can take over clusters that a later part has dropped
		for i, p := range s.parts {
			s.take(p, registry.SetPolicy{Policy: policyOf(s.cfg, i, s.others(p))})
			if len(p.entries) > 0 && p.registry.Failure() == "" {
				s.list(p)
			}
		}
	}
}

// answered reports whether a part was read since the start, or could not be read.
func (p *part) answered() bool { return !p.readAt.IsZero() || p.registry.Failure() != "" }

// list passes the entries of a part to its registry. New entries wait until each part before it has answered:
// the order in the config decides which part gets a new cluster, and not the speed of the hubs.
func (s *set) list(p *part) registry.Output {
	entries := fitting(p, p.entries)
	before := s.parts[:slices.Index(s.parts, p)]
	if slices.ContainsFunc(before, func(o *part) bool { return !o.answered() }) {
		entries = slices.DeleteFunc(entries, func(e registry.Entry) bool {
			return e.ID != "" && !s.before[e.ID] && !p.registry.Follows(e.ID)
		})
	}
	return s.take(p, registry.Listed{Entries: entries})
}

// sourceOf identifies the place where a part finds its clusters: a hub, and a namespace there.
func sourceOf(c config.Clusters) string {
	s := c.Secrets
	if s.Cluster.InCluster {
		return fmt.Sprintf("secrets in namespace %s of the relay's own cluster", s.Namespace)
	}
	return fmt.Sprintf("secrets in namespace %s of kubeconfig %q, context %q", s.Namespace, s.Cluster.Kubeconfig, s.Cluster.Context)
}

// former is the state of a part before a reload. It is empty for a new part.
type former struct {
	kept
	part *part // nil: it is from the disk
}

// formers returns, for each part of a config, its former state. The caller holds mu.
func (f *Finder) formers(cfg *config.Config) []former {
	var all []former
	for _, p := range f.parts {
		all = append(all, former{kept{p.cfg.Name, sourceOf(p.cfg), p.registry.Clusters()}, p})
	}
	for _, k := range f.restore {
		all = append(all, former{k, nil})
	}
	return succeed(all, cfg.Clusters)
}

// succeed returns, for each part, its former state: of the part with the same name and source, else with the
// same source, else with the same name. No two parts get the same former state.
func succeed(all []former, parts []config.Clusters) []former {
	out, done := make([]former, len(parts)), make([]bool, len(parts))
	for _, same := range []func(former, config.Clusters) bool{
		func(f former, c config.Clusters) bool { return f.Name == c.Name && f.Source == sourceOf(c) },
		func(f former, c config.Clusters) bool { return f.Source == sourceOf(c) },
		func(f former, c config.Clusters) bool { return f.Name == c.Name },
	} {
		for i, c := range parts {
			if done[i] {
				continue
			}
			if j := slices.IndexFunc(all, func(f former) bool { return same(f, c) }); j >= 0 {
				out[i], done[i] = all[j], true
				all = slices.Delete(all, j, j+1)
			}
		}
	}
	return out
}

// fitting returns the entries of a part. It sets Problem of new ones that do not fit its template.
func fitting(p *part, entries []registry.Entry) []registry.Entry {
	entries = slices.Clone(entries)
	for i := range entries {
		e := &entries[i]
		name := registry.NameOf(e.ID)
		if e.Problem != "" || p.registry.Follows(e.ID) || name == "" {
			continue
		}
		if _, err := upstreamOf(p.cfg, name, e.ID, nil); err != nil {
			e.Kubeconfig, e.Problem = nil, "it does not fit: upstream."+err.Error()
		}
	}
	return entries
}

// tellEnd logs each cluster of a part that is no longer in the config.
func (f *Finder) tellEnd(gone *part) {
	now := map[string]string{} // the part that now follows a cluster, by ID
	for _, p := range f.parts {
		for _, c := range p.registry.Clusters() {
			now[c.ID] = p.cfg.Name
		}
	}
	for _, c := range gone.registry.Clusters() {
		if of, followed := now[c.ID]; followed {
			f.limit.Log(f.log, slog.LevelInfo, "cluster goes over to other clusters", "cluster", c.ID, "clusters", of, "before", gone.cfg.Name)
		} else {
			f.limit.Log(f.log, slog.LevelWarn, "cluster removed", "clusters", gone.cfg.Name, "cluster", c.ID, "reason", "the config does not have these clusters any more")
		}
	}
}
