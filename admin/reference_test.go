package admin

import (
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
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

// sourceOf returns the code of this package without tests.
func sourceOf(t *testing.T) (code string) {
	t.Helper()
	paths, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		code += string(text)
	}
	return code
}

// registered returns the patterns that the code registers.
func registered(t *testing.T) (patterns []string) {
	t.Helper()
	code := sourceOf(t)
	for _, m := range regexp.MustCompile(`\("((?:GET|POST|PUT|DELETE|PATCH) /[^"]*)"(\+\S+)?,`).FindAllStringSubmatch(code, -1) {
		switch m[2] {
		case "":
			patterns = append(patterns, m[1])
		case "+doc.name":
			for _, doc := range documents() {
				patterns = append(patterns, m[1]+doc.name)
			}
		case "+verb":
			for verb := range parameters {
				patterns = append(patterns, m[1]+verb)
			}
		case "+path":
			for _, path := range regexp.MustCompile(`\tadd\("([^"]+)", (?:pprof\.|func)`).FindAllStringSubmatch(code, -1) {
				patterns = append(patterns, m[1]+path[1])
			}
		default:
			t.Errorf("the test knows no pattern with %s", m[2])
		}
	}
	for i := range patterns {
		patterns[i] = strings.TrimSuffix(patterns[i], "{$}")
	}
	slices.Sort(patterns)
	return patterns
}

// TestTheHTTPReferenceHasTheErrorsOfTheCode: the status codes from 400 on, and 405, with which net/http answers.
func TestTheHTTPReferenceHasTheErrorsOfTheCode(t *testing.T) {
	page, _ := reference(t)
	code := sourceOf(t) + "http.StatusMethodNotAllowed\n"
	for status := 400; status < 600; status++ {
		name := strings.ReplaceAll(http.StatusText(status), " ", "")
		used := name != "" && regexp.MustCompile(`http\.Status`+name+`\b`).MatchString(code)
		if row := fmt.Sprintf("\n| %d |", status); used != strings.Contains(page, row) {
			t.Errorf("status %d: in the code %v, in docs/http.md %v", status, used, !used)
		}
	}
}

func TestTheHTTPReferenceHasTheEndpointsOfTheCode(t *testing.T) {
	_, rows := reference(t)
	if d := cmp.Diff(registered(t), slices.Sorted(maps.Keys(rows))); d != "" {
		t.Errorf("docs/http.md has other endpoints (-code +http.md):\n%s", d)
	}
}

// TestTheHTTPReferenceHasTheParametersOfTheCode: those of each document and order, and all others somewhere.
func TestTheHTTPReferenceHasTheParametersOfTheCode(t *testing.T) {
	page, rows := reference(t)
	equal := func(endpoint string, want []string) {
		got := slices.Sorted(slices.Values(rows[endpoint].parameters))
		if d := cmp.Diff(slices.Sorted(slices.Values(want)), got); d != "" {
			t.Errorf("docs/http.md, %s (-code +http.md):\n%s", endpoint, d)
		}
	}
	for verb, want := range parameters {
		equal("POST /upstreams/{upstream}/"+verb, append([]string{"reason", "dryRun"}, want...))
	}
	for _, doc := range documents() {
		var want []string
		for _, m := range regexp.MustCompile(`\?(\w+)=`).FindAllStringSubmatch(doc.help, -1) {
			want = append(want, m[1])
		}
		if doc.name == "events" {
			want = eventParameters
		}
		equal("GET /debug/"+doc.name, want)
	}
	code := sourceOf(t)
	for _, m := range regexp.MustCompile(`(?:\.Get\(|FormValue\(|switchOf\([^,]+, )"([a-z]\w*)"`).FindAllStringSubmatch(code, -1) {
		if !strings.Contains(page, "`"+m[1]+"`") {
			t.Errorf("docs/http.md does not have the parameter %s", m[1])
		}
	}
	for endpoint, row := range rows {
		for _, p := range row.parameters {
			if !strings.Contains(code, `"`+p+`"`) {
				t.Errorf("docs/http.md, %s: no code reads %s", endpoint, p)
			}
		}
	}
	_, names, _ := strings.Cut(page, "The documents are ")
	names, _, _ = strings.Cut(names, ".")
	var got []string
	for _, m := range regexp.MustCompile("`(\\w+)`").FindAllStringSubmatch(names, -1) {
		got = append(got, m[1])
	}
	if d := cmp.Diff(xdsNames(), got); d != "" {
		t.Errorf("docs/http.md has other documents over xDS (-code +http.md):\n%s", d)
	}
}

// TestTheHTTPReferenceTellsWhoMayAsk asks each endpoint from another host, over loopback and over the socket.
func TestTheHTTPReferenceTellsWhoMayAsk(t *testing.T) {
	f := newFixture(t, Config{}, func(d *Deps) {
		d.Pages = http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	})
	_, rows := reference(t)
	for endpoint, row := range rows {
		method, path, _ := strings.Cut(endpoint, " ")
		path = strings.NewReplacer("{upstream}", "east", "{clusters}", "fleet", "{name}", "heap").Replace(path)
		slow := strings.HasSuffix(path, "/profile") || strings.HasSuffix(path, "/trace")
		for from, may := range map[string]bool{"another host": row.who == "all", "loopback": row.who != "socket", "the socket": true} {
			r := request{method: method, path: path}
			switch {
			case from == "another host":
				r.local, r.remote, r.host = "10.0.0.1:15014", "10.0.0.2:40000", "relay.example:15014"
			case slow:
				r.path += "?seconds=400" // too many, so that the answer comes at once
			case path == "/support-bundle":
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
