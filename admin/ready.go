package admin

import (
	"fmt"
	"net/http"
	"strings"
	"time"

	"meshrelay/upstreams"
)

// Readiness says whether the relay serves its clients.
type Readiness struct {
	Ready bool `json:"ready"`
	// Reasons say why not, or, when Ready, what is amiss all the same.
	Reasons []string `json:"reasons,omitempty"`
}

// Assess works out the readiness. released says that clients are being served: every
// source has synced, or the wait for them is over (PROTOCOL S4). From then on a source
// that is down makes the relay degraded, not unready: what the source gave is still
// served, and cutting the clients off would not bring it back.
func Assess(released bool, sources []upstreams.Status) Readiness {
	r := Readiness{Ready: released}
	for _, s := range sources {
		if reason := amiss(s); reason != "" {
			r.Reasons = append(r.Reasons, reason)
		}
	}
	if !released && len(r.Reasons) == 0 {
		r.Reasons = []string{"the upstreams have synced, and what they gave is being merged"}
	}
	return r
}

// amiss returns what is wrong with a source, or nothing.
func amiss(s upstreams.Status) string {
	var parts []string
	if s.State != upstreams.StateSynced || !s.Synced {
		text := string(s.State)
		if !s.Since.IsZero() {
			text += " since " + s.Since.UTC().Format(time.RFC3339)
		}
		if s.Address != "" {
			text += " (" + s.Address + ")"
		}
		if s.LastError != "" {
			text += ": " + s.LastError
		}
		parts = append(parts, text)
		switch {
		case s.Synced:
			parts = append(parts, "what it gave before is still served")
		case len(s.Pending) > 0:
			parts = append(parts, fmt.Sprintf("no answer yet for %d types, among them %s", len(s.Pending), s.Pending[0]))
		}
	}
	if s.Endpoints != nil && s.Endpoints.LastError != "" {
		parts = append(parts, "the endpoints of its services stay as they were known: "+s.Endpoints.LastError)
	}
	if s.RefusedTotal > 0 {
		text := fmt.Sprintf("the newest content of %d resources or files is bad, the last good one stays in force", s.RefusedTotal)
		if len(s.Refused) > 0 {
			text += fmt.Sprintf(": %s: %s", s.Refused[0].Resource, s.Refused[0].Reason)
		}
		parts = append(parts, text)
	}
	if len(parts) == 0 {
		return ""
	}
	return "upstream " + s.Name + ": " + strings.Join(parts, "; ")
}

// ready answers in plain text, or with the Readiness as JSON to those who accept that.
func (s *Server) ready(w http.ResponseWriter, req *http.Request) {
	r := s.deps.Ready()
	head, code := "ready", http.StatusOK
	switch {
	case !r.Ready:
		head, code = "not ready", http.StatusServiceUnavailable
	case len(r.Reasons) > 0:
		head = "ready, degraded"
	}
	if strings.Contains(req.Header.Get("Accept"), jsonType) {
		w.Header().Set("Content-Type", jsonType)
		w.WriteHeader(code)
		_ = writeJSON(w, r) // whoever asked may have gone
		return
	}
	w.Header().Set("Content-Type", textType)
	w.WriteHeader(code)
	fmt.Fprintln(w, head)
	for _, reason := range r.Reasons {
		// One reason a line: nothing that an upstream says may look like another.
		fmt.Fprintln(w, "- "+strings.Join(strings.Fields(reason), " "))
	}
}
