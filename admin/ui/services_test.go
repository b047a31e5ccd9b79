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

// TestServicesAreListedAndSearched: the search reaches the one who computes, and the command has it.
func TestServicesAreListedAndSearched(t *testing.T) {
	f := newFixture(t, 1)
	f.services.Services = nil
	for i := range maxServices + 1 {
		f.services.Services = append(f.services.Services, services.Service{
			Host: fmt.Sprintf("db-%03d.shop.svc.cluster.local", i), All: 2, Clusters: []string{"c-east", "c-west"}, Ports: []services.Port{{Number: 80, Name: "http"}},
		})
	}
	_, body, _ := f.get(t, "/services?q=db")
	for _, want := range []string{
		`<code>relay services --search db</code>`, `href="/ui/service?host=db-000.shop.svc.cluster.local"`, `80 http`, `c-east, c-west`,
		`href="/ui/services?from=db-050.shop.svc.cluster.local&amp;q=db"`, "50 are shown, more follow", "</span> 51 services</p>", `data-topics=""`,
	} {
		if !strings.Contains(body, want) {
			t.Errorf("no %q in %s", want, body)
		}
	}
	if strings.Contains(body, "db-050.shop.svc.cluster.local</a>") {
		t.Error("the first row of the next page is on this one")
	}
	if got := f.asked.Encode(); got != "from=&limit=51&search=db" {
		t.Errorf("asked for %s", got)
	}
	if _, body, _ = f.get(t, "/services?from=db-000.shop"); !strings.Contains(body, "51 services from db-000.shop on</p>") {
		t.Errorf("a later page: %s", body)
	}
	f.services.Partial = true
	if _, body, _ = f.get(t, "/services"); !strings.Contains(body, "numbers are too low") {
		t.Error(body)
	}
}

// TestAServiceShowsItsEntriesAndEndpoints, with links to the resources.
func TestAServiceShowsItsEntriesAndEndpoints(t *testing.T) {
	f := newFixture(t, 1)
	key := mirror.Key{Kind: federation.ServiceEntry, Namespace: "shop", Name: "db"}
	f.services.Services = []services.Service{{
		Host: "db.shop.svc.cluster.local", All: 8, Ports: []services.Port{{Number: 80, Name: "http"}},
		Entries:   []services.Entry{{Key: key, Upstream: "east", Cluster: "c-east", Resolution: "STATIC"}},
		Endpoints: []services.Endpoint{{Address: "10.1.0.1", Cluster: "c-east", Locality: "r/z", Account: "db", From: key, Upstream: "east"}},
		More:      map[string]int{"endpoints": 7},
	}}
	_, body, _ := f.get(t, "/service?host=db.shop.svc.cluster.local&port=http")
	for _, want := range []string{
		"db.shop.svc.cluster.local: 8 endpoints of 1 resource.", "80 http", "STATIC", "10.1.0.1", "r/z",
		`<code>relay services db.shop.svc.cluster.local:http</code>`, "1 of 8; to print all: relay services db.shop.svc.cluster.local:http",
		`href="/ui/resource?kind=networking.istio.io%2FServiceEntry&amp;name=db&amp;namespace=shop"`,
	} {
		if !strings.Contains(html.UnescapeString(body), html.UnescapeString(want)) {
			t.Errorf("no %q in %s", want, body)
		}
	}
	if got := f.asked.Encode(); got != "host=db.shop.svc.cluster.local&port=http" {
		t.Errorf("asked for %s", got)
	}
	f.services = services.Answer{}
	if code, body, _ := f.get(t, "/service?host=db.shop"); code != http.StatusNotFound || !strings.Contains(body, "there is no service db.shop: &#34;relay services --search db&#34; lists hosts like it") {
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
