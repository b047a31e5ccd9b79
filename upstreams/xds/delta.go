package xds

import (
	"fmt"

	"meshrelay/adsclient"
	"meshrelay/mirror"
	"meshrelay/upstreams/intake/records"
)

// fitDelta returns a DeltaError for a delta answer in which no element has a name, or none is an MCP resource: the
// server implements delta for Envoys only, if at all. One good element is enough for each, because the intake
// refuses bad ones by name.
func fitDelta(kind mirror.Kind, resp *adsclient.Response) error {
	if !resp.Delta || resp.Len() == 0 || kind == mirror.MeshConfig { // an istiod's MeshConfig has no name
		return nil
	}
	named, enveloped := false, false
	for raw := range resp.Resources(1) { // the outline has the type
		named = named || len(raw.Name) > 0
		enveloped = enveloped || records.IsMCP(raw.Peek())
		if named && enveloped {
			return nil
		}
	}
	lacks := "a name"
	if named {
		lacks = "the type istio.mcp.v1alpha1.Resource"
	}
	return &adsclient.DeltaError{Why: fmt.Sprintf("of %d resources in an answer for %s, none has %s", resp.Len(), resp.TypeURL, lacks)}
}
