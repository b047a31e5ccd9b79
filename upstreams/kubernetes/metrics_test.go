package kubernetes

import (
	"testing"
	"testing/synctest"

	"meshrelay/internal/testing/fakekube"
)

func TestTheStatusCountsIngressesAndNamespaces(t *testing.T) {
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
		w.until("all are counted", func() bool {
			d := w.detail()
			i := d.Ingress
			return i != nil && i.Ingresses == 3 && i.Converted == 2 && i.Refused == 1 && i.ProblemsTotal == 1 && d.Namespaces == 3 && d.Selected == 1
		})
	})
}
