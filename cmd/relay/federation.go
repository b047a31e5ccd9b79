package main

import (
	"fmt"
	"slices"

	"meshrelay/config"
	"meshrelay/downstream"
	"meshrelay/federation"
	"meshrelay/mirror"
)

// mergePolicies returns the policies of a config by kind.
func mergePolicies(rules []config.Merge) (map[mirror.Kind]mirror.Policy, error) {
	policies := map[mirror.Kind]mirror.Policy{}
	add := func(m config.Merge, kind mirror.Kind) error {
		if _, taken := policies[kind]; taken {
			return nil // named by another rule, while this one is for all others
		}
		policy, err := federation.PolicyByName(m.Policy, kind, m.SameHost)
		if err != nil {
			return fmt.Errorf("merge: %w", err)
		}
		policies[kind] = policy
		return nil
	}
	for _, m := range rules {
		for _, word := range m.Kinds {
			kinds, err := federation.ParseKinds(word)
			if err != nil {
				return nil, fmt.Errorf("merge: %w", err)
			}
			for _, kind := range kinds {
				if err := add(m, kind); err != nil {
					return nil, err
				}
			}
		}
	}
	for _, m := range rules {
		if len(m.Kinds) > 0 {
			continue
		}
		for _, info := range mirror.Kinds() {
			if err := add(m, info.Kind); err != nil {
				return nil, err
			}
		}
	}
	return policies, nil
}

// viewsOf returns the views of a config, as the server takes them.
func viewsOf(views []config.View) ([]downstream.View, error) {
	var out []downstream.View
	for _, v := range views {
		filter, err := federation.NewFilter(v.Rules())
		if err != nil {
			return nil, fmt.Errorf("view %s: %w", v.Name, err)
		}
		sources := v.Sources
		out = append(out, downstream.View{
			Name: v.Name, Match: downstream.Match(v.Match), Default: v.Default,
			ClusterID: v.ClusterID, ExcludeOwn: v.ExcludeOwn,
			Accepts: func(r *mirror.Resource) bool {
				return (len(sources) == 0 || slices.Contains(sources, r.Source())) && filter.Check(r) == ""
			},
		})
	}
	return out, nil
}
