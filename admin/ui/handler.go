package ui

import (
	"bytes"
	"embed"
	"fmt"
	"hash/maphash"
	"html/template"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"meshrelay/admin"
	"meshrelay/admin/view"
	"meshrelay/internal/visible"
	"meshrelay/upstreams"
)

const (
	// Path is the path of the pages.
	Path = "/ui"

	// maxPages is the most pages that are made at the same time. patience is how long a request waits.
	maxPages = 4
	patience = 10 * time.Second

	// policy allows a page to load only its own files, and to send searches only to its own server.
	policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)

//go:embed templates/*.html
var templateFiles embed.FS

// Pages makes and serves the pages. Run updates open pages; requests are answered without it, too.
type Pages struct {
	data     Data
	server   Server
	mux      *http.ServeMux
	template *template.Template
	assets   map[string]asset
	paths    map[string]string // the paths of assets, by file name
	slots    chan struct{}
	last     atomic.Pointer[looked]
	streams  atomic.Int32  // of open pages
	opened   chan struct{} // one slot: a page has opened
	seed     maphash.Seed
	now      func() time.Time
}

// builder makes one page.
type builder func(*request) (*Page, error)

// New returns the pages that show data.
func New(data Data) (*Pages, error) {
	p := &Pages{data: data, mux: http.NewServeMux(), slots: make(chan struct{}, maxPages), opened: make(chan struct{}, 1), seed: maphash.MakeSeed(), now: time.Now}
	p.last.Store(&looked{newer: make(chan struct{})})
	var err error
	if p.assets, p.paths, err = loadAssets(); err != nil {
		return nil, err
	}
	p.template, err = template.New("").Funcs(template.FuncMap{
		"ago":   func(t, now time.Time) string { return view.Ago(t, now) },
		"left":  func(t, now time.Time) string { return view.Age(max(t.Sub(now), 0)) },
		"iso":   func(t time.Time) string { return t.UTC().Format(time.RFC3339) },
		"words": func(s []string) string { return strings.Join(s, " ") },
		"args":  func(of any, now time.Time) arguments { return arguments{of, now} },
		"here":  p.here,
	}).ParseFS(templateFiles, "templates/*.html")
	if err != nil {
		return nil, err
	}
	for path, build := range map[string]builder{
		"/{$}": p.overview, "/upstreams": p.upstreamList, "/upstreams/{name}": p.upstreamPage,
		"/services": p.serviceList, "/service": p.servicePage,
		"/resources": p.resourceList, "/resource": p.resourcePage, "/clients": p.clientList, "/client": p.clientPage,
		"/conflicts": p.conflictPage,
		"/events":    p.eventList, "/events/{name}": p.eventPage,
	} {
		p.mux.Handle("GET "+Path+path, p.page(build))
	}
	p.mux.HandleFunc("GET "+Path+"/live", p.live)
	p.mux.HandleFunc("GET "+Path+"/assets/", p.asset)
	p.mux.Handle("GET "+Path+"/", p.page(func(r *request) (*Page, error) {
		return nil, notFound("There is no page %.64q.", r.path)
	}))
	return p, nil
}

// ShowServer sets the admin server. Call it before the first request. New can not take the server, because the
// server needs the Pages.
func (p *Pages) ShowServer(server Server) { p.server = server }

// ServeHTTP implements http.Handler. The caller must check the origin of the request first.
func (p *Pages) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	setHeaders(w.Header())
	p.mux.ServeHTTP(w, r)
}

// setHeaders sets the headers that keep other sites from framing or reading a page, and browsers from
// storing it.
func setHeaders(h http.Header) {
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Frame-Options", "DENY")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cache-Control", "no-store")
}

// page serves one page. It makes at most maxPages at a time; other requests wait.
func (p *Pages) page(build builder) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		late := time.NewTimer(patience)
		defer late.Stop()
		select {
		case p.slots <- struct{}{}:
		case <-req.Context().Done():
			return
		case <-late.C:
			w.Header().Set("Retry-After", "5")
			http.Error(w, "too many pages are being made; try again", http.StatusServiceUnavailable)
			return
		}
		send := p.made(req, build)
		send(w) // the slot is free again: the client may read slowly
	})
}

// made makes a page, frees the slot, and returns a function that sends the page.
func (p *Pages) made(req *http.Request, build builder) (send func(http.ResponseWriter)) {
	defer func() { <-p.slots }()
	r := &request{path: strings.TrimPrefix(req.URL.Path, Path), name: req.PathValue("name"), query: req.URL.Query(), now: p.now()}
	r.version, r.ready, r.ups = p.server.Version(), p.server.Readiness(), p.data.Upstreams()
	word, level := view.Ready(r.ready)
	r.head = say(level, word)
	err := r.check()
	var page *Page
	if err == nil {
		page, err = build(r)
	}
	code := http.StatusOK
	if err != nil {
		page, code = failed(err)
	}
	return p.render(r, page, code)
}

// failed returns the page and the HTTP status for an error.
func failed(err error) (*Page, int) {
	code := admin.StatusOf(err)
	return &Page{Title: http.StatusText(code), Lead: say(view.Bad, err.Error()), Command: "relay status"}, code
}

// arguments are the arguments of a nested template.
type arguments struct {
	Of  any
	Now time.Time
}

// Entry is a page in the navigation. The keys g and Key open it.
type Entry struct {
	Link
	Key     string
	Current bool
}

// Nav lists the pages, and marks the current one.
func (s shell) Nav() []Entry {
	all := []Entry{
		{Link{"Overview", "/"}, "o", s.Path == "/"}, {Link{"Upstreams", "/upstreams"}, "u", false}, {Link{"Clients", "/clients"}, "c", false}, {Link{"Services", "/services"}, "s", false}, {Link{"Resources", "/resources"}, "r", false},
		{Link{"Timeline", "/events"}, "t", false}, {Link{"Conflicts", "/conflicts"}, "x", false},
	}
	for i := range all[1:] {
		e := &all[1+i]
		e.Current = strings.HasPrefix(s.Path, strings.TrimSuffix(e.Href, "s"))
	}
	return all
}

// shell is the argument of the template.
type shell struct {
	*Page
	Version admin.Version
	Ready   State
	// Holds is the number of holds that wait for a decision.
	Holds int
	Now   time.Time
	// Path is the path of the page, below Path.
	Path   string
	Assets map[string]string
}

// render returns a function that answers with a page. It escapes characters that control a terminal or change the
// direction of text.
func (p *Pages) render(r *request, page *Page, code int) (send func(http.ResponseWriter)) {
	holds := countIf(r.ups, func(u upstreams.Status) bool { return u.Held != nil })
	var out bytes.Buffer
	clean := visible.NewWriter(&out)
	err := p.template.ExecuteTemplate(clean, "page.html", shell{page, r.version, r.head, holds, r.now, r.path, p.paths})
	if err == nil {
		err = clean.Close()
	}
	return func(w http.ResponseWriter) {
		if err != nil {
			http.Error(w, fmt.Sprintf("the page can not be made: %v", err), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		w.WriteHeader(code)
		_, _ = w.Write(out.Bytes()) // the client may have gone
	}
}
