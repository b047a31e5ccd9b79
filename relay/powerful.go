package relay

import (
	"fmt"
	"slices"
	"strings"

	"meshrelay/config"
	"meshrelay/federation"
	"meshrelay/mirror"
)

// rootNamespace is where policies apply to a whole mesh, unless its MeshConfig names another.
const rootNamespace = "istio-system"

// anywhere are the kinds whose resources can change every proxy of a mesh from any namespace. The others that protect
// something can do so from its root namespace.
var anywhere = []string{"EnvoyFilter", "WasmPlugin", "TrafficExtension"}

// mergedView lists merged resources.
type mergedView interface {
	List(kind mirror.Kind, namespace string) []*mirror.Resource
}

// powerfulImports returns a line for each upstream that has resources which can change every proxy, and neither a profile nor
// another import rule that limits them. An explicit profile all is a decision.
func powerfulImports(upstreams []config.Upstream, resources mergedView) (notes []string) {
	found := map[string][]string{} // by upstream
	for _, kind := range mirror.Protecting() {
		namespace, what := rootNamespace, kind.Kind+" in "+rootNamespace
		if slices.Contains(anywhere, kind.Kind) {
			namespace, what = "", kind.Kind
		}
		counts := map[string]int{} // by upstream
		for _, r := range resources.List(kind, namespace) {
			if !strings.HasSuffix(r.FullName(), federation.Translated) { // else its WasmPlugin counts
				counts[r.Source()]++
			}
		}
		for upstream, n := range counts {
			found[upstream] = append(found[upstream], fmt.Sprintf("%d %s", n, what))
		}
	}
	for _, u := range upstreams {
		if u.Import.Profile == "" && !u.Import.LimitsContent() && len(found[u.Name]) > 0 {
			notes = append(notes, fmt.Sprintf("upstream %s: no import rule limits these, which affect every mesh behind this relay: %s; see upstreams[].import.profile",
				u.Name, strings.Join(found[u.Name], ", ")))
		}
	}
	return notes
}
