package admin

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"meshrelay/services"
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
