package admin

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"meshrelay/internal/printer"
	"meshrelay/upstreams"
)

// Readiness says whether the relay serves its clients.
type Readiness struct {
	Ready bool `json:"ready"`
	// Reasons say why not, or, when Ready, what is amiss all the same.
	Reasons []string `json:"reasons,omitempty"`
	// Notes tell what an operator may want to look at and that is as it should be.
	Notes []string `json:"notes,omitempty"`
	// Config is what became of the config file, where one is followed.
	Config ReloadStatus `json:"config,omitzero"`
}

// Assess works out the readiness. released tells that clients are being served: what there is
// to know of every source is known, or the wait for it is over (PROTOCOL S4). From then on a source
// that is down makes the relay degraded, not unready: what the source gave is still
// served, and cutting the clients off would not bring it back. A source that is required
// is one of which the config says otherwise.
func Assess(released bool, sources []upstreams.Status) Readiness {
	r := Readiness{Ready: released}
	for _, s := range sources {
		if reason := amiss(s, released); reason != "" {
			r.Reasons = append(r.Reasons, reason)
		}
		if s.Required && (s.Stale || !s.Synced) {
			r.Ready = false
		}
	}
	if !released && len(r.Reasons) == 0 {
		r.Reasons = []string{"the upstreams have synced, and what they gave is being merged"}
	}
	return r
}

