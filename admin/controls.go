package admin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"

	"meshrelay/internal/errlist"
	"meshrelay/state"
	"meshrelay/upstreams"
)

// Controls are the orders of operators about upstreams. Errors that wrap
// upstreams.ErrUnknownUpstream or upstreams.ErrNotPossible get an HTTP status of their own. The
// methods may be called from any goroutine.
type Controls interface {
	// Freeze keeps the resources of an upstream as they are, Unfreeze ends that.
	Freeze(ctx context.Context, upstream string, o upstreams.Order) (upstreams.Effect, error)
	Unfreeze(ctx context.Context, upstream string, o upstreams.Order) (upstreams.Effect, error)
	// Release carries out deletions that the guard holds.
	Release(ctx context.Context, upstream string, o upstreams.Order) (upstreams.Effect, error)
	// Rollback freezes an upstream at a revision.
	Rollback(ctx context.Context, upstream string, o upstreams.Order) (upstreams.Effect, error)
	// ServeWithout ends the wait of clients for an upstream.
	ServeWithout(ctx context.Context, upstream string) error
	// Held returns what the guards hold: of one upstream, or of all when its name is empty.
	Held(upstream string) ([]upstreams.HeldUpstream, error)
	// History returns the revisions, newest first.
	History(upstream string) ([]state.Revision, error)
}

// Controlled is the state of an upstream after an order.
type Controlled struct {
	upstreams.Status
	// KeepsState tells that the relay keeps state, so that the order outlives a restart.
	KeepsState bool `json:"keepsState"`
	// DryRun tells that nothing has changed: Effect is what would change.
	DryRun bool             `json:"dryRun,omitempty"`
	Effect upstreams.Effect `json:"effect"`
}

// maxLogged bounds one parameter in the log, in bytes.
const maxLogged = 256

// addControls adds the handlers that change the relay, or return all of its state. They are for
// connections over the socket only.
func (s *Server) addControls(mux *http.ServeMux) {
	type doing = func(ctx context.Context, upstream string, o upstreams.Order) (upstreams.Effect, error)
	on := func(verb string, does func(Controls) doing) {
		mux.Handle("POST /upstreams/{upstream}/"+verb, s.socketOnly(func(w http.ResponseWriter, r *http.Request) {
			name := r.PathValue("upstream")
			if !s.controllable(w, name) {
				return
			}
			o, err := orderOf(verb, r.URL.Query())
			var effect upstreams.Effect
			attrs := []any{"upstream", name}
			if o.Reason != "" {
				attrs = append(attrs, "reason", o.Reason)
			}
			if o.DryRun {
				attrs = append(attrs, "dryRun", true)
			}
			for _, parameter := range parameters[verb] {
				if given := strings.Join(r.URL.Query()[parameter], " "); given != "" {
					attrs = append(attrs, parameter, given[:min(len(given), maxLogged)])
				}
			}
			if err == nil {
				err = s.write(r, verb, func() error {
					effect, err = does(s.deps.Controls)(r.Context(), name, o)
					return err
				}, attrs...)
			}
			if err != nil {
				s.refuse(w, r, err)
				return
			}
			now := s.upstream(name)
			if now == nil { // a reload has removed it
				http.Error(w, s.unknown(name), http.StatusNotFound)
				return
			}
			s.answer(w, Controlled{*now, s.deps.Backup != nil, o.DryRun, effect})
		}))
	}
	on("freeze", func(c Controls) doing { return c.Freeze })
	on("unfreeze", func(c Controls) doing { return c.Unfreeze })
	on("release", func(c Controls) doing { return c.Release })
	on("rollback", func(c Controls) doing { return c.Rollback })
	mux.Handle("POST /upstreams/{upstream}/serve-without", s.socketOnly(s.serveWithout))
	mux.Handle("GET /held", s.socketOnly(s.held))
	mux.Handle("GET /upstreams/{upstream}/held", s.socketOnly(s.held))
	mux.Handle("GET /upstreams/{upstream}/history", s.socketOnly(func(w http.ResponseWriter, r *http.Request) {
		name := r.PathValue("upstream")
		if !s.controllable(w, name) {
			return
		}
		revisions, err := s.deps.Controls.History(name)
		if err != nil {
			s.refuse(w, r, err)
			return
		}
		s.answer(w, notNil(revisions))
	}))
	mux.Handle("POST /reload", s.socketOnly(s.reload))
	mux.Handle("PUT /debug/loglevel", s.socketOnly(s.setLogLevel))
	mux.Handle("GET /state/backup", s.socketOnly(s.backup))
}

// held answers with what the guards hold.
func (s *Server) held(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("upstream")
	switch {
	case name != "" && !s.controllable(w, name):
		return
	case s.deps.Controls == nil:
		http.Error(w, noControls, http.StatusConflict)
		return
	}
	held, err := s.deps.Controls.Held(name)
	if err != nil {
		s.refuse(w, r, err)
		return
	}
	s.answer(w, notNil(held))
}

