package admin

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"testing"

	networking "istio.io/api/networking/v1alpha3"

	"meshrelay/mirror"
	"meshrelay/services"
	"meshrelay/upstreams/intake"
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
	if len(one.Entries) != 2 || one.Entries[1].Upstream != "west" || one.Entries[1].Outcome != services.Shadowed || len(one.Endpoints) != 1 {
		t.Errorf("one: %+v", one)
	}
	if a := ask("?limit=1"); len(a.Services) != 1 || a.More != 2 {
		t.Errorf("limited: %+v", a)
	}
}

func TestMistakesInAQuestionAboutServicesAreTold(t *testing.T) {
	f := newFixture(t, Config{})
	for query, want := range map[string]string{
		"?client=nobody":                          `no client has the connection "nobody"`,
		"?as=A%20B":                               `as is "A B": want a namespace`,
		"?limit=0":                                `limit is "0": want a number from 1 to 100000`,
		"?limit=all":                              `limit is "all"`,
		"?host=" + strings.Repeat("x", 300):       "host, as, search and from have at most 255 characters",
		"?as=" + strings.Repeat("x", 300):         "host, as, search and from have at most 255 characters",
		"?host=db.example.com&port=1":             `service db.example.com has no port "1"`,
		"?host=db.example.com&port=443&subset=v1": `service db.example.com has no subset "v1"`,
	} {
		code, body, _ := f.do(t, request{path: "/debug/services" + query})
		if code != http.StatusBadRequest || !strings.Contains(body, want) {
			t.Errorf("%s: %d %s", query, code, body)
		}
	}
}

// TestConflictsHaveTheFindingsOfServices, unless somebody asks without them, or about another kind.
func TestConflictsHaveTheFindingsOfServices(t *testing.T) {
	web := func(source, name string) *mirror.Resource {
		return resource(t, source, mirror.Key{Kind: serviceEntry, Namespace: "shop", Name: "web"}, packed(t, &networking.ServiceEntry{
			Hosts: []string{"web.example.com"}, Resolution: networking.ServiceEntry_STATIC, Ports: []*networking.ServicePort{{Number: 80, Name: name, Protocol: "HTTP"}},
		}))
	}
	resources, register := mergedAndRegistered(t, web("east", "http"), web("west", ""))
	none := func() []intake.LeftOut { return nil }
	d := NewDebug(Views{Resources: resources, Contests: register.KeyConflicts, HostConflicts: register.HostConflicts, NotFollowed: register.NotFollowed, LeftOut: none})
	for query, want := range map[string]int{"": 1, "kind=se": 1, "kind=vs": 0, "services=false": 0} {
		var out bytes.Buffer
		q, err := url.ParseQuery(query)
		if err != nil {
			t.Fatal(err)
		}
		var all Conflicts
		if err := errors.Join(d.conflicts(&out, q), json.Unmarshal(out.Bytes(), &all)); err != nil {
			t.Fatal(err)
		}
		if len(all.Services) != want || want > 0 && (all.Services[0].Host != "web.example.com" || all.Services[0].Kind != services.NoEndpoints) || all.MoreServices {
			t.Errorf("%q: %+v", query, all)
		}
	}
}
