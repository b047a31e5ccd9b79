package admin

import (
	"fmt"
	"io"
	"net/http"
)

// maxProfileSeconds bounds the duration of a profile.
const maxProfileSeconds = 300

// document serves a debug document.
func (s *Server) document(doc document) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		_, _ = s.stream(w, r, jsonType, func(out io.Writer) error { return doc.write(s.deps.Debug, out, r.URL.Query()) }) // the error is answered
	}
}

func (s *Server) index(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", textType)
	fmt.Fprintf(w, "relay %s\n\n", s.deps.Build.Version)
	line := func(path, help string) { fmt.Fprintf(w, "%-20s %s\n", path, help) }
	line("/ready", "200 when clients are served, otherwise 503, with the reasons")
	line("/healthz", "200 while the process runs")
	line("/metrics", "Metrics for Prometheus")
	if s.deps.Pages != nil {
		line("/ui/", "Web page; over loopback only")
	}
	line("/version", "Version of this program, and its Unix socket")
	for _, doc := range documents() {
		line("/debug/"+doc.name, doc.help)
	}
	line("/debug/loglevel", "Log level")
	line("/sinks", "State of the sinks; ?name= of one")
	line("/debug/pprof/", "Profiles for go tool pprof; over loopback only")
	fmt.Fprint(w, "\nOver the Unix socket only:\n\n")
	line("/debug/loglevel", "PUT ?level=debug sets the log level; for=10m limits the time")
	line("/upstreams/NAME/…", "POST freeze, unfreeze, release, rollback?to=REVISION; GET history")
	line("/clusters/NAME/…", "POST release, remove?cluster=ID")
	line("/sinks/NAME/…", "POST freeze, unfreeze, release?hold=ID, prune; GET diff?kind=&namespace=&do=&after=")
	line("/reload", "POST: load the config file again")
	line("/plan/sinks", "POST a config file: what it would change for the sinks; it changes nothing")
	line("/state/backup", "Copy of the state on disk")
	line("/support-bundle", "Archive for a bug report, without secrets; ?seconds= of CPU profile, ?resources=true adds resources")
}
