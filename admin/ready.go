package admin

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"meshrelay/upstreams"
	"meshrelay/upstreams/intake"
)

// Readiness is whether the relay serves its clients, with reasons.
type Readiness struct {
	Ready bool `json:"ready"`
	// Reasons are why the relay is not ready or, when it is Ready, why it is degraded.
	Reasons []string `json:"reasons,omitempty"`
	// Notes are hints for operators that do not degrade the relay.
	Notes []string `json:"notes,omitempty"`
	// Config is the state of the config file.
	Config ReloadStatus `json:"config,omitzero"`
}

// Assess returns the readiness. released means that clients are served: every upstream has synced or was restored,
// or the wait for it is over (PROTOCOL S4). From then on, an upstream that is down makes the relay degraded, not
// unready: its resources are still served, and an unready relay would not bring it back. A required upstream makes
// it unready.
func Assess(released bool, sources []upstreams.Status) Readiness {
	r := Readiness{Ready: released}
	for _, s := range sources {
		if parts := problems(s, released); len(parts) > 0 {
			r.Reasons = append(r.Reasons, "upstream "+s.Name+": "+strings.Join(parts, "; "))
		}
		r.Reasons = append(r.Reasons, s.Told.Lines(s.Name)...)
		if s.Frozen != nil { // an operator has frozen it
			r.Notes = append(r.Notes, "upstream "+s.Name+": "+frozen(*s.Frozen, s.Name))
		}
		if s.Required && (s.Stale || !s.Synced) {
			r.Ready = false
		}
	}
	if !released && len(r.Reasons) == 0 {
		r.Reasons = []string{"merging the resources of the upstreams"}
	}
	return r
}

// problems returns the problems of an upstream. released means that clients are served.
func problems(s upstreams.Status, released bool) (parts []string) {
	add := func(format string, args ...any) { parts = append(parts, fmt.Sprintf(format, args...)) }
	served, expired := Total(s.Resources), Total(s.Expired)
	if s.State != upstreams.StateSynced || !s.Synced {
		text := string(s.State) + Since(s.Since)
		if s.Address != "" {
			text += " (" + s.Address + ")"
		}
		if s.LastError != "" {
			// An error of a connection begins with the address.
			text += ": " + strings.TrimPrefix(s.LastError, s.Address+": ")
		}
		add("%s", text)
		switch {
		case !s.Stale && served > 0 && (s.Synced || s.State != upstreams.StateSyncing):
			add("its resources are still served")
		case len(s.Pending) > 0 && s.Silence == "":
			add("types without an answer: %d, such as %s", len(s.Pending), s.Pending[0])
		}
	}
	for _, text := range []string{s.Double, s.Kept, s.Silence, firstSync(s, released)} {
		if text != "" {
			add("%s", text)
		}
	}
	if s.Required && (s.Stale || !s.Synced) {
		add("required, so the relay is not ready")
	}
	if s.Stale {
		switch {
		case served > 0 && expired == 0:
			add("stale%s, its resources are still served", StaleSince(s.StaleSince, s.StaleLater))
		case served+expired == 0:
			add("stale%s, it has no resources that are served", StaleSince(s.StaleSince, s.StaleLater))
		default:
			add("stale%s", StaleSince(s.StaleSince, s.StaleLater))
		}
	}
	if expired > 0 {
		add("resources expired and not served: %d", expired)
	}
	if h := s.Held; h != nil {
		add("held%s: deletion of %d of %d resources, %s; see \"relay upstreams --held %s\"", Since(h.Since), h.Removals, h.Of, heldUntil(*h), s.Name)
	}
	if s.Endpoints != nil && s.Endpoints.LastError != "" {
		add("the endpoints of its services may be old: %s", s.Endpoints.LastError)
	}
	if s.Endpoints != nil && s.Endpoints.None != "" {
		add("%s", s.Endpoints.None)
	}
	for _, kind := range slices.Sorted(maps.Keys(s.AllLeftOut)) {
		add("all of %s are left out, reason %s: set import, or generated: keep, or import.kinds without that kind; see \"relay upstreams %s\"", kind, s.AllLeftOut[kind], s.Name)
	}
	if s.OverLimit > 0 {
		add("resources refused for its limits: %d; raise limits, or import less", s.OverLimit)
	}
	if s.RefusedTotal > 0 {
		text := fmt.Sprintf("resources or files refused: %d, the last good content is still served", s.RefusedTotal)
		if len(s.Refused) > 0 {
			text += fmt.Sprintf(": %s: %s", s.Refused[0].Resource, s.Refused[0].Reason)
		}
		add("%s", text)
	}
	return parts
}

