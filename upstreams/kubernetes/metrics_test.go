package kubernetes

import (
	"strings"
	"testing"
	"testing/synctest"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"meshrelay/internal/testing/fakekube"
)

func TestMetricsCountIngressesAndNamespaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := ingressServer(t)
		s.Define("", "Namespace", "namespaces", "v1")
		s.Namespace("shop", `{"mesh":"on"}`)
		s.Namespace("other", `{}`)
		s.Namespace("third", `{}`)
		s.ingress("shop/second", "second.example", "/")
		s.Put(ingressesOf, fakekube.Object("shop", "foreign", `{"ingressClassName":"another","defaultBackend":{"service":{"name":"front","port":{"name":"http"}}}}`))
		s.Put(ingressesOf, fakekube.Object("shop", "wrong", `{"rules":"none"}`))
		w := s.mirrors(strict+`, discoverySelectors: ["mesh=on"]`, "")
		w.synced()
		names := []string{"relay_upstream_ingresses", "relay_upstream_ingress_problems", "relay_upstream_namespaces"}
		const want = `# HELP relay_upstream_ingress_problems Parts of Ingresses of the cluster that are left out, or that no request reaches.
# TYPE relay_upstream_ingress_problems gauge
relay_upstream_ingress_problems{upstream="east"} 1
# HELP relay_upstream_ingresses Ingresses of the cluster that are converted, refused, or left out because they are of another class or can not be converted at all.
# TYPE relay_upstream_ingresses gauge
relay_upstream_ingresses{outcome="converted",upstream="east"} 2
relay_upstream_ingresses{outcome="left-out",upstream="east"} 1
relay_upstream_ingresses{outcome="refused",upstream="east"} 1
# HELP relay_upstream_namespaces Namespaces of the cluster that discoverySelectors choose, or leave out.
# TYPE relay_upstream_namespaces gauge
relay_upstream_namespaces{outcome="chosen",upstream="east"} 1
relay_upstream_namespaces{outcome="left-out",upstream="east"} 2
`
		var err error
		w.until("all are counted", func() bool {
			err = testutil.CollectAndCompare(w.manager, strings.NewReader(want), names...)
			return err == nil
		})
		if err != nil {
			t.Error(err)
		}
		plain := newAPIServer(t).mirrors("", "")
		plain.synced()
		if n := testutil.CollectAndCount(plain.manager, names...); n > 0 {
			t.Errorf("%d where nothing is converted and all namespaces count", n)
		}
	})
}
