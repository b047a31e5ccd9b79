package admin

import (
	"fmt"
	"maps"
	"net/http"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// described is a row of docs/http.md.
type described struct {
	who        string
	parameters []string
}

// reference returns docs/http.md, and its endpoints.
func reference(t *testing.T) (page string, rows map[string]described) {
	t.Helper()
	text, err := os.ReadFile("../docs/http.md")
	if err != nil {
		t.Fatal(err)
	}
	page, rows = string(text), map[string]described{}
	row := regexp.MustCompile("(?m)^\\| `([A-Z]+ /\\S*)` \\| (\\w+) \\| (.+) \\| .+ \\|$")
	for _, m := range row.FindAllStringSubmatch(page, -1) {
		rows[m[1]] = described{m[2], strings.Split(strings.Trim(m[3], "`-"), "`, `")}
		if m[3] == "-" {
			rows[m[1]] = described{who: m[2]}
		}
	}
	return page, rows
}

// withAll is a fixture with all routes.
func withAll(t *testing.T) *fixture {
	return newFixture(t, Config{}, func(d *Deps) {
		d.Pages = http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	})
}

// TestTheHTTPReferenceHasTheErrorsOfTheCode: the status codes from 400 on.
func TestTheHTTPReferenceHasTheErrorsOfTheCode(t *testing.T) {
	page, _ := reference(t)
	for status := 400; status < 600; status++ {
		if row := fmt.Sprintf("\n| %d |", status); slices.Contains(errorCodes, status) != strings.Contains(page, row) {
			t.Errorf("status %d: in docs/http.md %v, in the code %v", status, strings.Contains(page, row), !strings.Contains(page, row))
		}
	}
	if got := StatusOf(Refuse(http.StatusTeapot, "no coffee")); got != http.StatusInternalServerError {
		t.Errorf("a status that the reference does not have: %d", got)
	}
}

func TestTheHTTPReferenceHasTheEndpointsOfTheCode(t *testing.T) {
	_, rows := reference(t)
	var patterns []string
	for _, r := range withAll(t).routes() {
		patterns = append(patterns, strings.TrimSuffix(r.pattern, "{$}"))
	}
	slices.Sort(patterns)
	if d := cmp.Diff(patterns, slices.Sorted(maps.Keys(rows))); d != "" {
		t.Errorf("docs/http.md has other endpoints (-code +http.md):\n%s", d)
	}
}

// TestTheHTTPReferenceHasTheParametersOfTheCode: those of each endpoint. The fixture of all tests
// sees to it that no request is answered that has a parameter beyond.
func TestTheHTTPReferenceHasTheParametersOfTheCode(t *testing.T) {
	_, rows := reference(t)
	for _, r := range withAll(t).routes() {
		want := slices.Sorted(slices.Values(r.parameters))
		if parameters[path.Base(r.pattern)] != nil && strings.HasPrefix(r.pattern, "POST /upstreams/") { // of each such order, as the text below the table tells
			want = slices.DeleteFunc(want, func(p string) bool { return p == "local" })
		}
		got := slices.Sorted(slices.Values(rows[strings.TrimSuffix(r.pattern, "{$}")].parameters))
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("docs/http.md, %s (-code +http.md):\n%s", r.pattern, d)
		}
	}
}

// TestTheHTTPReferenceTellsWhoMayAsk asks each endpoint from another host, over loopback and over the socket.
func TestTheHTTPReferenceTellsWhoMayAsk(t *testing.T) {
	f := withAll(t)
	_, rows := reference(t)
	for endpoint, row := range rows {
		method, at, _ := strings.Cut(endpoint, " ")
		at = strings.NewReplacer("{upstream}", "east", "{clusters}", "fleet", "{name}", "heap").Replace(at)
		slow := strings.HasSuffix(at, "/profile") || strings.HasSuffix(at, "/trace")
		for from, may := range map[string]bool{"another host": row.who == "all", "loopback": row.who != "socket", "the socket": true} {
			r := request{method: method, path: at}
			switch {
			case from == "another host":
				r.local, r.remote, r.host = "10.0.0.1:15014", "10.0.0.2:40000", "relay.example:15014"
			case slow:
				r.path += "?seconds=400" // too many, so that the answer comes at once
			case at == "/support-bundle":
				r.path += "?seconds=-1"
			}
			if from == "the socket" {
				r.peer = &peer{}
			}
			code, body, _ := f.do(t, r)
			if may == (code == http.StatusForbidden) || code == http.StatusMethodNotAllowed || strings.HasPrefix(body, "404 page") {
				t.Errorf("docs/http.md has %s for %s: it is answered from %s with %d %.200s", endpoint, row.who, from, code, body)
			}
		}
	}
}
