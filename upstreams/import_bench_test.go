package upstreams

import (
	"testing"

	"google.golang.org/protobuf/proto"

	"meshrelay/config"
	"meshrelay/mirror"
)

// BenchmarkImport is what one changed element costs from its bytes to the resource that is
// held: without rules but with provenance, and with many rules.
func BenchmarkImport(b *testing.B) {
	for _, bc := range []struct {
		name string
		u    config.Upstream
		p    config.Provenance
	}{
		{"nothing", config.Upstream{}, config.Provenance{}},
		{"provenance", config.Upstream{}, config.Provenance{Annotations: true, Relay: "hub", MaxHops: 8}},
		{"defaults", config.Upstream{Rewrite: config.Rewrite{Annotations: config.Edit{Remove: []string{"kubectl.kubernetes.io/last-applied-configuration"}}}}, config.Provenance{Annotations: true, Relay: "hub", MaxHops: 8}},
		{"rules", config.Upstream{
			Import:  config.Import{Namespaces: config.Globs{Exclude: []string{"kube-*"}}, Selector: "!internal", Expression: "kind != 'ServiceEntry' || spec.hosts.all(h, h.endsWith('.example'))"},
			Rewrite: config.Rewrite{NamespacePrefix: "east-", Hosts: []config.HostMapping{{From: "example", To: "east.example"}}},
		}, config.Provenance{Annotations: true, Relay: "hub", MaxHops: 8}},
	} {
		b.Run(bc.name, func(b *testing.B) {
			bc.u.Name, bc.u.ClusterID, bc.u.XDS, bc.u.Services.Mode = "east", "east", &config.XDS{}, config.ServicesOmit
			im, err := newImporter(bc.u, bc.p)
			if err != nil {
				b.Fatal(err)
			}
			element, err := proto.Marshal(xdsEntry("shop/db", "db.example").Any)
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				r, path, err := mirror.DecodeStamped(xdsEntryKind, element, "east", im.stamp)
				if err != nil {
					b.Fatal(err)
				}
				if reason, detail := im.check(r, path, false); reason != imported {
					b.Fatal(reason, detail)
				}
				if _, _, err := im.reshape(r, nil); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
