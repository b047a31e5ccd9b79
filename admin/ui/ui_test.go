package ui

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"html"
	"net/http"
	"net/http/httptest"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"meshrelay/admin"
	"meshrelay/downstream"
	"meshrelay/events"
	"meshrelay/federation/conflicts"
	"meshrelay/internal/kube"
	"meshrelay/internal/testing/await"
	"meshrelay/services"
	"meshrelay/state"
	"meshrelay/upstreams"
	"meshrelay/upstreams/intake"
	"meshrelay/upstreams/kubernetes/clusters"
	"meshrelay/upstreams/kubernetes/clusters/registry"
)

// evil is a text that an upstream or a client may send.
const evil = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>\u202egnp.exe\u2066\u200b\x1b[31m"

// fill puts evil into each text of a value.
func fill(v reflect.Value, depth int) {
	if depth > 8 || !v.CanSet() {
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(evil)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), depth+1)
	case reflect.Slice:
		if v.Type().Elem().Kind() != reflect.Uint8 { // raw JSON is filled elsewhere
			v.Set(reflect.MakeSlice(v.Type(), 2, 2))
			for i := range 2 {
				fill(v.Index(i), depth+1)
			}
		}
	case reflect.Map:
		if v.Type().Key().Kind() == reflect.String {
			v.Set(reflect.MakeMap(v.Type()))
			value := reflect.New(v.Type().Elem()).Elem()
			fill(value, depth+1)
			if value.CanInt() {
				value.SetInt(1)
			}
			v.SetMapIndex(reflect.ValueOf(evil).Convert(v.Type().Key()), value)
		}
	case reflect.Struct:
		if v.Type() != reflect.TypeFor[time.Time]() {
			for i := range v.NumField() {
				fill(v.Field(i), depth+1)
			}
		}
	case reflect.Int:
		v.SetInt(1)
	}
}

func evilOf[T any]() (v T) {
	fill(reflect.ValueOf(&v).Elem(), 0)
	return v
}

func TestTextFromOutsideStaysText(t *testing.T) {
	f := newFixture(t, 10)
	u := evilOf[upstreams.Status]()
	u.Name = "east"
	f.ups = append([]upstreams.Status{u}, evilOf[upstreams.Status]())
	f.ready, f.clients = evilOf[admin.Readiness](), []downstream.ClientStatus{evilOf[downstream.ClientStatus]()}
	f.clients[0].Connection = "client-7"
	f.contests, f.hosts = []conflicts.KeyConflict{evilOf[conflicts.KeyConflict]()}, []conflicts.HostConflict{evilOf[conflicts.HostConflict]()}
	f.held, f.revisions = []intake.HeldUpstream{evilOf[intake.HeldUpstream]()}, []state.Revision{evilOf[state.Revision]()}
	e := evilOf[admin.Explanation]()
	e.Outcome = admin.Served
	e.Served.Spec = []byte(`{"a":"<script>alert(1)</script>` + "\u202e" + `"}`)
	e.Sources[0].From = &kube.Object{Kind: evil, Spec: []byte(`{"a":"</code><script>alert(1)</script>"}`)}
	e.Sources[1].From = nil
	f.explained = &e
	f.services = evilOf[services.Answer]()
	f.journal = []events.Event{evilOf[events.Event]()}
	f.journal[0].Seq = 1
	f.apart = evil
	f.clusters = []clusters.Status{evilOf[clusters.Status]()}
	f.clusters[0].Clusters[0].State, f.clusters[0].Clusters[1].State = registry.Held, registry.Orphaned
	all := append(paths(), "/resources?q="+queryOf("<script>alert(1)</script>"), "/events?q="+queryOf(evil), "/upstreams/"+pathOf("<script>alert(1)</script>"), "/nothing/"+pathOf("<img>"))
	shown := 0
	for _, path := range all {
		_, body, _ := f.get(t, path)
		for _, bad := range []string{"<script>alert", "<img", "\u202e", "\u2066", "\u200b", "\x1b"} {
			if i := strings.Index(body, bad); i >= 0 {
				t.Errorf("%s: %q in …%q", path, bad, body[max(0, i-80):min(len(body), i+80)])
			}
		}
		if strings.Contains(body, "javascript:") {
			t.Errorf("%s: a link runs a script", path)
		}
		if strings.Contains(body, "&lt;script&gt;alert") {
			shown++
		}
	}
	if shown < len(all)-3 { // some pages show no untrusted text
		t.Errorf("only %d of %d pages show what they were given", shown, len(all))
	}
}

func TestThePageKeepsToItself(t *testing.T) {
	f := newFixture(t, 1)
	for _, path := range append(paths(), "/nothing", "/assets/none/x.js") {
		_, body, header := f.get(t, path)
		want := map[string]string{
			"Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
			"X-Frame-Options":         "DENY", "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer",
			"Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Resource-Policy": "same-origin", "Cache-Control": "no-store",
		}
		for name, value := range want {
			if got := header.Get(name); got != value {
				t.Errorf("%s: %s is %q", path, name, got)
			}
		}
		for _, bad := range []string{" style=", " onclick=", "<style", "http://", "https://", "method=\"post\""} {
			if strings.Contains(body, bad) {
				t.Errorf("%s has %q", path, bad)
			}
		}
	}
}

