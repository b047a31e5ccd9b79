package main

import (
	"fmt"
	"reflect"
	"strings"

	"meshrelay/config"
	"meshrelay/internal/printer"
	"meshrelay/mirror"
)

// rootNamespace is where policies are for a whole mesh, unless its MeshConfig names another.
const rootNamespace = "istio-system"

// powerfulKinds are kinds whose resources change what proxies run.
func powerfulKinds() []mirror.Kind {
	return []mirror.Kind{
		{Group: "networking.istio.io", Kind: "EnvoyFilter"},
		{Group: "extensions.istio.io", Kind: "WasmPlugin"},
	}
}

// rootPolicies are kinds that in the root namespace are for a whole mesh.
func rootPolicies() []mirror.Kind {
	var out []mirror.Kind
	for _, k := range []string{"AuthorizationPolicy", "PeerAuthentication", "RequestAuthentication"} {
		out = append(out, mirror.Kind{Group: "security.istio.io", Kind: k})
	}
	return append(out, mirror.Kind{Group: "networking.istio.io", Kind: "Sidecar"})
}

// mergedView is what is served to everybody.
type mergedView interface {
	List(kind mirror.Kind, namespace string) []*mirror.Resource
}

// powerfulImports tells of each upstream whose import nothing limits what of it can change every
// proxy of the meshes that the relay serves, in one line.
func powerfulImports(upstreams []config.Upstream, configs mergedView) (notes []string) {
	counts := map[string]map[string]int{} // by upstream and what it is
	count := func(kind mirror.Kind, namespace, name string) {
		for _, r := range configs.List(kind, namespace) {
			if counts[r.Source()] == nil {
				counts[r.Source()] = map[string]int{}
			}
			counts[r.Source()][name]++
		}
	}
	var names []string
	for _, kind := range powerfulKinds() {
		names = append(names, kind.Kind)
		count(kind, "", kind.Kind)
	}
	for _, kind := range rootPolicies() {
		name := kind.Kind + " in " + rootNamespace
		names = append(names, name)
		count(kind, rootNamespace, name)
	}
	for _, u := range upstreams {
		limits := u.Import
		limits.Revision = "" // which tells nothing of who wrote it
		if !reflect.ValueOf(limits).IsZero() {
			continue
		}
		var found []string
		for _, name := range names {
			if n := counts[u.Name][name]; n > 0 {
				found = append(found, fmt.Sprintf("%d %s", n, name))
			}
		}
		if len(found) > 0 {
			notes = append(notes, fmt.Sprintf("upstream %s: import does not limit %s, which %s every mesh behind this relay: see upstreams[].import",
				u.Name, strings.Join(found, ", "), printer.Agree(len(found), "is for", "are for")))
		}
	}
	return notes
}
