package admin

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	"meshrelay/internal/visible"
	"meshrelay/sink"
	"meshrelay/upstreams/intake"
	"meshrelay/upstreams/kubernetes/clusters"
	"meshrelay/upstreams/kubernetes/clusters/registry"
)

// refusal is an error with the HTTP status of its response.
type refusal struct {
	code int
	error
}

// Refuse returns an error with the HTTP status of its response, see StatusOf.
func Refuse(code int, format string, args ...any) error {
	return refusal{code, fmt.Errorf(format, args...)}
}

func badRequestf(format string, args ...any) error {
	return Refuse(http.StatusBadRequest, format, args...)
}

// StatusOf returns the HTTP status of an error.
func StatusOf(err error) int {
	var known refusal
	switch {
	case errors.As(err, &known) && slices.Contains(errorCodes, known.code):
		return known.code
	case errors.Is(err, intake.ErrUnknownUpstream), errors.Is(err, clusters.ErrUnknown), errors.Is(err, sink.ErrUnknown):
		return http.StatusNotFound
	case errors.Is(err, intake.ErrNotPossible), errors.Is(err, registry.ErrNotPossible), errors.Is(err, sink.ErrNotPossible):
		return http.StatusConflict
	case interrupted(err):
		return http.StatusServiceUnavailable
	}
	return http.StatusInternalServerError
}

// interrupted reports whether err is the error of a request that ended before its response.
func interrupted(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// refuse answers with an error.
func (s *Server) refuse(w http.ResponseWriter, r *http.Request, err error) {
	code := StatusOf(err)
	switch {
	case errors.Is(err, intake.ErrUnknownUpstream):
		var names []string
		for _, u := range s.deps.Debug.views.Upstreams() {
			names = append(names, u.Name)
		}
		err = fmt.Errorf("there is no upstream %.64q: there are %s", r.PathValue("upstream"), strings.Join(names, ", "))
	case errors.Is(err, clusters.ErrUnknown):
		names := []string{}
		for _, c := range s.deps.Debug.views.Clusters() {
			names = append(names, c.Name)
		}
		err = fmt.Errorf("the config has no clusters %.64q: there are %s", r.PathValue("clusters"), cmp.Or(strings.Join(names, ", "), "none"))
	}
	if code == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", "1")
	}
	http.Error(w, err.Error(), code)
}

func (s *Server) answer(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", jsonType)
	_ = writeJSON(w, v) // the client may have gone
}

// answered is an error that the client has been told.
type answered struct{ error }

// Unwrap returns the error.
func (a answered) Unwrap() error { return a.error }

// stream answers with the output of write, and returns its size. After an error it closes the connection, so that
// the client notices that the answer is incomplete. The error that it returns is answered.
func (s *Server) stream(w http.ResponseWriter, r *http.Request, contentType string, write func(io.Writer) error) (size int64, err error) {
	w.Header().Set("Content-Type", contentType)
	sent := &countingWriter{ctx: r.Context(), w: w}
	out := bufio.NewWriterSize(sent, 64<<10)
	if err = write(out); err == nil {
		err = out.Flush()
	}
	var known refusal
	switch who, _ := peerOf(r.Context()); {
	case err == nil:
		return sent.n, nil
	case sent.n > 0 || r.Context().Err() != nil:
		s.log.Info("answer interrupted", "path", r.URL.Path, "uid", who.UID, "pid", who.PID, "err", err)
		panic(http.ErrAbortHandler) // net/http closes the connection and logs nothing
	case !errors.As(err, &known):
		s.log.Error("answer failed", "path", r.URL.Path, "uid", who.UID, "pid", who.PID, "err", err)
	}
	s.refuse(w, r, err)
	return 0, answered{err}
}

// countingWriter counts the bytes written to w. It fails when ctx has ended.
type countingWriter struct {
	ctx context.Context
	w   io.Writer
	n   int64
}

func (c *countingWriter) Write(b []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := c.w.Write(b)
	c.n += int64(n)
	return n, err
}

func writeJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(visible.NewWriter(w))
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}
