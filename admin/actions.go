package admin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os/user"
	"slices"
	"strconv"
	"strings"

	"meshrelay/events"
	"meshrelay/internal/errlist"
	"meshrelay/internal/peerkey"
	"meshrelay/internal/text"
	"meshrelay/upstreams"
)

// maxLogged bounds each text of an order in the log, in bytes.
const maxLogged = 1024

// order is what is told of a request of an operator: one line of the log and, unless it changes nothing, one event of
// the journal.
type order struct {
	action string
	target string // an upstream, a sink or a part of the config
	reads  bool   // it changes nothing
	before string
	after  string
}

// action carries out an action of an operator, and notes what it changes. Without an answer and an error, it has
// answered itself.
type action func(w http.ResponseWriter, r *http.Request, o *order) (answer any, err error)

// act carries out an action with these parameters over the socket, and tells of it. An unknown parameter is an error:
// an order with a misspelt dryRun, or without one, must not be carried out.
func (s *Server) act(w http.ResponseWriter, r *http.Request, name string, parameters []string, do action) {
	o, told := &order{action: name, target: r.PathValue("upstream") + r.PathValue("sink") + r.PathValue("clusters"), reads: r.Method == http.MethodGet}, false
	tell := func(err error) {
		if !told {
			told = true
			s.tell(r, o, err)
		}
	}
	defer tell(errInterrupted) // when stream ends the handler
	answer, err := any(nil), s.overSocket(r)
	if err == nil {
		endIn(w, operatorTimeout)
		err = only(r.URL.Query(), name, parameters)
	}
	if err == nil {
		answer, err = do(w, r, o)
	}
	tell(err)
	switch {
	case errors.As(err, new(answered)):
	case err != nil:
		s.refuse(w, r, err)
	case answer != nil:
		s.answer(w, answer)
	}
}

// only checks that a query has no other parameters than these.
func only(query url.Values, of string, parameters []string) error {
	for _, name := range slices.Sorted(maps.Keys(query)) {
		if !slices.Contains(parameters, name) {
			return badRequestf("%.32q is no parameter of %s: want %s", name, of, strings.Join(parameters, ", "))
		}
	}
	return nil
}

var errInterrupted = errors.New("the answer was interrupted")

// given returns the parameters of an order as one reads them.
func given(query url.Values) string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(query)) {
		for _, value := range query[name] {
			out = append(out, name+"="+value)
		}
	}
	return strings.Join(out, " ")
}

// tell logs an order at every log level, always with the same keys, and records it in the journal. Refused orders of a
// user, or of an address that is not the socket's, are told in part if they come too fast.
func (s *Server) tell(r *http.Request, o *order, err error) {
	who, overSocket := peerOf(r.Context())
	from := strconv.Itoa(who.UID)
	if !overSocket {
		address, _ := netip.ParseAddrPort(r.RemoteAddr)
		who.UID, from = -1, peerkey.Of(net.TCPAddrFromAddrPort(address))
	}
	unlogged := 0
	if err != nil {
		var ok bool
		if unlogged, ok = s.refused.Allow(from); !ok {
			return
		}
	}
	by, query, failure := operatorOf(r), r.URL.Query(), ""
	reason := query.Get("reason")
	query.Del("reason")
	if err != nil {
		failure = strings.Join(errlist.Lines(err), "; ")
	}
	cut := func(s string) string { return text.Shorten(s, maxLogged) }
	s.log.Log(context.WithoutCancel(r.Context()), max(s.deps.LogLevel.Level(), slog.LevelInfo), "operator", "action", o.action, "target", cut(o.target), "parameters", cut(given(query)),
		"uid", who.UID, "pid", who.PID, "user", by.User, "reason", cut(reason), "before", o.before, "after", o.after, "err", cut(failure), "unlogged", unlogged)
	if o.reads {
		return
	}
	e := events.Event{
		Type: events.Ordered, By: events.ByOperator, Operator: by, Reason: reason, Before: o.before, After: o.after,
		Text: strings.TrimSpace(o.action + " " + given(query)),
	}
	if _, of := s.upstream(o.target); of && r.PathValue("upstream") != "" {
		e.Upstream = o.target
	} else if o.target != "" {
		e.Text = o.action + " " + o.target + strings.TrimPrefix(e.Text, o.action)
	}
	if failure != "" {
		e.Text += " refused: " + failure
	}
	s.deps.Debug.views.Events.Record(e)
}

// operatorOf returns the operator who sent a request.
func operatorOf(r *http.Request) *events.Operator {
	who, overSocket := peerOf(r.Context())
	if !overSocket {
		return &events.Operator{UID: -1, User: r.RemoteAddr}
	}
	o := &events.Operator{UID: who.UID}
	if u, err := user.LookupId(strconv.Itoa(who.UID)); err == nil {
		o.User = u.Username
	}
	return o
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

// upstreamText describes what operators change of an upstream.
func (s *Server) upstreamText(name string) string {
	u, ok := s.upstream(name)
	if !ok {
		return "no such upstream"
	}
	is := "not frozen"
	if u.Frozen != nil {
		is = "frozen"
		if u.Frozen.Revision > 0 {
			is += fmt.Sprintf(" at revision %d", u.Frozen.Revision)
		}
	}
	held := 0
	if u.Held != nil {
		held = u.Held.Removals
	}
	is += fmt.Sprintf(", held deletions: %d, resources: %d", held, Total(u.Resources))
	if u.FirstSync != nil && u.FirstSync.Awaited {
		is += ", clients wait for it"
	}
	return is
}

// clustersText describes the found clusters of a part of the config.
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
	return text.Shorten(strings.Join(found, ", "), maxLogged)
}
