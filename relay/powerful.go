package relay

import (
	"fmt"
	"strings"

	"meshrelay/config"
	"meshrelay/federation"
	"meshrelay/mirror"
)

// rootNamespace is where policies apply to a whole mesh, unless its MeshConfig names another.
const rootNamespace = "istio-system"

// powerful is a kind whose resources can change every proxy of a mesh. An empty namespace means that they
// can do so from any namespace.
type powerful struct{ group, kind, namespace string }

func (p powerful) String() string {
	if p.namespace == "" {
		return p.kind
	}
	return p.kind + " in " + p.namespace
}

var powerfulKinds = []powerful{
	{"networking.istio.io", "EnvoyFilter", ""},
	{"extensions.istio.io", "WasmPlugin", ""},
	{"extensions.istio.io", "TrafficExtension", ""},
	{"security.istio.io", "AuthorizationPolicy", rootNamespace},
	{"security.istio.io", "PeerAuthentication", rootNamespace},
	{"security.istio.io", "RequestAuthentication", rootNamespace},
	{"networking.istio.io", "Sidecar", rootNamespace},
}

// mergedView lists merged resources.
type mergedView interface {
	List(kind mirror.Kind, namespace string) []*mirror.Resource
}

// powerfulImports returns a line for each upstream that has resources of powerfulKinds, and neither a profile nor another import
// rule that limits them. An explicit profile all is a decision.
func powerfulImports(upstreams []config.Upstream, resources mergedView) (notes []string) {
	counts := map[string]map[powerful]int{} // by upstream
	for _, p := range powerfulKinds {
		for _, r := range resources.List(mirror.Kind{Group: p.group, Kind: p.kind}, p.namespace) {
			if strings.HasSuffix(r.FullName(), federation.Translated) {
				continue // its WasmPlugin counts
			}
			if counts[r.Source()] == nil {
				counts[r.Source()] = map[powerful]int{}
			}
			counts[r.Source()][p]++
		}
	}
	for _, u := range upstreams {
		if u.Import.Profile != "" || u.Import.LimitsContent() {
			continue
		}
		var found []string
		for _, p := range powerfulKinds {
			if n := counts[u.Name][p]; n > 0 {
				found = append(found, fmt.Sprintf("%d %s", n, p))
			}
		}
		if len(found) > 0 {
			notes = append(notes, fmt.Sprintf("upstream %s: no import rule limits these, which affect every mesh behind this relay: %s; see upstreams[].import.profile",
				u.Name, strings.Join(found, ", ")))
		}
	}
	return notes
}
