package kubernetes

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"meshrelay/internal/testing/fakekube"
	"meshrelay/mirror"
)

// Nothing is found by polling here: only a definition that changes has discovery follow.
func TestDefinitionsThatChangeAreNoticedWithoutAPoll_K1(t *testing.T) {
	for name, noStreams := range map[string]bool{"streaming lists": false, "lists": true} {
		inBubble(t, name, func(t *testing.T) {
			s := newAPIServer(t)
			s.NoStreams = noStreams
			noticesDefinitions(s)
		})
	}
}

func noticesDefinitions(s *apiServer) {
	s.pace.discover = time.Hour
	s.Define("apiextensions.k8s.io", "CustomResourceDefinition", "customresourcedefinitions", "v1")
	s.entry("shop/a", "a.x")
	w := s.mirrors("", "  guard: {percent: 100}\n")
	w.synced()
	const routes = "networking.istio.io/virtualservices"
	s.Put(routes, fakekube.Object("shop", "r", `{"hosts":["a"]}`))
	s.Define("networking.istio.io", "VirtualService", "virtualservices", "v1alpha3")
	w.serves("ServiceEntry shop/a", "VirtualService shop/r")
	s.Define("networking.istio.io", "VirtualService", "virtualservices", "v1")
	w.until("the other version is followed", func() bool { return s.Asked("/v1/virtualservices?") > 0 })
	w.serves("ServiceEntry shop/a", "VirtualService shop/r")
	s.Put("gateway.networking.k8s.io/httproutes", fakekube.Object("shop", "h", `{"rules":[]}`))
	s.Define("gateway.networking.k8s.io", "HTTPRoute", "httproutes", "v9")
	w.serves("HTTPRoute shop/h", "ServiceEntry shop/a", "VirtualService shop/r")
}

func TestABetterVersionBesideTheFollowedOneIsTaken_K1(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newAPIServer(t)
		const routes = "networking.istio.io/virtualservices"
		s.Define("networking.istio.io", "VirtualService", "virtualservices", "v1beta1")
		s.Put(routes, fakekube.Object("shop", "r", `{"hosts":["a"]}`))
		w := s.mirrors("", "")
		w.synced()
		w.serves("VirtualService shop/r")
		key := mirror.Key{Kind: virtualServiceKind, Namespace: "shop", Name: "r"}
		before := w.aggregate.Get(key)
		version := func() string {
			for _, k := range w.status().Following {
				if k.Kind == virtualServiceKind.String() {
					return k.Version
				}
			}
			return ""
		}
		s.Define("networking.istio.io", "VirtualService", "virtualservices", "v1alpha3", "v1beta1", "v1")
		w.until("the better version is followed", func() bool { return version() == "v1" })
		w.synced()
		if now := w.aggregate.Get(key); now != before {
			t.Error("another version of the API has changed an object")
		}
		s.Put(routes, fakekube.Object("shop", "r2", `{"hosts":["b"]}`))
		w.serves("VirtualService shop/r", "VirtualService shop/r2")
	})
}

func TestGatewayAPIObjectsPassInWhateverVersion_K1(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newAPIServer(t)
		for _, one := range [][]string{
			{"gateway.networking.k8s.io", "HTTPRoute", "httproutes", "v1"},
			{"gateway.networking.k8s.io", "TCPRoute", "tcproutes", "v1alpha7"},
			{"gateway.networking.x-k8s.io", "XBackendTrafficPolicy", "xbackendtrafficpolicies", "v1alpha1"},
			{"gateway.networking.x-k8s.io", "XListenerSet", "xlistenersets", "v1alpha1"},
			{"gateway.networking.x-k8s.io", "XMesh", "xmeshes", "v1alpha1"},
		} {
			s.Define(one[0], one[1], one[2], one[3])
			o := fakekube.Object("shop", "a", `{"new":{"field":[1]}}`)
			if one[1] == "XMesh" {
				delete(o["metadata"].(map[string]any), "namespace")
			}
			s.Put(one[0]+"/"+one[2], o)
		}
		w := s.mirrors("", "")
		w.synced()
		w.serves("HTTPRoute shop/a", "TCPRoute shop/a", "XBackendTrafficPolicy shop/a", "XListenerSet shop/a", "XMesh /a")
	})
}

func TestAKindInUnknownVersionsOnlyIsNamed_K9(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newAPIServer(t)
		s.Define("networking.istio.io", "VirtualService", "virtualservices", "v7")
		w := s.mirrors("", "")
		w.synced()
		for _, k := range w.status().Following {
			if k.Kind == virtualServiceKind.String() && k.Version == "v7" && k.State == "unserved" && k.Reason != "" {
				return
			}
		}
		t.Errorf("kinds: %+v", w.status().Following)
	})
}

func TestAServerBeforeKubernetes127IsNamed_K9(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newAPIServer(t)
		s.NoAggregation = true
		s.entry("shop/a", "a.x")
		w := s.mirrors("", "")
		w.until("the status names the version", func() bool { return strings.Contains(w.status().LastError, "older than Kubernetes 1.27") })
		if w.status().Synced || len(w.has()) > 0 {
			t.Errorf("served: %q", w.has())
		}
		s.Set(func() { s.NoAggregation = false })
		w.synced()
		w.serves("ServiceEntry shop/a")
	})
}
