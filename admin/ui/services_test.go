package ui

import (
	"fmt"
	"html"
	"net/http"
	"strings"
	"testing"

	"meshrelay/federation"
	"meshrelay/mirror"
	"meshrelay/services"
)

// TestServicesAreListedAndSearched: the search and the namespace reach the one who computes, and the command has them.
func TestServicesAreListedAndSearched(t *testing.T) {
	f := newFixture(t, 1)
	f.services.Services = nil
	for i := range maxServices + 1 {
		f.services.Services = append(f.services.Services, services.Service{
			Host: fmt.Sprintf("db-%03d.shop.svc.cluster.local", i), Ready: 1, All: 2, Clusters: []string{"c-east", "c-west"}, Ports: []services.Port{{Number: 80, Name: "http"}},
			Findings: []services.Finding{{Kind: services.PortsDiffer, Detail: "port 80 differs"}},
		})
	}
	_, body, _ := f.get(t, "/services?q=db&as=web")
	for _, want := range []string{
		`<code>relay services --search db --as web</code>`, `href="/ui/service?as=web&amp;host=db-000.shop.svc.cluster.local"`, `80 http`, `c-east, c-west`, `1/2`, `ports`,
		`href="/ui/services?as=web&amp;from=db-050.shop.svc.cluster.local&amp;q=db"`, "50 are shown, more follow", "</span> 51 services</p>", `data-topics=""`,
	} {
		if !strings.Contains(body, want) {
			t.Errorf("no %q in %s", want, body)
		}
	}
	if strings.Contains(body, "db-050.shop.svc.cluster.local</a>") {
		t.Error("the first row of the next page is on this one")
	}
	if got := f.asked.Encode(); got != "as=web&findings=false&from=&limit=51&search=db" {
		t.Errorf("asked for %s", got)
	}
	if _, body, _ = f.get(t, "/services?from=db-000.shop"); !strings.Contains(body, "51 services from db-000.shop on</p>") {
		t.Errorf("a later page: %s", body)
	}
	f.services.Partial = true
	_, body, _ = f.get(t, "/services?show=with+findings")
	for _, want := range []string{`<code>relay services --findings</code>`, "services with findings", "numbers are too low"} {
		if !strings.Contains(body, want) {
			t.Errorf("no %q in %s", want, body)
		}
	}
	if f.asked.Get("findings") != "true" {
		t.Error("findings were not asked for")
	}
}

// TestAServiceShowsWhatMakesIt: sentences, resources and endpoints of the commands, with links to the resources and back.
func TestAServiceShowsWhatMakesIt(t *testing.T) {
	f := newFixture(t, 1)
	key := mirror.Key{Kind: federation.ServiceEntry, Namespace: "shop", Name: "db"}
	f.services.Services = []services.Service{{
		Host: "db.shop.svc.cluster.local", Namespace: "shop", Resolution: "STATIC", Ready: 1, All: 2,
		Findings:  []services.Finding{{Kind: services.EmptySubset, Detail: "subset v2 has none of 2 endpoints"}},
		Entries:   []services.Applied{{Key: key, Upstream: "east", Cluster: "c-east", Outcome: services.Applies, Reason: "no other namespace has the host"}},
		Routes:    []services.Applied{{Key: mirror.Key{Kind: federation.VirtualService, Namespace: "shop", Name: "db"}, Outcome: services.NotUsed, Reason: "it is for gateways"}},
		Endpoints: []services.Endpoint{{Address: "10.1.0.1", Cluster: "c-east", Locality: "r/z", Health: services.Healthy, Account: "db", From: key, Upstream: "east"}},
		LeftOut:   []services.Endpoint{{Address: "db.example", From: key, Reason: "its address is a name"}},
		More:      map[string]int{"endpoints": 7},
	}}
	_, body, _ := f.get(t, "/service?host=db.shop.svc.cluster.local&port=http&subset=v1&as=web")
	for _, want := range []string{
		"db.shop.svc.cluster.local is a service of namespace shop: ServiceEntry, STATIC. Ready: 1 of 2 endpoints.", "Finding (subset): subset v2 has none of 2 endpoints.",
		`<code>relay explain service db.shop.svc.cluster.local --as web</code>`, "1 of 8; to print all: relay endpoints db.shop.svc.cluster.local:http --as web --subset v1",
		`href="/ui/resource?kind=networking.istio.io%2FServiceEntry&amp;name=db&amp;namespace=shop"`, "no other namespace has the host", "it is for gateways",
		"10.1.0.1", "r/z", "db.example", "its address is a name",
	} {
		if !strings.Contains(html.UnescapeString(body), html.UnescapeString(want)) {
			t.Errorf("no %q in %s", want, body)
		}
	}
	if got := f.asked.Encode(); got != "as=web&host=db.shop.svc.cluster.local&port=http&subset=v1" {
		t.Errorf("asked for %s", got)
	}
	f.services = services.Answer{Similar: []string{"db.shop.svc.cluster.local"}}
	if code, body, _ := f.get(t, "/service?host=db.shop"); code != http.StatusNotFound || !strings.Contains(body, "there is no service db.shop: similar hosts: db.shop.svc.cluster.local") {
		t.Errorf("%d %s", code, body)
	}
	if code, _, _ := f.get(t, "/service"); code != http.StatusBadRequest {
		t.Errorf("without a host: %d", code)
	}
}

func TestAResourceLinksToItsServices(t *testing.T) {
	f := newFixture(t, 2)
	if _, body, _ := f.get(t, "/resource?kind=se&namespace=team-1&name=service-1"); !strings.Contains(body, `href="/ui/service?host=host-1.example.com">Service host-1.example.com</a>`) {
		t.Error(body)
	}
}
