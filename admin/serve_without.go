package admin

import (
	"context"
	"net/http"
	"net/url"
	"time"

	"meshrelay/upstreams"
)

// addServeWithout adds what lets clients go on without an upstream. It is for connections over
// the socket.
func (s *Server) addServeWithout(mux *http.ServeMux) {
	const action = "serve-without"
	mux.Handle("POST /upstreams/{upstream}/"+action, s.socketOnly(func(w http.ResponseWriter, r *http.Request) {
		name := r.PathValue("upstream")
		switch {
		case s.deps.ServeWithout == nil:
			http.Error(w, "this relay's upstreams can not be controlled", http.StatusConflict)
			return
		case s.upstream(name) == nil:
			http.Error(w, s.unknown(name), http.StatusNotFound)
			return
		}
		err := s.write(r, action, func() error { return s.deps.ServeWithout(r.Context(), name) }, "upstream", name)
		if err != nil {
			s.refuse(w, r, err)
			return
		}
		s.answer(w, Waiting{KeepsState: s.deps.Backup != nil, For: s.awaited()})
	}))
}

// Waiting is who clients that are held wait for.
type Waiting struct {
	// For are the names of upstreams that have to sync first.
	For []string `json:"for,omitempty"`
	// KeepsState: the relay keeps state, so that a restart does not forget what was ordered.
	KeepsState bool `json:"keepsState"`
}

func (s *Server) awaited() (names []string) {
	for _, u := range s.deps.Debug.views.Upstreams() {
		if u.FirstSync != nil && u.FirstSync.Awaited {
			names = append(names, u.Name)
		}
	}
	return names
}

// ServeWithout has clients wait for an upstream no longer, and returns who they wait for then.
// It needs the socket.
func (c Client) ServeWithout(ctx context.Context, upstream string) (w Waiting, err error) {
	err = c.json(ctx, http.MethodPost, "/upstreams/"+url.PathEscape(upstream)+"/serve-without", &w)
	return w, err
}

// firstSync tells how clients fare with a source that is not known, or nothing.
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
