package admin

import (
	"context"
	"fmt"
	"net/http"
	"net/url"

	"meshrelay/sink"
	"meshrelay/upstreams/intake"
)

// SinkControls shows sinks, and carries out orders of operators about them. Errors that wrap sink.ErrUnknown or
// sink.ErrNotPossible get an HTTP status of their own. Its methods must be safe for concurrent use.
type SinkControls interface {
	// Status returns the state of a sink or, if the name is empty, of all.
	Status(name string) []sink.Status
	Diff(ctx context.Context, name string, q sink.Wanted) (sink.Differences, error)
	Order(ctx context.Context, name string, o sink.Order) (int, error)
}

// SinkOrdered is the result of an order about a sink. Objects counts those that are about to be deleted.
type SinkOrdered struct {
	Objects    int  `json:"objects,omitempty"`
	KeepsState bool `json:"keepsState"`
}

// sinkParameters are the parameters of each order about a sink, beside reason.
var sinkParameters = map[string][]string{"freeze": nil, "unfreeze": nil, "release": {"hold"}, "prune": nil}

// sinkOrder carries out an order about a sink.
func (s *Server) sinkOrder(r *http.Request, verb string, o *order) (any, error) {
	q, by := r.URL.Query(), operatorOf(r)
	want := sink.Order{Verb: verb, Hold: q.Get("hold"), Reason: q.Get("reason"), By: fmt.Sprintf("%s (uid %d)", by.User, by.UID)}
	if err := intake.CheckReason(want.Reason); err != nil {
		return nil, badRequestf("%v", err)
	}
	out := SinkOrdered{KeepsState: s.deps.Backup != nil}
	err := s.write(r, o, s.sinkText, func() (err error) {
		out.Objects, err = s.deps.Sinks.Order(r.Context(), o.target, want)
		return err
	})
	return out, err
}

// sinkText describes what operators change of a sink.
func (s *Server) sinkText(name string) string {
	all := s.deps.Sinks.Status(name)
	if name == "" || len(all) == 0 {
		return "no such sink"
	}
	return fmt.Sprintf("%s, objects: %d, held deletions: %d", all[0].State, all[0].Objects, all[0].Todo["held"])
}

// Sinks returns the state of a sink or, if the name is empty, of all.
func (c Client) Sinks(ctx context.Context, name string) ([]sink.Status, error) {
	return ask[[]sink.Status](ctx, c, http.MethodGet, "/sinks", url.Values{"name": {name}})
}

// SinkDiff returns a page of what a sink would change. It needs the socket.
func (c Client) SinkDiff(ctx context.Context, name string, q sink.Wanted) (sink.Differences, error) {
	values := url.Values{"kind": {q.Kind}, "namespace": {q.Namespace}, "do": {q.Do}, "after": {q.After}}
	return ask[sink.Differences](ctx, c, http.MethodGet, "/sinks/"+url.PathEscape(name)+"/diff", values)
}

// OrderSink gives an order about a sink. It needs the socket.
func (c Client) OrderSink(ctx context.Context, name string, o sink.Order) (SinkOrdered, error) {
	q := url.Values{"hold": {o.Hold}, "reason": {o.Reason}}
	return ask[SinkOrdered](ctx, c, http.MethodPost, "/sinks/"+url.PathEscape(name)+"/"+o.Verb, q)
}
