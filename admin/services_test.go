package admin

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	networking "istio.io/api/networking/v1alpha3"

	"meshrelay/mirror"
	"meshrelay/services"
	"meshrelay/trouble"
	"meshrelay/upstreams"
	"meshrelay/upstreams/intake/records"
)

// TestServicesAreThoseOfTheViewOfAClient: everything without a client, what the client sees with one, and shadowed copies.
func TestServicesAreThoseOfTheViewOfAClient(t *testing.T) {
	f := newFixture(t, Config{})
	ask := func(query string) (a services.Answer) {
		t.Helper()
		code, body, _ := f.do(t, request{path: "/debug/services" + query})
		if err := json.Unmarshal([]byte(body), &a); err != nil || code != http.StatusOK {
			t.Fatalf("%s: %d %s", query, code, body)
		}
		return a
	}
	hosts := func(a services.Answer) string {
		var all []string
		for _, s := range a.Services {
			all = append(all, s.Host)
		}
		return strings.Join(all, " ")
	}
	if got := hosts(ask("")); got != "cache.example.com db.example.com ledger.example.com" {
		t.Errorf("all: %s", got)
	}
	if got := hosts(ask("?client=few")); got != "ledger.example.com other.example.com" {
		t.Errorf("of a client: %s", got)
	}
	one := ask("?host=db.example.com").Services[0]
	if len(one.Entries) != 1 || one.Entries[0].Upstream != "east" {
		t.Errorf("one: %+v", one)
	}
	if a := ask("?limit=1"); len(a.Services) != 1 || a.More != 2 {
		t.Errorf("limited: %+v", a)
	}
}

func TestMistakesInAQuestionAboutServicesAreTold(t *testing.T) {
	f := newFixture(t, Config{})
	for query, want := range map[string]string{
		"?client=nobody":                    `no client has the connection "nobody"`,
		"?limit=0":                          `limit is "0": want a number from 1 to 100000`,
		"?limit=all":                        `limit is "all"`,
		"?host=" + strings.Repeat("x", 300): "host, search and from have at most 255 characters",
		"?host=db.example.com&port=1":       `service db.example.com has no port "1"`,
	} {
		code, body, _ := f.do(t, request{path: "/debug/services" + query})
		if code != http.StatusBadRequest || !strings.Contains(body, want) {
			t.Errorf("%s: %d %s", query, code, body)
		}
	}
}

// TestWhatComesFromASourceOutOfContactIsMarked in services, versions and explanations: also where a relay tells that one behind it
// is.
func TestWhatComesFromASourceOutOfContactIsMarked(t *testing.T) {
	f := newFixture(t, Config{})
	f.sources = append(f.sources, upstreams.Status{Name: "west", State: upstreams.StateDisconnected, ContactLost: created})
	for host, want := range map[string]bool{"ledger.example.com": true, "db.example.com": false, "cache.example.com": false} {
		var a services.Answer
		if err := json.Unmarshal([]byte(f.get(t, "/debug/services?host="+host)), &a); err != nil || len(a.Services[0].Entries) != 1 {
			t.Fatalf("%+v, %v", a, err)
		}
		if got := a.Services[0].Entries[0].ContactLost.Equal(created); got != want {
			t.Errorf("%s: %+v", host, a)
		}
	}
	var versions []ConfigVersion
	if err := json.Unmarshal([]byte(f.get(t, "/debug/versions")), &versions); err != nil {
		t.Fatal(err)
	}
	for _, v := range versions {
		if west := v.Name == "ledger" || v.Name == "w"; v.ContactLost.Equal(created) != west {
			t.Errorf("%+v", v)
		}
	}
	key := mirror.Key{Kind: serviceEntry, Namespace: "bank", Name: "ledger"}
	f.traces = map[mirror.Key][]records.Trace{key: {{Upstream: "west", Original: key, Key: key, Resource: entry(t, "west", "bank", "ledger", "ledger.example.com")}}}
	var e Explanation
	if err := json.Unmarshal([]byte(f.get(t, "/debug/explain?kind=se&namespace=bank&name=ledger")), &e); err != nil || len(e.Sources) != 1 || !e.Sources[0].ContactLost.Equal(created) {
		t.Errorf("%+v, %v", e, err)
	}
	f.sources[1].ContactLost = time.Time{}
	f.sources[1].Told.Problems = []trouble.Problem{
		{What: trouble.Held, Upstream: "files", Relays: []string{"far"}, Since: created},
		{What: "disconnected", Upstream: "files", Relays: []string{"far"}, Since: created},
	}
	lost := f.deps.Debug.contactLost()
	for from, want := range map[string]bool{"files via far": true, "other via far": false, "files via near": false} {
		r, err := mirror.New(mirror.Spec{Key: key, Source: "west", Body: packed(t, &networking.ServiceEntry{}), Annotations: map[string]string{mirror.ProvenanceAnnotation: from}})
		if err != nil {
			t.Fatal(err)
		}
		if got := lost(r).Equal(created); got != want {
			t.Errorf("%s: %v", from, got)
		}
	}
}
