package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"meshrelay/admin"
	"meshrelay/internal/testing/await"
	"meshrelay/internal/testing/fakexds"
	"meshrelay/mirror"
)

// TestRingsOfRelaysAreSafe: three relays mirror one another in a ring with one source. All serve the resources of the
// source, leave out those that come back, and delete those that the source deletes.
func TestRingsOfRelaysAreSafe(t *testing.T) {
	kind := mirror.Kind{Group: "networking.istio.io", Kind: "ServiceEntry"}
	body := versionedKinds()[kind]
	source := fakexds.Start(t, &fakexds.Server{})
	source.Set(kind.TypeURL("v1"), fakexds.MCP("shop/a", body), fakexds.MCP("shop/b", body))

	ports := freePorts(t, 6)
	ring := make([]running, 3)
	for i := range ring {
		ring[i] = running{xds: fmt.Sprintf("127.0.0.1:%d", ports[2*i]), admin: fmt.Sprintf("127.0.0.1:%d", ports[2*i+1])}
	}
	for i, r := range ring {
		upstreams := fmt.Sprintf("upstreams:\n- {name: ring, xds: {addresses: [%q], plaintext: true}}\n", ring[(i+2)%3].xds)
		if i == 0 {
			upstreams += fmt.Sprintf("- {name: east, xds: {addresses: [%q], plaintext: true}}\n", source.Addr)
		}
		r.run(t, fmt.Sprintf("relay-%d", i), upstreams)
	}
	names := func(r running) []string {
		objects, err := admin.Client{Address: r.admin}.Resources(t.Context())
		if err != nil {
			return nil
		}
		out := []string{}
		for _, o := range objects {
			p := mirror.ParseProvenance(o.Metadata.Annotations[mirror.ProvenanceAnnotation])
			out = append(out, o.Metadata.Name+" from "+p.Source+" via "+strings.Join(p.Path, ","))
		}
		return out
	}
	everybody := func(want ...string) func() bool {
		return func() bool {
			path := ""
			for i, r := range ring {
				path += fmt.Sprintf("relay-%d", i)
				var mine []string
				for _, w := range want {
					mine = append(mine, w+" from east via "+path)
				}
				if !slices.Equal(names(r), mine) {
					return false
				}
				path += ","
			}
			return true
		}
	}
	await.Until(t, "all have what the source has", everybody("a", "b"))
	await.Until(t, "what comes back is left out", func() bool {
		st, err := admin.Client{Address: ring[0].admin}.Upstreams(t.Context())
		return err == nil && st[0].LeftOut["loop"] == 2
	})
	source.Set(kind.TypeURL("v1"), fakexds.MCP("shop/b", body))
	source.Push(kind.TypeURL("v1"))
	await.Until(t, "what is deleted is gone from all", everybody("b"))
}
