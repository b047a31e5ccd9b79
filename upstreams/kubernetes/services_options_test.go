package kubernetes

import (
	"strings"
	"testing"
	"testing/synctest"

	"meshrelay/federation"
	"meshrelay/internal/testing/fakekube"
	"meshrelay/mirror"
)

// Istiods from 1.30 do so. The labels of the same objects are for discoverySelectors.
func TestServicesHaveTheDistributionOfTheirNamespace_K15(t *testing.T) {
	for _, selectors := range []string{"", `, discoverySelectors: ["mesh=on"]`} {
		inBubble(t, selectors, func(t *testing.T) {
			s := serviceServer(t)
			namespace := func(label, distribution string) {
				s.Put("/namespaces", map[string]any{"metadata": map[string]any{
					"namespace": "", "name": "shop", "labels": map[string]any{"mesh": label}, "annotations": map[string]any{federation.DistributionAnnotation: distribution},
				}})
			}
			namespace("on", "PreferClose")
			w := s.mirrors(selectors, discover)
			w.synced()
			has := func(want string) {
				t.Helper()
				w.until("the ServiceEntry has "+want, func() bool {
					r := w.aggregate.Get(mirror.Key{Kind: federation.ServiceEntry, Namespace: "shop", Name: "synthetic-db"})
					return r != nil && r.Metadata().Annotations[federation.DistributionAnnotation] == want
				})
			}
			has("PreferClose")
			namespace("on", "PreferSameNode")
			has("PreferSameNode")
			if selectors == "" {
				s.Remove("/namespaces", "/shop")
				has("")
				return
			}
			namespace("off", "PreferClose")
			w.serves()
			namespace("on", "PreferClose")
			has("PreferClose")
		})
	}
}

func TestServicesAreReadOnlyWhereTheyAreWanted_K15(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for more, want := range map[string]string{
			"": "", "  services: {mode: discover, pods: false}\n": "/endpointslices /nodes /services", discover: "/endpointslices /nodes /pods /services",
			"  services: {mode: gateway, gateways: [192.0.2.1]}\n": "/services",
		} {
			s := serviceServer(t)
			w := s.mirrors("", more)
			w.synced()
			var asked []string
			for _, part := range []string{"/endpointslices", "/nodes", "/pods", "/services"} {
				if s.Asked(part) > 0 {
					asked = append(asked, part)
				}
			}
			if strings.Join(asked, " ") != want {
				t.Errorf("%q has asked for %q, want %q", more, asked, want)
			}
			if strings.Contains(more, "gateway") {
				w.reaches("synthetic-db", "192.0.2.1 15443   ")
			}
		}
	})
}

func TestClusterLocalServicesAreLeftOut_K15(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serviceServer(t)
		s.Define("", "Namespace", "namespaces", "v1")
		s.Define("", "ConfigMap", "configmaps", "v1")
		s.Put("/configmaps", fakekube.Object("istio-system", "istio", `{}`, `{"data":{"mesh":"defaultConfig: {discoveryAddress: \"pilot.shop.svc:15012\"}\nserviceSettings:\n- {settings: {clusterLocal: true}, hosts: [\"*.local.svc.cluster.local\"]}\n"}}`))
		for _, name := range []string{"kube-system/dns", "default/kubernetes", "shop/pilot", "local/x"} {
			namespace, name, _ := strings.Cut(name, "/")
			s.Put(servicesOf, service(namespace, name, ""))
		}
		s.Put(servicesOf, service("shop", "node", `,"internalTrafficPolicy":"Local"`))
		w := s.mirrors("", discover)
		w.synced()
		w.serves("ServiceEntry shop/a", "ServiceEntry shop/synthetic-db")
		if n := w.status().LeftOut["cluster-local"]; n != 5 {
			t.Errorf("%d are left out, status %+v", n, w.status().LeftOut)
		}
		s.Put("/configmaps", fakekube.Object("istio-system", "istio", `{}`, `{"data":{"mesh":"{}"}}`))
		w.serves("ServiceEntry shop/a", "ServiceEntry shop/synthetic-db", "ServiceEntry shop/synthetic-pilot", "ServiceEntry local/synthetic-x")
	})
}

// A server that fails is asked again before anything is served that is only for its own cluster.
func TestServicesWaitForTheMeshConfigThatAServerFailsToTell_K15(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serviceServer(t)
		s.Define("", "ConfigMap", "configmaps", "v1")
		s.Put("/configmaps", fakekube.Object("istio-system", "istio", `{}`, `{"data":{"mesh":"serviceSettings: [{settings: {clusterLocal: true}, hosts: [db.shop.svc.cluster.local]}]"}}`))
		s.Set(func() { s.Fault = failing("/configmaps/istio", 503, "ServiceUnavailable") })
		w := s.mirrors("", discover)
		w.until("it was asked again", func() bool { return s.Asked("/configmaps/istio") > 2 })
		w.until("the status tells of it", func() bool {
			return strings.Contains(w.status().LastError, "options of services: ConfigMap istio-system/istio")
		})
		w.serves()
		s.Set(func() { s.Fault = nil })
		w.synced()
		w.serves("ServiceEntry shop/a")
		// Later failures leave the options as they were.
		s.Set(func() { s.Fault = failing("/configmaps/istio", 503, "ServiceUnavailable") })
		asked := s.Asked("/configmaps/istio")
		w.until("it was asked again", func() bool { return s.Asked("/configmaps/istio") > asked+2 })
		w.serves("ServiceEntry shop/a")
	})
}
