package admin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os/user"
	"slices"
	"strconv"
	"strings"

	"meshrelay/audit"
	"meshrelay/events"
	"meshrelay/internal/errlist"
	"meshrelay/state"
	"meshrelay/upstreams"
	"meshrelay/upstreams/intake"
)

// Controls carries out orders of operators about upstreams. Errors that wrap intake.ErrUnknownUpstream or
// intake.ErrNotPossible get an HTTP status of their own. Its methods must be safe for concurrent use.
type Controls interface {
	// Order carries out freeze, unfreeze, release, rollback, resync or serve-without.
	Order(ctx context.Context, upstream, verb string, o intake.Order) (intake.Effect, error)
	// Held returns the deletions that guards hold, of one upstream or, if its name is empty, of all.
	Held(upstream string) ([]intake.HeldUpstream, error)
	// History returns the revisions, newest first.
	History(upstream string) ([]state.Revision, error)
	// Diff returns the changes of a revision; 0 is the newest.
	Diff(upstream string, revision uint64) (upstreams.Differences, error)
}

// ClusterControls carries out orders of operators about found clusters. Errors that wrap clusters.ErrUnknown or
// registry.ErrNotPossible get an HTTP status of their own. Its methods must be safe for concurrent use.
type ClusterControls interface {
	// Release makes the held clusters of a part of the config orphaned, and returns their number.
	Release(name string) (int, error)
	// Remove removes an orphaned or held cluster.
	Remove(name, cluster string) error
}

// Released is the number of clusters that were released.
type Released struct {
	Clusters int `json:"clusters"`
}

// Controlled is the state of an upstream after an order.
type Controlled struct {
	upstreams.Status
	// KeepsState is set when the relay keeps state: the order then outlives a restart.
	KeepsState bool `json:"keepsState"`
	// DryRun is set when nothing has changed: Effect is what would change.
	DryRun bool          `json:"dryRun,omitempty"`
	Effect intake.Effect `json:"effect"`
}

// Waiting lists the upstreams for which clients wait.
type Waiting struct {
	// For are the names of upstreams that must sync first.
	For []string `json:"for,omitempty"`
	// KeepsState is set when the order outlives a restart.
	KeepsState bool `json:"keepsState"`
	// Replicas is set if the relay is one of several.
	Replicas *intake.Reach `json:"replicas,omitempty"`
}

// maxLogged bounds one parameter in the log, in bytes.
const maxLogged = 256

func (s *Server) held(_ *http.Request, upstream string) (any, error) {
	all, err := s.deps.Controls.Held(upstream)
	return notNil(all), err
}

// order carries out an order about an upstream.
func (s *Server) order(r *http.Request, verb string, line *audit.Line) (any, error) {
	upstream := r.PathValue("upstream")
	o, err := orderOf(verb, r.URL.Query())
	if err != nil {
		return nil, err
	}
	o.Operator = operatorOf(r)
	var effect intake.Effect
	err = s.write(r, line, s.upstreamText, upstream, func() (err error) {
		effect, err = s.deps.Controls.Order(r.Context(), upstream, verb, o)
		return err
	}, orderAttrs(r, verb, upstream, o)...)
	if err != nil {
		return nil, err
	}
	line.After += fmt.Sprintf("; added %d, changed %d, removed %d", effect.Added, effect.Changed, effect.Removed)
	u, ok := s.upstream(upstream)
	if !ok { // a reload has removed it
		return nil, intake.ErrUnknownUpstream
	}
	return Controlled{u, s.deps.Backup != nil, o.DryRun, effect}, nil
}

// orderAttrs returns the attributes of an order in the log.
func orderAttrs(r *http.Request, verb, upstream string, o intake.Order) []any {
	attrs := []any{"upstream", upstream}
	if o.Reason != "" {
		attrs = append(attrs, "reason", o.Reason)
	}
	if o.DryRun {
		attrs = append(attrs, "dryRun", true)
	}
	if o.Local {
		attrs = append(attrs, "local", true)
	}
	for _, parameter := range parameters[verb] {
		if given := strings.Join(r.URL.Query()[parameter], " "); given != "" {
			attrs = append(attrs, parameter, given[:min(len(given), maxLogged)])
		}
	}
	return attrs
}

// serveWithout ends the wait of clients for an upstream.
func (s *Server) serveWithout(_ http.ResponseWriter, r *http.Request, line *audit.Line) (any, error) {
	upstream := r.PathValue("upstream")
	here, err := switchOf(r.URL.Query(), "local")
	if err != nil {
		return nil, err
	}
	waiting := Waiting{KeepsState: s.deps.Backup != nil}
	err = s.write(r, line, s.upstreamText, upstream, func() error {
		effect, err := s.deps.Controls.Order(r.Context(), upstream, "serve-without", intake.Order{Operator: operatorOf(r), Local: here})
		waiting.Replicas = effect.Replicas
		return err
	}, orderAttrs(r, "serve-without", upstream, intake.Order{Local: here})...)
	for _, u := range s.deps.Debug.views.Upstreams() {
		if u.FirstSync != nil && u.FirstSync.Awaited {
			waiting.For = append(waiting.For, u.Name)
		}
	}
	return waiting, err
}

