package admin

import (
	"net/http"
	"time"

	"meshrelay/upstreams"
)

// serveWithout ends the wait of clients for an upstream.
func (s *Server) serveWithout(w http.ResponseWriter, r *http.Request) {
	const action = "serve-without"
	name := r.PathValue("upstream")
	if !s.controllable(w, name) {
		return
	}
	err := s.write(r, action, func() error { return s.deps.Controls.ServeWithout(r.Context(), name) }, "upstream", name)
	if err != nil {
		s.refuse(w, r, err)
		return
	}
	waiting := Waiting{KeepsState: s.deps.Backup != nil}
	for _, u := range s.deps.Debug.views.Upstreams() {
		if u.FirstSync != nil && u.FirstSync.Awaited {
			waiting.For = append(waiting.For, u.Name)
		}
	}
	s.answer(w, waiting)
}

// Waiting tells for which upstreams clients wait.
type Waiting struct {
	// For are the names of upstreams that must sync first.
	For []string `json:"for,omitempty"`
	// KeepsState tells that a restart does not undo the order.
	KeepsState bool `json:"keepsState"`
}

// firstSync tells whether clients wait for an upstream, nothing for one that is known.
func firstSync(s upstreams.Status, released bool) string {
	f := s.FirstSync
	switch {
	case f == nil:
		return ""
	case f.Awaited:
		until := ""
		if !f.Until.IsZero() {
			until = ", or until " + f.Until.UTC().Format(time.RFC3339)
		}
		return "clients are held until it has synced" + until + ": " + f.Reason + "; let them go on without it with \"relay serve-without " + s.Name + "\""
	case released:
		return "clients are served without it: " + f.Reason
	}
	return "clients do not wait for it: " + f.Reason
}