// amiss returns what is wrong with a source, or nothing. released tells that clients are served.
func amiss(s upstreams.Status, released bool) string {
	var parts []string
	if s.State != upstreams.StateSynced || !s.Synced {
		text := string(s.State)
		if !s.Since.IsZero() {
			text += since(s.Since)
		}
		if s.Address != "" {
			text += " (" + s.Address + ")"
		}
		if s.LastError != "" {
			// An error of a connection begins with the address.
			text += ": " + strings.TrimPrefix(s.LastError, s.Address+": ")
		}
		parts = append(parts, text)
		switch {
		case !s.Stale && total(s.Resources) > 0 && (s.Synced || s.State != upstreams.StateSyncing):
			parts = append(parts, stillServed)
		case len(s.Pending) > 0:
			parts = append(parts, fmt.Sprintf("no answer yet for %s, %s%s", printer.Count(len(s.Pending), "type"), printer.Agree(len(s.Pending), "", "among them "), s.Pending[0]))
		}
	}
	if first := firstSync(s, released); first != "" {
		parts = append(parts, first)
	}
	if s.Required && (s.Stale || !s.Synced) {
		parts = append(parts, "it is required, so the relay is not ready")
	}
	parts = append(parts, stale(s)...)
	parts = append(parts, withheld(s)...)
	if s.Endpoints != nil && s.Endpoints.LastError != "" {
		parts = append(parts, "the endpoints of its services stay as they were known: "+s.Endpoints.LastError)
	}
	if s.OverLimit > 0 {
		parts = append(parts, fmt.Sprintf("over its limits, so that %s %s refused: raise limits, or import less of it", printer.Count(s.OverLimit, "resource"), printer.Agree(s.OverLimit, "is", "are")))
	}
	if s.RefusedTotal > 0 {
		text := fmt.Sprintf("the newest content of %s or %s is bad, the last good one stays in force", printer.Count(s.RefusedTotal, "resource"), printer.Agree(s.RefusedTotal, "file", "files"))
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

// stale says since when a source is out of contact, and what has become of what it gave.
func stale(s upstreams.Status) (parts []string) {
	served, expired := total(s.Resources), total(s.Expired)
	if s.Stale {
		text := "stale"
		if !s.StaleSince.IsZero() {
			text += since(s.StaleSince)
		}
		switch {
		case served > 0 && expired == 0:
			text += ": " + stillServed
		case served+expired == 0:
			text += ": nothing of it is served"
		}
		parts = append(parts, text)
	}
	if expired > 0 {
		parts = append(parts, fmt.Sprintf("%s of it %s not served any more, as its staleness policy says", printer.Count(expired, "resource"), printer.Agree(expired, "is", "are")))
	}
	return parts
}

// withheld says what of a source waits for a person.
func withheld(s upstreams.Status) (parts []string) {
	if h := s.Held; h != nil {
		parts = append(parts, fmt.Sprintf("held%s: %s of %s %s %s; see \"relay held %s\"", since(h.Since), printer.Count(h.Removals, "deletion"),
			printer.Count(h.Of, "resource"), printer.Agree(h.Removals, "waits", "wait"), heldUntil(*h), s.Name))
	}
	if f := s.Frozen; f != nil {
		text := "frozen" + since(f.Since)
		if f.Revision != 0 {
			text += fmt.Sprintf(" at revision %d", f.Revision)
		}
		if !f.Until.IsZero() {
			text += " until " + f.Until.UTC().Format(time.RFC3339)
		}
		if f.Reason != "" {
			text += " (" + f.Reason + ")"
		}
		if f.Waiting > 0 {
			text += fmt.Sprintf(": %d of its resources %s changed there and %s", f.Waiting, printer.Agree(f.Waiting, "has", "have"), printer.Agree(f.Waiting, "waits", "wait"))
		}
		parts = append(parts, fmt.Sprintf("%s; follow it again with \"relay unfreeze %s\"", text, s.Name))
	}
	return parts
}

// heldUntil tells how long a guard holds deletions.
func heldUntil(h upstreams.Held) string {
	switch h.Clock {
	case upstreams.ClockRunning:
		return "until " + h.Until.UTC().Format(time.RFC3339)
	case upstreams.ClockStopped:
		return fmt.Sprintf("for %s of contact", h.Left)
	case upstreams.ClockOver:
		return "until the upstream repeats them"
	}
	return "for ever"
}

// stillServed is said of a source that is not in contact.
const stillServed = "what it gave before is still served"

// total adds up counts by kind.
func total(counts map[string]int) (n int) {
	for _, c := range counts {
		n += c
	}
	return n
}

func since(t time.Time) string { return " since " + t.UTC().Format(time.RFC3339) }

// readiness is what the dependencies say, and what the server knows besides.
func (s *Server) readiness() Readiness {
	r := s.deps.Ready()
	r.Config = s.reloadStatus()
	r.Reasons = append(slices.Clone(r.Reasons), reloadReasons(r.Config)...)
	if st := s.socket.Load(); s.cfg.Socket != "" && st != nil && st.path == "" {
		r.Reasons = append(r.Reasons, st.problem)
	}
	if s.deps.Notes != nil {
		r.Reasons = append(r.Reasons, s.deps.Notes()...)
	}
	return r
}

func (s *Server) reloadStatus() ReloadStatus {
	if s.deps.ReloadStatus == nil {
		return ReloadStatus{}
	}
	return s.deps.ReloadStatus()
}

// ready answers in plain text, or with the Readiness as JSON to those who accept that. To
// connections from elsewhere it tells no more than whether the relay is ready.
func (s *Server) ready(w http.ResponseWriter, req *http.Request) {
	r := s.readiness()
	head, code := "ready", http.StatusOK
	switch {
	case !r.Ready:
		head, code = "not ready", http.StatusServiceUnavailable
	case len(r.Reasons) > 0:
		head = "ready, degraded"
	}
	if !s.cfg.DebugOffLoopback && !withinHost(req) {
		// Names, addresses and errors of upstreams are for operators.
		r = Readiness{Ready: r.Ready}
		if head = "ready"; !r.Ready {
			head = "unready"
		}
	} else if s.deps.Remarks != nil {
		r.Notes = s.deps.Remarks()
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
	for _, note := range r.Notes {
		fmt.Fprintln(w, "note: "+strings.Join(strings.Fields(note), " "))
	}
}