func TestOnlyGETAndHEADAreAnswered(t *testing.T) {
	f := newFixture(t, 1)
	for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodDelete, http.MethodPatch} {
		for _, path := range append(paths(), "/live") {
			w := httptest.NewRecorder()
			f.ServeHTTP(w, httptest.NewRequest(method, Path+path, nil))
			if w.Code != http.StatusMethodNotAllowed {
				t.Errorf("%s %s: %d", method, path, w.Code)
			}
		}
	}
	w := httptest.NewRecorder()
	f.ServeHTTP(w, httptest.NewRequest(http.MethodHead, Path+"/", nil))
	if w.Code != http.StatusOK {
		t.Errorf("HEAD: %d", w.Code)
	}
}

func TestBadParametersAreRefused(t *testing.T) {
	f := newFixture(t, 1)
	for path, code := range map[string]int{
		"/resources?q=" + strings.Repeat("x", 600): 400, "/resources?after=x": 400, "/resources?q=%ff": 400, "/events?at=yesterday": 400, "/events?type=none": 400, "/events?window=-1h": 400, "/events?before=x": 400,
		"/upstreams/nobody": 404, "/client?id=nobody": 404, "/events/none": 404, "/events/99": 404, "/nothing": 404,
		"/upstreams?from=-5": 200, "/upstreams?from=99999999": 200, "/clients?from=x": 200, "/events?at=03:12": 200, "/events?at=2026-11-21+03:12&window=1h": 200,
	} {
		if got, body, _ := f.get(t, path); got != code {
			t.Errorf("%s: %d: %s", path, got, body[:min(len(body), 200)])
		}
	}
}

func TestOpenPagesAreBounded(t *testing.T) {
	f := newFixture(t, 1)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	open := func() int {
		w := httptest.NewRecorder()
		f.ServeHTTP(w, httptest.NewRequestWithContext(gone, http.MethodGet, Path+"/live", nil))
		return w.Code
	}
	f.streams.Store(maxStreams - 1)
	if open() != http.StatusOK {
		t.Fatal("refused before the bound")
	}
	f.streams.Add(1)
	for range 2 { // a refused one counts for nothing
		if open() != http.StatusServiceUnavailable {
			t.Error("one more than the bound")
		}
	}
	f.streams.Add(-1)
	if open() != http.StatusOK {
		t.Error("refused although one has closed")
	}
	_ = f.Run(gone)
	if open() != http.StatusServiceUnavailable {
		t.Error("open after the end")
	}
}

// TestHintsComeTogether when the connection of a page was stuck.
func TestHintsComeTogether(t *testing.T) {
	f := newFixture(t, 1)
	f.tell(map[string]uint64{topicUpstreams: 1, topicClients: 1, topicEvents: 1}, false)
	seen := f.last.Load()
	f.tell(map[string]uint64{topicUpstreams: 2, topicClients: 1, topicEvents: 1}, false)
	f.tell(map[string]uint64{topicUpstreams: 2, topicClients: 2, topicEvents: 1}, false) // the first was not read
	<-seen.newer
	if got := f.last.Load().changed(seen); !slices.Equal(got, []string{topicUpstreams, topicClients}) {
		t.Errorf("got %q", got)
	}
}

// TestOpenPagesOfAnIdleRelayAreToldNothing opens ten pages for ten minutes. The relay checks at most once a second for
// all of them, sends nothing, and does not check when no page is open.
func TestOpenPagesOfAnIdleRelayAreToldNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 10)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { _ = f.Run(ctx); close(done) }()
		await.Settle(time.Minute)
		if f.looks.Load() != 0 {
			t.Errorf("%d looks without a page", f.looks.Load())
		}
		pages := make([]*httptest.ResponseRecorder, 10)
		var open sync.WaitGroup
		for i := range pages {
			pages[i] = httptest.NewRecorder()
			open.Go(func() { f.ServeHTTP(pages[i], httptest.NewRequest(http.MethodGet, Path+"/live", nil)) })
		}
		await.Settle(10 * time.Minute)
		if f.looks.Load() == 0 || f.looks.Load() > 620 {
			t.Errorf("%d looks in ten minutes", f.looks.Load())
		}
		for _, p := range pages {
			if strings.Contains(p.Body.String(), "changed") {
				t.Errorf("told %q", p.Body)
			}
		}
		f.changes.Add(1)
		await.Settle(2 * time.Second)
		for _, p := range pages {
			if strings.Count(p.Body.String(), "event: changed\ndata: "+topicResources+"\n\n") != 1 {
				t.Error("a change was not told")
			}
		}
		cancel()
		<-done
		open.Wait() // the streams end, too
	})
}

