package main

import (
	"fmt"
	"reflect"
	"slices"

	"meshrelay/config"
	"meshrelay/downstream"
	"meshrelay/federation/filter"
	"meshrelay/federation/merge"
	"meshrelay/mirror"
)

// mergePolicies returns the policies of a config: by kind, and of all others.
func mergePolicies(rules []config.Merge) (byKind map[mirror.Kind]mirror.Policy, others mirror.Policy, err error) {
	byKind = map[mirror.Kind]mirror.Policy{}
	for _, m := range rules {
		if len(m.Kinds) == 0 {
			if others, err = merge.ByName(m.Policy, mirror.Kind{}, m.Union()); err != nil {
				return nil, nil, fmt.Errorf("merge: %w", err)
			}
		}
		for _, word := range m.Kinds {
			kinds, err := mirror.ParseKinds(word)
			if err != nil {
				return nil, nil, fmt.Errorf("merge: %w", err)
			}
			for _, kind := range kinds {
				if byKind[kind], err = merge.ByName(m.Policy, kind, m.Union()); err != nil {
					return nil, nil, fmt.Errorf("merge: %w", err)
				}
			}
		}
	}
	return byKind, others, nil
}

// viewsOf returns the views of a config, as the server takes them.
func viewsOf(views []config.View) ([]downstream.View, error) {
	var out []downstream.View
	for _, v := range views {
		filter, err := filter.New(v.Rules())
		if err != nil {
			return nil, fmt.Errorf("view %s: %w", v.Name, err)
		}
		view := downstream.View{
			Name: v.Name, Match: downstream.Match(v.Match), Default: v.Default,
			ClusterID: v.ClusterID, ExcludeOwn: v.ExcludeOwn,
		}
		// A view without rules limits nobody.
		if sources := v.Sources; len(sources) > 0 || !reflect.ValueOf(v.Rules()).IsZero() {
			view.Accepts = func(r *mirror.Resource) bool {
				return (len(sources) == 0 || slices.Contains(sources, r.Source())) && filter.Check(r) == ""
			}
		}
		out = append(out, view)
	}
	return out, nil
}
