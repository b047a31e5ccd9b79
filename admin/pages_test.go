package admin

import (
	"math"
	"net/http"
	"strings"
	"testing"
)

// shown is a page that prints its request.
var shown = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
	_, _ = w.Write([]byte("page " + r.URL.Path)) // a recorder takes everything
})

func withPages(d *Deps) { d.Pages = shown }

func TestThePageIsForLoopbackOnly(t *testing.T) {
	f := newFixture(t, Config{}, withPages)
	if body := f.get(t, "/ui/upstreams"); body != "page /ui/upstreams" {
		t.Error(body)
	}
	code, body, _ := f.do(t, request{path: "/ui/", local: "10.0.0.1:15014", remote: "10.0.0.2:4000"})
	if code != http.StatusForbidden || !strings.Contains(body, "kubectl port-forward POD 15014:15014") || strings.Contains(body, "page") && !strings.Contains(body, "the web page is only") {
		t.Errorf("from another host: %d: %s", code, body)
	}
	for _, r := range []request{
		{path: "/ui/", host: "evil.example"}, {path: "/ui/live", host: "evil.example:15014"},
		{path: "/ui/", headers: []string{"Sec-Fetch-Site", "cross-site"}}, {path: "/ui/", headers: []string{"Origin", "http://evil.example"}},
	} {
		if code, body, _ := f.do(t, r); code != http.StatusForbidden {
			t.Errorf("%+v: %d: %s", r, code, body)
		}
	}
	if code, _, _ := f.do(t, request{method: http.MethodPost, path: "/ui/upstreams"}); code != http.StatusMethodNotAllowed {
		t.Errorf("POST: %d", code)
	}
}

func TestPagesDoNotTakeTheSlotsOfDebugDocuments(t *testing.T) {
	f := newFixture(t, Config{}, withPages)
	for range maxDebugRequests {
		f.busy <- struct{}{}
	}
	if code, _, _ := f.do(t, request{path: "/debug/upstreams"}); code != http.StatusServiceUnavailable {
		t.Errorf("a debug document: %d", code)
	}
	if code, body, _ := f.do(t, request{path: "/ui/"}); code != http.StatusOK {
		t.Errorf("a page: %d: %s", code, body)
	}
}

// TestTheVersionTellsOfMemory: a limit of math.MaxInt64 means no limit.
func TestTheVersionTellsOfMemory(t *testing.T) {
	for limit, want := range map[uint64]string{1 << 30: `"memoryLimit": 1073741824`, math.MaxInt64: ""} {
		f := newFixture(t, Config{}, func(d *Deps) {
			d.Memory = func() (uint64, uint64) { return 1 << 20, limit }
		})
		body := f.get(t, "/version")
		if !strings.Contains(body, `"memoryInUse": 1048576`) || !strings.Contains(body, want) || strings.Contains(body, "memoryLimit") != (want != "") {
			t.Errorf("limit %d: %s", limit, body)
		}
	}
}
