package relay

import (
	"fmt"
	"reflect"
	"strings"

	"meshrelay/config"
	"meshrelay/mirror"
)

// rootNamespace is where policies apply to a whole mesh, unless its MeshConfig names another.
const rootNamespace = "istio-system"

// powerfulKinds are kinds whose resources change what proxies run.
func powerfulKinds() []mirror.Kind {
	return []mirror.Kind{
		{Group: "networking.istio.io", Kind: "EnvoyFilter"},
		{Group: "extensions.istio.io", Kind: "WasmPlugin"},
	}
}

// rootPolicies are kinds that apply to a whole mesh in the root namespace.
func rootPolicies() []mirror.Kind {
	var out []mirror.Kind
	for _, k := range []string{"AuthorizationPolicy", "PeerAuthentication", "RequestAuthentication"} {
		out = append(out, mirror.Kind{Group: "security.istio.io", Kind: k})
	}
	return append(out, mirror.Kind{Group: "networking.istio.io", Kind: "Sidecar"})
}

// mergedView lists what is served.
type mergedView interface {
	List(kind mirror.Kind, namespace string) []*mirror.Resource
}

// powerfulImports returns a line for each upstream without import rules that gives resources
// which can change every proxy behind the relay.
func powerfulImports(upstreams []config.Upstream, configs mergedView) (notes []string) {
	counts := map[string]map[string]int{} // by upstream and kind
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
		limits.Revision = "" // anybody can set it
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
			notes = append(notes, fmt.Sprintf("upstream %s: no import rule limits these, which affect every mesh behind this relay: %s; see upstreams[].import",
				u.Name, strings.Join(found, ", ")))
		}
	}
	return notes
}