// firstSync describes the wait of clients for an upstream. It is "" when there is none.
func firstSync(s upstreams.Status, released bool) string {
	f := s.FirstSync
	switch {
	case f == nil:
		return ""
	case f.Awaited:
		if s.Frozen != nil && s.Frozen.Empty {
			return fmt.Sprintf("clients are held until \"relay unfreeze %s\": %s; to serve them without it: \"relay serve-without %[1]s\"", s.Name, f.Reason)
		}
		until := ""
		if !f.Until.IsZero() {
			until = ", or until " + f.Until.UTC().Format(time.RFC3339)
		}
		return "clients are held until it has synced" + until + ": " + f.Reason + "; to serve them without it: \"relay serve-without " + s.Name + "\""
	case released:
		return "clients are served without it: " + f.Reason
	}
	return "clients do not wait for it: " + f.Reason
}

// frozen describes a freeze.
func frozen(f intake.Frozen, upstream string) string {
	text := "frozen" + Since(f.Since)
	if f.Revision != 0 {
		text += fmt.Sprintf(" at revision %d", f.Revision)
	}
	if f.Reason != "" {
		text += " (" + f.Reason + ")"
	}
	if f.Waiting > 0 {
		text += fmt.Sprintf(", resources changed there: %d", f.Waiting)
	}
	return fmt.Sprintf("%s; unfreeze it with \"relay unfreeze %s\"", text, upstream)
}

// heldUntil returns how long a guard holds deletions.
func heldUntil(h intake.Held) string {
	switch h.Clock {
	case intake.ClockRunning:
		return "until " + h.Until.UTC().Format(time.RFC3339)
	case intake.ClockStopped:
		return fmt.Sprintf("for another %s of contact", h.Left)
	case intake.ClockOver:
		return "until the upstream repeats the deletions"
	}
	return "without end"
}

// Total adds up counts by kind.
func Total(counts map[string]int) (n int) {
	for _, c := range counts {
		n += c
	}
	return n
}

// Since returns " since" and the time, or "" for the zero time.
func Since(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return " since " + t.UTC().Format(time.RFC3339)
}

// StaleSince returns since when an upstream is stale. later means that a relay which was killed has not written the
// exact time.
func StaleSince(t time.Time, later bool) string {
	if later && !t.IsZero() {
		return Since(t) + " or later"
	}
	return Since(t)
}

// readiness adds the config file, the socket and the notes to the readiness of the dependencies.
func (s *Server) readiness() Readiness {
	r := s.deps.Ready()
	r.Config = s.deps.ReloadStatus()
	r.Reasons = append(slices.Clone(r.Reasons), reloadReasons(r.Config)...)
	if st := s.socket.Load(); s.cfg.Socket != "" && st.path == "" {
		r.Reasons = append(r.Reasons, st.problem)
	}
	r.Reasons = append(r.Reasons, s.deps.Notes()...)
	return r
}

// The first lines of an answer in plain text.
const (
	headReady     = "ready"
	headDegraded  = "ready, degraded"
	headNotReady  = "not ready"
	headElsewhere = "unready" // to other hosts
)

// ready answers in plain text or, if the request accepts it, with the Readiness as JSON. Requests from other hosts
// get only whether the relay is ready.
func (s *Server) ready(w http.ResponseWriter, req *http.Request) {
	r := s.readiness()
	if withinHost(req) {
		r = s.Readiness()
	}
	head, code := headReady, http.StatusOK
	switch {
	case !r.Ready:
		head, code = headNotReady, http.StatusServiceUnavailable
	case len(r.Reasons) > 0:
		head = headDegraded
	}
	if !withinHost(req) {
		// Names, addresses and errors of upstreams are for operators.
		r = Readiness{Ready: r.Ready}
		if head = headReady; !r.Ready {
			head = headElsewhere
		}
	}
	if strings.Contains(req.Header.Get("Accept"), jsonType) {
		w.Header().Set("Content-Type", jsonType)
		w.WriteHeader(code)
		_ = writeJSON(w, r) // the client may have gone
		return
	}
	w.Header().Set("Content-Type", textType)
	w.WriteHeader(code)
	fmt.Fprintln(w, head)
	for _, reason := range r.Reasons {
		// Each reason is one line: text of an upstream must not look like another reason.
		fmt.Fprintln(w, "- "+strings.Join(strings.Fields(reason), " "))
	}
	for _, note := range r.Notes {
		fmt.Fprintln(w, "note: "+strings.Join(strings.Fields(note), " "))
	}
}
