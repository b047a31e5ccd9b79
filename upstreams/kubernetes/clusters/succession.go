package clusters

import (
	"fmt"
	"slices"

	"meshrelay/config"
)

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
