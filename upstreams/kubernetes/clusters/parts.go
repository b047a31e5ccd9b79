package clusters

import (
	"fmt"
	"slices"

	"meshrelay/config"
	"meshrelay/upstreams/kubernetes/clusters/registry"
)

// policyOf returns the policy of a part of a config. others are clusters that other parts follow.
func policyOf(cfg *config.Config, i int, others map[string]registry.Other) registry.Policy {
	c := cfg.Clusters[i]
	p := registry.Policy{
		RemoveAfter: c.RemoveAfter.D(), Percent: c.Guard.Percent, Count: c.Guard.Count, Max: c.Max, Ignore: c.Ignore,
		Names: map[string]string{}, IDs: map[string]string{}, Istiods: map[string]string{}, Others: others,
	}
	for j, u := range cfg.Upstreams {
		p.Names[u.Name] = fmt.Sprintf("that of upstreams[%d]", j)
		switch {
		case u.OfAPIServer():
			p.IDs[u.ClusterID] = "upstream " + u.Name
		case u.OfControlPlane():
			p.Istiods[u.ClusterID] = u.Name
		}
	}
	return p
}

// share adds the clusters of a part to those that others may not follow. Of two with one name the
// first stays.
func share(others map[string]registry.Other, name string, clusters []registry.Cluster) {
	for _, c := range clusters {
		if _, is := others[c.Name]; !is {
			others[c.Name] = registry.Other{ID: c.ID, By: "clusters " + name, Origin: c.Origin}
		}
	}
}

// others returns the clusters that parts but one follow. The caller holds mu.
func (f *Finder) others(but *part) map[string]registry.Other {
	all := map[string]registry.Other{}
	for _, p := range f.parts {
		if p != but {
			share(all, p.cfg.Name, p.registry.Clusters())
		}
	}
	return all
}

// policies gives each part its policy, which depends on the other parts. A cluster that one part drops goes,
// in the same step, to the first part that has found it. The caller holds mu.
func (f *Finder) policies() {
	for range 2 { // an earlier part may take what a later one has dropped the first time
		for i, p := range f.parts {
			_, _ = f.step(p, registry.SetPolicy{Policy: policyOf(f.cfg, i, f.others(p))}) //nolint:errcheck // it is no order
			if len(p.entries) > 0 && p.registry.Failure() == "" {
				f.list(p)
			}
		}
	}
}

// answered reports whether the place of a part was read since the start, or could not be.
func (p *part) answered() bool { return !p.readAt.IsZero() || p.registry.Failure() != "" }

// list gives the registry of a part its entries. New clusters wait until each part before this one has
// answered: the order of the config decides which part gets a cluster, and not the speed of hubs. The
// caller holds mu.
func (f *Finder) list(p *part) registry.Output {
	entries := fitting(p, p.entries)
	before := f.parts[:slices.Index(f.parts, p)]
	if slices.ContainsFunc(before, func(o *part) bool { return !o.answered() }) {
		known := map[string]bool{"": true} // an origin that can not be used
		for _, c := range p.registry.Clusters() {
			known[c.ID] = true
		}
		entries = slices.DeleteFunc(slices.Clone(entries), func(e registry.Entry) bool { return !known[e.ID] })
	}
	out, _ := f.step(p, registry.Listed{Entries: entries}) //nolint:errcheck // it is no order
	return out
}