const noControls = "this relay's upstreams can not be controlled"

// controllable reports whether there are controls and an upstream of that name. If not it
// answers the request.
func (s *Server) controllable(w http.ResponseWriter, name string) bool {
	switch {
	case s.deps.Controls == nil:
		http.Error(w, noControls, http.StatusConflict)
		return false
	case s.upstream(name) == nil:
		http.Error(w, s.unknown(name), http.StatusNotFound)
		return false
	}
	return true
}

func (s *Server) upstream(name string) *upstreams.Status {
	all := s.deps.Debug.views.Upstreams()
	i := slices.IndexFunc(all, func(u upstreams.Status) bool { return u.Name == name })
	if i < 0 {
		return nil
	}
	return &all[i]
}

func (s *Server) unknown(name string) string {
	var names []string
	for _, u := range s.deps.Debug.views.Upstreams() {
		names = append(names, u.Name)
	}
	return fmt.Sprintf("there is no upstream %.64q: there are %s", name, strings.Join(names, ", "))
}

// write carries out one change at a time, and logs who did it.
func (s *Server) write(r *http.Request, action string, do func() error, attrs ...any) error {
	select {
	case s.writing <- struct{}{}:
		defer func() { <-s.writing }()
	case <-r.Context().Done():
		return r.Context().Err()
	}
	err := do()
	if isBadRequest(err) {
		return err
	}
	if err != nil {
		attrs = append(attrs, "err", strings.Join(errlist.Lines(err), "; "))
	}
	s.audit(r, s.deps.LogLevel.Level(), action, attrs...)
	return err
}

// audit logs an action of an operator, at a level that is always shown.
func (s *Server) audit(r *http.Request, level slog.Level, action string, attrs ...any) {
	who := peerOf(r.Context())
	s.log.Log(r.Context(), max(level, slog.LevelInfo), "operator", append([]any{"action", action, "uid", who.UID, "pid", who.PID}, attrs...)...)
}

// refuse answers with an error.
func (s *Server) refuse(w http.ResponseWriter, r *http.Request, err error) {
	code := http.StatusInternalServerError
	switch {
	case isBadRequest(err):
		code = http.StatusBadRequest
	case errors.Is(err, upstreams.ErrUnknownUpstream):
		http.Error(w, s.unknown(r.PathValue("upstream")), http.StatusNotFound)
		return
	case errors.Is(err, upstreams.ErrNotPossible):
		code = http.StatusConflict
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		code = http.StatusServiceUnavailable
	}
	http.Error(w, err.Error(), code)
}

func (s *Server) answer(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", jsonType)
	_ = writeJSON(w, v) // whoever asked may have gone
}

func (s *Server) reload(w http.ResponseWriter, r *http.Request) {
	if s.deps.Reload == nil {
		http.Error(w, "this relay has no config file to reload", http.StatusConflict)
		return
	}
	err := s.write(r, "reload", func() error { return s.deps.Reload(r.Context()) })
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		s.refuse(w, r, err)
	case err != nil:
		http.Error(w, strings.Join(errlist.Lines(err), "\n"), http.StatusUnprocessableEntity)
	default:
		s.answer(w, s.reloadStatus())
	}
}

// backup streams a copy of the state. It cuts the connection after an error, so that nobody
// takes a part for the whole.
func (s *Server) backup(w http.ResponseWriter, r *http.Request) {
	if s.deps.Backup == nil {
		http.Error(w, "there is no state to copy: the relay keeps none, as state.dir is not set", http.StatusConflict)
		return
	}
	select {
	case s.backups <- struct{}{}:
		defer func() { <-s.backups }()
	default:
		w.Header().Set("Retry-After", "1")
		http.Error(w, "another copy is being made; try again", http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	out := &countingWriter{w: untilDone{r.Context(), w}}
	who := peerOf(r.Context())
	err := s.deps.Backup(out)
	switch {
	case err == nil:
		s.audit(r, s.deps.LogLevel.Level(), "backup", "bytes", out.n)
	case out.n == 0 && r.Context().Err() == nil:
		s.log.Error("state backup failed", "uid", who.UID, "pid", who.PID, "err", err)
		http.Error(w, err.Error(), http.StatusInternalServerError)
	default:
		s.log.Info("state backup cut off", "uid", who.UID, "pid", who.PID, "err", err)
		panic(http.ErrAbortHandler) // net/http closes the connection and logs nothing
	}
}

// untilDone refuses writes after the end of a context.
type untilDone struct {
	ctx context.Context
	w   io.Writer
}

func (u untilDone) Write(b []byte) (int, error) {
	if err := u.ctx.Err(); err != nil {
		return 0, err
	}
	return u.w.Write(b)
}
