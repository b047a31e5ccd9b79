package records

import (
	"fmt"
	"testing"

	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"

	"meshrelay/config"
	"meshrelay/federation"
	"meshrelay/federation/rewrite"
	"meshrelay/internal/testing/fakexds"
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
		{"provenance", config.Upstream{}, config.Provenance{Relay: "hub"}},
		{"defaults", config.Upstream{Rewrite: config.Rewrite{Annotations: config.Edit{Remove: []string{"kubectl.kubernetes.io/last-applied-configuration"}}}}, config.Provenance{Relay: "hub"}},
		{"rules", config.Upstream{
			Import:  config.Import{Namespaces: config.Globs{Exclude: []string{"kube-*"}}, Selector: "!internal", Expression: "kind != 'ServiceEntry' || spec.hosts.all(h, h.endsWith('.example'))"},
			Rewrite: config.Rewrite{NamespacePrefix: "east-", Hosts: map[string]string{"example": "east.example"}},
		}, config.Provenance{Relay: "hub"}},
	} {
		b.Run(bc.name, func(b *testing.B) {
			bc.u.Name, bc.u.ClusterID, bc.u.Services.Mode = "east", "east", config.ServicesOmit
			im, err := NewRules(bc.u, bc.p, true)
			if err != nil {
				b.Fatal(err)
			}
			element, err := proto.Marshal(fakexds.MCP("shop/db", &networking.ServiceEntry{Hosts: []string{"db.example"}}).Any)
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				r, way, err := mirror.DecodeStamped(federation.ServiceEntry, element, "east", im.stamp)
				if err != nil {
					b.Fatal(err)
				}
				if why := im.check(r, way, false, nil); why != imported {
					b.Fatal(why.Value())
				}
				if _, _, err := im.reshape(r, nil, false); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkImportVirtualService is what short hosts cost, from the bytes of a changed
// VirtualService with ten routes to what is held: where they are kept, where they are
// completed and there are none, and where all hosts are short.
func BenchmarkImportVirtualService(b *testing.B) {
	kind := mirror.Kind{Group: "networking.istio.io", Kind: "VirtualService"}
	for _, bc := range []struct{ name, shortHosts, host string }{
		{"keep", rewrite.ShortHostsKeep, "reviews.shop.svc.cluster.local"},
		{"complete/none", rewrite.ShortHostsComplete, "reviews.shop.svc.cluster.local"},
		{"complete/all", rewrite.ShortHostsComplete, "reviews"},
	} {
		b.Run(bc.name, func(b *testing.B) {
			u := config.Upstream{Name: "east", ClusterID: "east-1", DomainSuffix: "cluster.local", Services: config.Services{Mode: config.ServicesOmit}}
			u.Rewrite = config.Rewrite{ShortHosts: bc.shortHosts, Annotations: config.Edit{Remove: []string{"kubectl.kubernetes.io/last-applied-configuration"}}}
			im, err := NewRules(u, config.Provenance{Relay: "hub"}, true)
			if err != nil {
				b.Fatal(err)
			}
			vs := &networking.VirtualService{Hosts: []string{bc.host}}
			for i := range 10 {
				vs.Http = append(vs.Http, &networking.HTTPRoute{
					Name:  fmt.Sprint("route-", i),
					Match: []*networking.HTTPMatchRequest{{Uri: &networking.StringMatch{MatchType: &networking.StringMatch_Prefix{Prefix: fmt.Sprint("/", i)}}}},
					Route: []*networking.HTTPRouteDestination{{Destination: &networking.Destination{Host: bc.host, Subset: "v1"}}},
				})
			}
			element, err := proto.Marshal(fakexds.MCP("shop/reviews", vs).Any)
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				r, _, err := mirror.DecodeStamped(kind, element, "east", im.stamp)
				if err != nil {
					b.Fatal(err)
				}
				if _, _, err := im.reshape(r, nil, false); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
