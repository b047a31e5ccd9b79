package rewrite

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
)

// TestHostsAreMappedWithoutRegardToCase: what no rule maps stays as it came.
func TestHostsAreMappedWithoutRegardToCase(t *testing.T) {
	rules := Rules{
		Namespaces: map[string]string{"shop": "east-shop", "same": "same"}, NamespacePrefix: "p-", ShortHosts: ShortHostsComplete,
		Hosts: map[string]string{"nacos": "east.example", "corp.example": "corp.east"},
	}
	for _, tc := range []struct{ kind, before, after string }{
		{"se", `{"hosts": ["Consumers.DEFAULT-GROUP.public.NACOS"]}`, `{"hosts": ["Consumers.DEFAULT-GROUP.public.east.example"]}`},
		{"se", `{"hosts": ["*.Corp.Example", "A.Other"]}`, `{"hosts": ["*.corp.east", "A.Other"]}`},
		{"se", `{"hosts": ["Web.Shop.SVC.Cluster.Local"]}`, `{"hosts": ["Web.east-shop.SVC.Cluster.Local"]}`},
		{"se", `{"hosts": ["Web.SAME.svc.cluster.local"]}`, `{"hosts": ["Web.SAME.svc.cluster.local"]}`},
		{"se", `{"hosts": ["Web.Other.svc.cluster.local"]}`, `{"hosts": ["Web.p-other.svc.cluster.local"]}`},
		{"vs", `{"hosts": ["reviews", "*.Shop.SVC.cluster.local"]}`, `{"hosts": ["*.east-shop.SVC.cluster.local"]}`},
		{"dr", `{"host": "A.Corp.EXAMPLE"}`, `{"host": "A.corp.east"}`},
		{"sidecar", `{"egress": [{"hosts": ["*/*.EXAMPLE"]}]}`, `{"egress": [{"hosts": ["*/*.EXAMPLE", "*/corp.east", "*/*.corp.east"]}]}`},
	} {
		kind := rewriteKind(tc.kind)
		got := mustRewrite(t, mustRewriter(t, rules), newRewriteResource(t, rewriteSpec(t, kind, "shop/a", tc.before)))
		if d := cmp.Diff(rewriteBody(t, kind, tc.after), decodedBody(t, got), protocmp.Transform()); d != "" {
			t.Errorf("%s: -want +got:\n%s", tc.before, d)
		}
	}
}