// TestVendoredFilesArePinned compares the vendored files with their checksums.
func TestVendoredFilesArePinned(t *testing.T) {
	for _, dir := range []string{"vendor", "../uitest/axe"} {
		sums, err := os.ReadFile(dir + "/SHA256SUMS")
		if err != nil {
			t.Fatal(err)
		}
		pinned := map[string]string{}
		for line := range strings.Lines(string(sums)) {
			sum, name, _ := strings.Cut(strings.TrimSpace(line), "  ")
			pinned[name] = sum
		}
		files, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			if file.Name() == "SHA256SUMS" {
				continue
			}
			content, err := os.ReadFile(dir + "/" + file.Name())
			if err != nil {
				t.Fatal(err)
			}
			if sum := sha256.Sum256(content); hex.EncodeToString(sum[:]) != pinned[file.Name()] {
				t.Errorf("%s/%s is not the file that is pinned", dir, file.Name())
			}
			delete(pinned, file.Name())
		}
		for name := range pinned {
			t.Errorf("%s/%s is missing", dir, name)
		}
	}
}

func TestWordsForAShellAreQuoted(t *testing.T) {
	for in, want := range map[string]string{"east": "east", "": "''", "a b": "'a b'", "$(rm x)": "'$(rm x)'", "it's": `'it'\''s'`} {
		if got := word(in); got != want {
			t.Errorf("%q: %s, want %s", in, got, want)
		}
	}
}

// stuck is a client that reads nothing until it is released.
type stuck struct {
	http.ResponseWriter
	writing chan<- struct{}
	release <-chan struct{}
}

func (s stuck) Write(b []byte) (int, error) {
	s.writing <- struct{}{}
	<-s.release
	return len(b), nil
}

func TestSlowReadersTakeNoSlots(t *testing.T) {
	f := newFixture(t, 1)
	writing, release := make(chan struct{}), make(chan struct{})
	var readers sync.WaitGroup
	for range maxPages {
		readers.Go(func() {
			f.ServeHTTP(stuck{httptest.NewRecorder(), writing, release}, httptest.NewRequest(http.MethodGet, Path+"/conflicts", nil))
		})
		<-writing
	}
	if n := len(f.slots); n != 0 {
		t.Errorf("%d slots are taken by readers", n)
	}
	close(release)
	readers.Wait()
}

// TestTheCommandOfATimelineAsksForTheSame as the form does, so that both show the same events.
func TestTheCommandOfATimelineAsksForTheSame(t *testing.T) {
	f := newFixture(t, 1)
	for path, want := range map[string]string{
		"/events": "relay events",
		"/events?at=2026-11-21+03:12&window=10m&upstream=east&type=held,released&q=a+b": "relay events --type held,released --upstream east --search 'a b' --since 2026-11-21T03:07:00Z --until 2026-11-21T03:17:00Z",
	} {
		if code, body, _ := f.get(t, path); code != http.StatusOK || !strings.Contains(html.UnescapeString(body), "<code>"+want+"</code>") {
			t.Errorf("%s: %d, no %s in it", path, code, want)
		}
	}
}

// TestTheTimelineTellsHowManyToolsItLeavesOut, and links to them, so that no client can hide behind a name.
func TestTheTimelineTellsHowManyToolsItLeavesOut(t *testing.T) {
	f := newFixture(t, 1)
	for range 25 {
		f.journal = append(f.journal, events.Event{Seq: 7, Time: testNow, Type: events.Connected, Client: "waypoint~1.2.3.4~relay-get.shop~x-7", Tool: true})
	}
	f.journal = append(f.journal, events.Event{Seq: 8, Time: testNow, Type: events.Held, Upstream: "east", Text: "the accident"})
	_, body, _ := f.get(t, "/events?window=1h")
	if !strings.Contains(body, "the accident") || strings.Contains(body, "relay-get.shop") ||
		!strings.Contains(body, `href="/ui/events?tools=true&amp;window=1h">left out: 25 events of commands`) {
		t.Errorf("%s", body)
	}
	if _, body, _ = f.get(t, "/events?tools=true"); !strings.Contains(body, "relay-get.shop") || strings.Contains(body, "left out") {
		t.Errorf("with tools: %s", body)
	}
	if _, body, _ = f.get(t, "/"); !strings.Contains(body, "the accident") || strings.Contains(body, "relay-get.shop") {
		t.Errorf("overview: %s", body)
	}
}

func TestAChangeNamesTheHistoryOfItsUpstream(t *testing.T) {
	f := newFixture(t, 1)
	f.journal = []events.Event{{Seq: 7, Time: testNow, Type: events.Changed, Upstream: "east", Text: "1 changed"}}
	if _, body, _ := f.get(t, "/events/7"); !strings.Contains(body, "relay history east<") {
		t.Error(body)
	}
}
