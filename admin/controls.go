package admin

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

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
}

func (s *Server) held(_ *http.Request, upstream string) (any, error) {
	all, err := s.deps.Controls.Held(upstream)
	return notNil(all), err
}

// order carries out an order about an upstream.
func (s *Server) order(r *http.Request, verb string, o *order) (any, error) {
	want, err := orderOf(verb, r.URL.Query())
	if err != nil {
		return nil, err
	}
	o.reads = want.DryRun
	var effect intake.Effect
	err = s.write(r, o, s.upstreamText, func() (err error) {
		effect, err = s.deps.Controls.Order(r.Context(), o.target, verb, want)
		return err
	})
	if err != nil {
		return nil, err
	}
	o.after += fmt.Sprintf("; added %d, changed %d, removed %d", effect.Added, effect.Changed, effect.Removed)
	u, ok := s.upstream(o.target)
	if !ok { // a reload has removed it
		return nil, intake.ErrUnknownUpstream
	}
	return Controlled{u, s.deps.Backup != nil, want.DryRun, effect}, nil
}

// serveWithout ends the wait of clients for an upstream.
func (s *Server) serveWithout(_ http.ResponseWriter, r *http.Request, o *order) (any, error) {
	waiting := Waiting{KeepsState: s.deps.Backup != nil}
	err := s.write(r, o, s.upstreamText, func() error {
		_, err := s.deps.Controls.Order(r.Context(), o.target, "serve-without", intake.Order{})
		return err
	})
	for _, u := range s.deps.Debug.views.Upstreams() {
		if u.FirstSync != nil && u.FirstSync.Awaited {
			waiting.For = append(waiting.For, u.Name)
		}
	}
	return waiting, err
}

// releaseClusters makes held clusters orphaned.
func (s *Server) releaseClusters(_ http.ResponseWriter, r *http.Request, o *order) (any, error) {
	var out Released
	err := s.write(r, o, s.clustersText, func() (err error) {
		out.Clusters, err = s.deps.Clusters.Release(o.target)
		return err
	})
	return out, err
}

// removeCluster removes an orphaned or held cluster.
func (s *Server) removeCluster(_ http.ResponseWriter, r *http.Request, o *order) (any, error) {
	return struct{}{}, s.write(r, o, s.clustersText, func() error { return s.deps.Clusters.Remove(o.target, r.URL.Query().Get("cluster")) })
}

func (s *Server) reload(_ http.ResponseWriter, r *http.Request, o *order) (any, error) {
	loaded := func(string) string { return s.deps.ReloadStatus().Text() }
	err := s.write(r, o, loaded, func() error { return s.deps.Reload(r.Context()) })
	if err != nil && !interrupted(err) {
		return nil, refusal{http.StatusUnprocessableEntity, errors.New(strings.Join(errlist.Lines(err), "\n"))}
	}
	return s.deps.ReloadStatus(), err
}

// write carries out one change at a time. The order gets the text of what is changed, before and after it.
func (s *Server) write(r *http.Request, o *order, text func(target string) string, do func() error) error {
	select {
	case s.writing <- struct{}{}:
		defer func() { <-s.writing }()
	case <-r.Context().Done():
		return r.Context().Err()
	}
	o.before = text(o.target)
	err := do()
	o.after = text(o.target)
	return err
}

// backup answers with a copy of the state.
func (s *Server) backup(w http.ResponseWriter, r *http.Request, o *order) (any, error) {
	o.reads = true
	if s.deps.Backup == nil {
		return nil, Refuse(http.StatusConflict, "there is no state to copy: state.dir is not set")
	}
	if !s.backups.TryLock() {
		return nil, Refuse(http.StatusServiceUnavailable, "another copy is being made; try again")
	}
	defer s.backups.Unlock()
	endIn(w, backupTimeout)
	n, err := s.stream(w, r, "application/octet-stream", s.deps.Backup)
	if err == nil {
		o.after = fmt.Sprintf("%d bytes", n)
	}
	return nil, err
}
