package admin

import (
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