// releaseClusters makes held clusters orphaned.
func (s *Server) releaseClusters(_ http.ResponseWriter, r *http.Request, line *audit.Line) (any, error) {
	var out Released
	name := r.PathValue("clusters")
	err := s.write(r, line, s.clustersText, name, func() (err error) {
		out.Clusters, err = s.deps.Clusters.Release(name)
		return err
	}, "clusters", name[:min(len(name), maxLogged)])
	return out, err
}

// removeCluster removes an orphaned or held cluster.
func (s *Server) removeCluster(_ http.ResponseWriter, r *http.Request, line *audit.Line) (any, error) {
	name, cluster := r.PathValue("clusters"), r.URL.Query().Get("cluster")
	err := s.write(r, line, s.clustersText, name, func() error { return s.deps.Clusters.Remove(name, cluster) },
		"clusters", name[:min(len(name), maxLogged)], "cluster", cluster[:min(len(cluster), maxLogged)])
	return struct{}{}, err
}

func (s *Server) reload(_ http.ResponseWriter, r *http.Request, line *audit.Line) (any, error) {
	loaded := func(string) string { return s.deps.ReloadStatus().Text() }
	err := s.write(r, line, loaded, "", func() error { return s.deps.Reload(r.Context()) })
	if err != nil && !interrupted(err) {
		return nil, refusal{http.StatusUnprocessableEntity, errors.New(strings.Join(errlist.Lines(err), "\n"))}
	}
	return s.deps.ReloadStatus(), err
}

// write carries out one change at a time, and logs the operator. The line gets the text of what is changed, before and
// after it.
func (s *Server) write(r *http.Request, line *audit.Line, text func(name string) string, name string, do func() error, attrs ...any) error {
	select {
	case s.writing <- struct{}{}:
		defer func() { <-s.writing }()
	case <-r.Context().Done():
		return r.Context().Err()
	}
	line.Before = text(name)
	err := do()
	line.After = text(name)
	if err != nil {
		attrs = append(attrs, "err", strings.Join(errlist.Lines(err), "; "))
	}
	s.recordOrder(r, line.Action, err, attrs)
	s.logAction(r, s.deps.LogLevel.Level(), line.Action, attrs...)
	return err
}

// logAction logs an action of an operator, at least at level, so that the line is always shown.
func (s *Server) logAction(r *http.Request, level slog.Level, action string, attrs ...any) {
	who, _ := peerOf(r.Context())
	s.log.Log(r.Context(), max(level, slog.LevelInfo), "operator", append([]any{"action", action, "uid", who.UID, "pid", who.PID}, attrs...)...)
}

// recordOrder records an order in the journal, except dry runs and orders that the upstream has recorded itself.
func (s *Server) recordOrder(r *http.Request, action string, err error, attrs []any) {
	if slices.Contains(attrs, any("dryRun")) || err == nil && parameters[action] != nil {
		return
	}
	e := events.Event{Type: events.Ordered, By: events.ByOperator, Operator: operatorOf(r), Text: action}
	for i := 0; i+1 < len(attrs); i += 2 {
		switch value := fmt.Sprint(attrs[i+1]); attrs[i] {
		case "upstream":
			e.Upstream = value
		case "reason":
			e.Reason = value
		case "err":
			e.Text += " refused: " + value
		default:
			e.Text += fmt.Sprintf(" %v=%s", attrs[i], value)
		}
	}
	s.deps.Debug.views.Events.Record(e)
}

// operatorOf returns the operator who sent a request over the socket.
func operatorOf(r *http.Request) *events.Operator {
	who, _ := peerOf(r.Context())
	o := &events.Operator{UID: who.UID}
	if u, err := user.LookupId(strconv.Itoa(who.UID)); err == nil {
		o.User = u.Username
	}
	return o
}

// backup answers with a copy of the state. It changes nothing: it is logged, but not recorded as an order.
func (s *Server) backup(w http.ResponseWriter, r *http.Request, line *audit.Line) (any, error) {
	if s.deps.Backup == nil {
		return nil, refuse(http.StatusConflict, "there is no state to copy: state.dir is not set")
	}
	select {
	case s.backups <- struct{}{}:
		defer func() { <-s.backups }()
	default:
		return nil, refuse(http.StatusServiceUnavailable, "another copy is being made; try again")
	}
	endIn(w, backupTimeout)
	n, err := s.stream(w, r, "application/octet-stream", s.deps.Backup)
	if err == nil {
		line.After = fmt.Sprintf("%d bytes", n)
		s.logAction(r, s.deps.LogLevel.Level(), "backup", "bytes", n)
	}
	return nil, err
}
