package admin

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"meshrelay/audit"
	"meshrelay/mirror"
	"meshrelay/sink"
	"meshrelay/upstreams/intake"
)

// SinkControls shows sinks, and carries out orders of operators about them. Errors that wrap sink.ErrUnknown or
// sink.ErrNotPossible get an HTTP status of their own. Its methods must be safe for concurrent use.
type SinkControls interface {
	// Status returns the state of a sink or, if the name is empty, of all.
	Status(name string) []sink.Status
	Diff(ctx context.Context, name string, key *mirror.Key, most int) (sink.Differences, error)
	Freeze(name string, f sink.Frozen) error
	Unfreeze(name string) error
	Release(name, hold string) (int, error)
	Prune(name string) (int, error)
}

// SinkOrdered is the result of an order about a sink. Objects counts those that are about to be deleted, -1 if it is not
// known yet.
type SinkOrdered struct {
	Objects    int  `json:"objects,omitempty"`
	KeepsState bool `json:"keepsState"`
}

// addSinks adds the handlers of sinks.
func (s *Server) addSinks(mux *http.ServeMux) {
	if s.deps.Sinks == nil {
		return
	}
	mux.Handle("GET /sinks", s.debugOnly(func(w http.ResponseWriter, r *http.Request) {
		s.answer(w, notNil(s.deps.Sinks.Status(r.URL.Query().Get("name"))))
	}))
	mux.Handle("GET /sinks/{sink}/diff", s.socketOnly(func(w http.ResponseWriter, r *http.Request) {
		if d, err := s.sinkDiff(r); err != nil {
			s.refuse(w, r, err)
		} else {
			s.answer(w, d)
		}
	}))
	act := func(pattern, verb string) {
		name := verb + " sink"
		s.actions[pattern] = name
		mux.Handle(pattern, s.socketOnly(func(w http.ResponseWriter, r *http.Request) {
			s.act(w, r, name, func(_ http.ResponseWriter, r *http.Request, line *audit.Line) (any, error) {
				return s.sinkOrder(r, verb, line)
			})
		}))
	}
	act("POST /sinks/{sink}/freeze", "freeze")
	act("POST /sinks/{sink}/unfreeze", "unfreeze")
	act("POST /sinks/{sink}/release", "release")
	act("POST /sinks/{sink}/prune", "prune")
}

// sinkOrder carries out an order about a sink.
func (s *Server) sinkOrder(r *http.Request, verb string, line *audit.Line) (any, error) {
	name, q := r.PathValue("sink"), r.URL.Query()
	for parameter := range q {
		if parameter != "reason" && (parameter != "hold" || verb != "release") {
			return nil, badRequestf("%.32q is no parameter of %s", parameter, verb)
		}
	}
	reason := q.Get("reason")
	if err := intake.CheckReason(reason); err != nil {
		return nil, badRequestf("%v", err)
	}
	attrs := []any{"sink", name[:min(len(name), maxLogged)]}
	if reason != "" {
		attrs = append(attrs, "reason", reason)
	}
	out := SinkOrdered{KeepsState: s.deps.Backup != nil}
	err := s.write(r, line, s.sinkText, name, func() (err error) {
		switch verb {
		case "freeze":
			by := operatorOf(r)
			return s.deps.Sinks.Freeze(name, sink.Frozen{By: fmt.Sprintf("%s (uid %d)", by.User, by.UID), Reason: reason, Since: time.Now()})
		case "unfreeze":
			return s.deps.Sinks.Unfreeze(name)
		case "release":
			if q.Get("hold") == "" {
				return badRequestf("want hold=ID: /sinks?name=%s has the ID of the held deletions", url.QueryEscape(name))
			}
			out.Objects, err = s.deps.Sinks.Release(name, q.Get("hold"))
		default:
			out.Objects, err = s.deps.Sinks.Prune(name)
		}
		return err
	}, attrs...)
	return out, err
}

// sinkText describes for the audit log what operators change of a sink.
func (s *Server) sinkText(name string) string {
	all := s.deps.Sinks.Status(name)
	if name == "" || len(all) == 0 {
		return "no such sink"
	}
	held := 0
	if all[0].Held != nil {
		held = all[0].Held.Removals
	}
	return fmt.Sprintf("%s, objects: %d, held deletions: %d", all[0].State, all[0].Objects, held)
}

// sinkDiff answers what a sink would change.
func (s *Server) sinkDiff(r *http.Request) (sink.Differences, error) {
	q := r.URL.Query()
	most, err := strconv.Atoi(q.Get("limit"))
	if err != nil || most < 1 || most > sink.MaxDifferences {
		return sink.Differences{}, badRequestf("limit is %.32q: want a number from 1 to %d", q.Get("limit"), sink.MaxDifferences)
	}
	var key *mirror.Key
	if text := q.Get("kind"); text != "" {
		kinds, err := mirror.ParseKinds(text)
		if err != nil || len(kinds) != 1 {
			return sink.Differences{}, badRequestf("kind is %.64q: want one kind, such as serviceentry", text)
		}
		key = &mirror.Key{Kind: kinds[0], Namespace: q.Get("namespace"), Name: q.Get("name")}
	}
	return s.deps.Sinks.Diff(r.Context(), r.PathValue("sink"), key, most)
}

// Sinks returns the state of a sink or, if the name is empty, of all.
func (c Client) Sinks(ctx context.Context, name string) ([]sink.Status, error) {
	return ask[[]sink.Status](ctx, c, http.MethodGet, "/sinks", url.Values{"name": {name}})
}

// SinkDiff returns what a sink would change: of one object or, if key is nil, of the first most. It needs the socket.
func (c Client) SinkDiff(ctx context.Context, name string, key *mirror.Key, most int) (sink.Differences, error) {
	q := url.Values{"limit": {strconv.Itoa(most)}}
	if key != nil {
		q.Set("kind", strings.TrimPrefix(key.Kind.String(), "core/"))
		q.Set("namespace", key.Namespace)
		q.Set("name", key.Name)
	}
	return ask[sink.Differences](ctx, c, http.MethodGet, "/sinks/"+url.PathEscape(name)+"/diff", q)
}

// OrderSink gives an order about a sink: freeze, unfreeze, release or prune. It needs the socket.
func (c Client) OrderSink(ctx context.Context, name, verb, hold, reason string) (SinkOrdered, error) {
	q := url.Values{}
	if hold != "" {
		q.Set("hold", hold)
	}
	if reason != "" {
		q.Set("reason", reason)
	}
	return ask[SinkOrdered](ctx, c, http.MethodPost, "/sinks/"+url.PathEscape(name)+"/"+verb, q)
}
