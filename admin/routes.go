package admin

import (
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/pprof"
	runtimepprof "runtime/pprof"
	"strconv"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"meshrelay/sink"
)

// errorCodes are the status codes of errors. With 405, net/http answers.
var errorCodes = []int{
	http.StatusBadRequest, http.StatusForbidden, http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusConflict,
	http.StatusUnprocessableEntity, http.StatusInternalServerError, http.StatusServiceUnavailable,
}

// maxProfileSeconds bounds the duration of a profile.
const maxProfileSeconds = 300

// route is one endpoint.
type route struct {
	pattern    string   // of http.ServeMux
	parameters []string // all that the handler reads
	handler    http.Handler
}

// routes returns all endpoints. docs/http.md describes the same.
func (s *Server) routes() (all []route) {
	add := func(pattern string, h http.Handler, parameters ...string) {
		all = append(all, route{pattern, parameters, h})
	}
	host := func(pattern string, h http.HandlerFunc, parameters ...string) {
		add(pattern, s.debugOnly(h), parameters...)
	}
	// ask and act answer only over the socket.
	ask := func(pattern string, f func(r *http.Request, upstream string) (any, error), parameters ...string) {
		add(pattern, s.socketOnly(func(w http.ResponseWriter, r *http.Request) {
			answer, err := f(r, r.PathValue("upstream"))
			if err != nil {
				s.refuse(w, r, err)
				return
			}
			s.answer(w, answer)
		}), parameters...)
	}
	act := func(pattern, name string, do action, parameters ...string) {
		parameters = append(parameters[:len(parameters):len(parameters)], "reason")
		add(pattern, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { s.act(w, r, name, parameters, do) }), parameters...)
	}

	add("GET /ready", http.HandlerFunc(s.ready))
	add("GET /healthz", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", textType)
		fmt.Fprintln(w, "ok")
	}))
	add("GET /metrics", promhttp.HandlerFor(s.deps.Gatherer, promhttp.HandlerOpts{
		ErrorLog:            slog.NewLogLogger(s.log.Handler(), slog.LevelWarn),
		MaxRequestsInFlight: maxDebugRequests,
	}))
	host("GET /version", func(w http.ResponseWriter, _ *http.Request) { s.answer(w, s.Version()) })
	add("GET /ui/", http.HandlerFunc(s.pages))
	add("GET /ui", http.RedirectHandler("/ui/", http.StatusSeeOther))
	for _, doc := range documents() {
		h := s.debugOnly(func(w http.ResponseWriter, r *http.Request) {
			_, _ = s.stream(w, r, jsonType, func(out io.Writer) error { return doc.write(s.deps.Debug, out, r.URL.Query()) }) // the error is answered
		})
		if doc.name == "events" {
			h = s.events(h)
		}
		add("GET /debug/"+doc.name, h, doc.parameters...)
	}
	host("GET /debug/loglevel", s.logLevel)
	act("PUT /debug/loglevel", "log-level", s.setLogLevel, "level", "for")

	profile := func(name string, h http.HandlerFunc, parameters ...string) {
		host("GET /debug/pprof/"+name, func(w http.ResponseWriter, r *http.Request) {
			if v := r.FormValue("seconds"); v != "" {
				if n, err := strconv.ParseFloat(v, 64); err != nil || !(n >= 0 && n <= maxProfileSeconds) {
					s.refuse(w, r, badRequestf("seconds is %q: want a number up to %d", v, maxProfileSeconds))
					return
				}
			}
			h(w, r)
		}, parameters...)
	}
	profile("{$}", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", textType)
		fmt.Fprintln(w, "profile\ntrace\ncmdline\nsymbol")
		for _, p := range runtimepprof.Profiles() {
			fmt.Fprintln(w, p.Name())
		}
	})
	profile("profile", pprof.Profile, "seconds")
	profile("trace", pprof.Trace, "seconds")
	profile("cmdline", pprof.Cmdline)
	profile("symbol", pprof.Symbol)
	profile("{name}", func(w http.ResponseWriter, r *http.Request) { pprof.Handler(r.PathValue("name")).ServeHTTP(w, r) }, "seconds")

	for verb, own := range parameters {
		act("POST /upstreams/{upstream}/"+verb, verb, func(_ http.ResponseWriter, r *http.Request, o *order) (any, error) {
			return s.order(r, verb, o)
		}, append(own[:len(own):len(own)], "dryRun")...)
	}
	act("POST /upstreams/{upstream}/serve-without", "serve-without", s.serveWithout)
	ask("GET /held", s.held)
	ask("GET /upstreams/{upstream}/held", s.held)
	ask("GET /upstreams/{upstream}/history", func(_ *http.Request, upstream string) (any, error) {
		revisions, err := s.deps.Controls.History(upstream)
		return notNil(revisions), err
	})
	ask("GET /upstreams/{upstream}/diff", s.diff, "revision")
	act("POST /clusters/{clusters}/release", "release clusters", s.releaseClusters)
	act("POST /clusters/{clusters}/remove", "remove cluster", s.removeCluster, "cluster")
	host("GET /sinks", func(w http.ResponseWriter, r *http.Request) {
		s.answer(w, notNil(s.deps.Sinks.Status(r.URL.Query().Get("name"))))
	}, "name")
	ask("GET /sinks/{sink}/diff", func(r *http.Request, _ string) (any, error) {
		q := r.URL.Query()
		return s.deps.Sinks.Diff(r.Context(), r.PathValue("sink"), sink.Wanted{Kind: q.Get("kind"), Namespace: q.Get("namespace"), Do: q.Get("do"), After: q.Get("after")})
	}, "kind", "namespace", "do", "after")
	for verb, own := range sinkParameters {
		act("POST /sinks/{sink}/"+verb, verb+" sink", func(_ http.ResponseWriter, r *http.Request, o *order) (any, error) {
			return s.sinkOrder(r, verb, o)
		}, own...)
	}
	act("POST /plan", "plan", s.preview)
	act("POST /reload", "reload", s.reload)
	act("GET /state/backup", "backup", s.backup)
	act("GET /support-bundle", "support-bundle", s.supportBundle, "seconds", "resources")
	return all
}

// handle returns the handler of all requests.
func (s *Server) handle() http.Handler {
	mux := http.NewServeMux()
	for _, r := range s.routes() {
		mux.Handle(r.pattern, r.handler)
	}
	return common(mux)
}
