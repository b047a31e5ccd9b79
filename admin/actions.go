package admin

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"meshrelay/audit"
	"meshrelay/upstreams"
)

// action carries out an action of an operator. It adds to the line of the audit log what the action changes. Without
// an answer and an error, it has answered itself.
type action func(w http.ResponseWriter, r *http.Request, line *audit.Line) (answer any, err error)

// act carries out an action, and makes one line of the audit log for it.
func (s *Server) act(w http.ResponseWriter, r *http.Request, name string, do action) {
	line, recorded := s.auditLine(r, name), false
	record := func(err error) {
		if !recorded {
			recorded = true
			s.auditEnd(line, err)
		}
	}
	defer record(errInterrupted) // when stream ends the handler
	asked := *line
	asked.Event = audit.OperatorAsked
	if err := s.deps.Audit.Ask(r.Context(), asked); err != nil {
		err = refusal{http.StatusServiceUnavailable, err}
		record(err)
		s.refuse(w, r, err)
		return
	}
	answer, err := do(w, r, line)
	record(err)
	switch {
	case errors.As(err, new(answered)):
	case err != nil:
		s.refuse(w, r, err)
	case answer != nil:
		s.answer(w, answer)
	}
}

var errInterrupted = errors.New("the answer was interrupted")

// auditLine begins the line of the audit log about a request over the socket.
func (s *Server) auditLine(r *http.Request, action string) *audit.Line {
	who, _ := peerOf(r.Context())
	query := r.URL.Query()
	line := &audit.Line{
		Operator: &audit.Operator{UID: who.UID, GID: who.GID, PID: who.PID, User: operatorOf(r).User},
		Action:   action, Target: r.URL.Path, Reason: query.Get("reason"),
	}
	query.Del("reason")
	line.Parameters = query.Encode()
	return line
}

// auditEnd records the line of a request, and how it ended.
func (s *Server) auditEnd(line *audit.Line, err error) {
	line.Event, line.Code = audit.OperatorActed, strconv.Itoa(http.StatusOK)
	if err != nil {
		line.Event, line.Code, line.Error = audit.OperatorRefused, strconv.Itoa(StatusOf(err)), err.Error()
	}
	s.deps.Audit.Record(*line)
}

// upstream returns the status of an upstream.
func (s *Server) upstream(name string) (st upstreams.Status, ok bool) {
	all := s.deps.Debug.views.Upstreams()
	i := slices.IndexFunc(all, func(u upstreams.Status) bool { return u.Name == name })
	if i < 0 {
		return st, false
	}
	return all[i], true
}

// upstreamText describes for the audit log what operators change of an upstream.
func (s *Server) upstreamText(name string) string {
	u, ok := s.upstream(name)
	if !ok {
		return "no such upstream"
	}
	text := "not frozen"
	if u.Frozen != nil {
		text = "frozen"
		if u.Frozen.Revision > 0 {
			text += fmt.Sprintf(" at revision %d", u.Frozen.Revision)
		}
		if !u.Frozen.Until.IsZero() {
			text += " until " + u.Frozen.Until.UTC().Format(time.RFC3339)
		}
	}
	held := 0
	if u.Held != nil {
		held = u.Held.Removals
	}
	text += fmt.Sprintf(", held deletions: %d, resources: %d", held, Total(u.Resources))
	if u.FirstSync != nil && u.FirstSync.Awaited {
		text += ", clients wait for it"
	}
	return text
}

// clustersText describes for the audit log the found clusters of a part of the config.
func (s *Server) clustersText(name string) string {
	var found []string
	for _, part := range s.deps.Debug.views.Clusters() {
		if part.Name != name {
			continue
		}
		for _, c := range part.Clusters {
			found = append(found, fmt.Sprintf("%s %s", c.ID, c.State))
		}
	}
	return strings.Join(found, ", ")
}
