package xds

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	"google.golang.org/protobuf/proto"

	"meshrelay/adsclient"
	"meshrelay/internal/loglimit"
	"meshrelay/internal/wire"
	"meshrelay/upstreams"
	"meshrelay/upstreams/intake"
)

const (
	edsMessage = "envoy.config.endpoint.v3.ClusterLoadAssignment"
	edsTypeURL = "type.googleapis.com/" + edsMessage

	// endpointsPatience is how long a cluster's first answer is waited for.
	endpointsPatience = 30 * time.Second
	// maxAssignment and maxAssignments bound, in bytes, what is kept of one cluster and of
	// all. An endpoint takes about 150.
	maxAssignment  = 4 << 20
	maxAssignments = 256 << 20

	// forgetAfter is how long what is not wanted any more is kept. The server can not be
	// known to have taken note: a request that crosses a response is ignored. Were a cluster
	// wanted again before, the server would see no difference, and not tell it once more.
	forgetAfter = time.Minute
	maxParted   = 1 << 16
)

// endpoints follows the endpoints of clusters that an istiod has, by EDS on a stream of its
// own. What is known stays known through disconnects.
type endpoints struct {
	client     *adsclient.Client
	patience   time.Duration
	log        *slog.Logger
	complaints *loglimit.Limit
	changed    func(clusters []string)
	wake       chan struct{} // has an element when there is news, or something else to wait for

	// mu guards all below.
	mu sync.Mutex
	// clusters are those that are wanted.
	clusters map[string]*assignment
	// missing are those whose first answer is waited for.
	missing map[string]*assignment
	// parted are those that were wanted a moment ago.
	parted map[string]*assignment
	// news are those that differ from what changed was told of.
	news map[string]struct{}
	size int // of all assignments, in bytes
	// lastError is the most recent failure of the stream, empty while it works, and leftOut why
	// not all clusters can be asked for.
	lastError, leftOut string
	nacks              uint64
}

// assignment is what is known of one cluster.
type assignment struct {
	// data is a ClusterLoadAssignment, encoded deterministically.
	data     []byte
	answered bool
	since    time.Time // that it is wanted, or is not any more
}

// newEndpoints returns endpoints that follow nothing yet, over a client of cfg. patience is how long
// a cluster's first answer is waited for. changed is called from run, and never twice at a time, with
// the names of clusters whose assignment is another than before, or was given up.
func newEndpoints(cfg adsclient.Config, patience time.Duration, changed func(clusters []string)) (*endpoints, error) {
	e := &endpoints{
		patience: patience, log: cfg.Logger, complaints: newComplaints(), changed: changed, wake: make(chan struct{}, 1),
		clusters: map[string]*assignment{}, missing: map[string]*assignment{}, parted: map[string]*assignment{},
		news: map[string]struct{}{},
	}
	cfg.Protocol, cfg.Names = adsclient.SotW, e.names
	cfg.TypeURLs = func(bool) []string { return []string{edsTypeURL} }
	var err error
	e.client, err = adsclient.New(cfg, e)
	return e, err
}

// run follows the endpoints until ctx ends. It is called once.
func (e *endpoints) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- e.client.Run(ctx) }()
	late := time.NewTimer(0)
	defer late.Stop()
	for {
		select {
		case err := <-done:
			cancel()
			return err
		case <-e.wake:
		case <-late.C:
		}
		news, wait := e.take(time.Now())
		if len(news) > 0 && ctx.Err() == nil {
			e.changed(news)
		}
		late.Reset(wait)
	}
}

// take returns what there is to tell, and how long there will be nothing else unless it
// comes from the server.
func (e *endpoints) take(now time.Time) (news []string, wait time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	wait = time.Hour
	late := 0
	for name, a := range e.missing {
		left := e.patience - now.Sub(a.since)
		if left > 0 {
			wait = min(wait, left)
			continue
		}
		late++
		delete(e.missing, name)
		e.news[name] = struct{}{}
	}
	if late > 0 {
		e.log.Warn("the upstream does not tell the endpoints of all services; until it does, they count as none",
			"clusters", late, "waited", e.patience)
	}
	for name, a := range e.parted {
		if left := forgetAfter - now.Sub(a.since); left > 0 {
			wait = min(wait, left)
		} else {
			e.forget(name, a)
		}
	}
	if len(e.news) == 0 {
		return nil, wait
	}
	news = slices.Sorted(maps.Keys(e.news))
	clear(e.news)
	return news, wait
}

func (e *endpoints) forget(name string, a *assignment) {
	e.size -= len(a.data)
	delete(e.parted, name)
}

func (e *endpoints) stir() {
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// want makes clusters those that are followed. It may be called at any time, and does not
// wait. The error tells that not all can be asked for: the others are as if they had no
// endpoints.
func (e *endpoints) want(clusters map[string]struct{}) error {
	fit, err := adsclient.FitNames(slices.Collect(maps.Keys(clusters)))
	if e.follow(fit, err) {
		e.client.Resubscribe()
		e.stir()
	}
	return err
}

// follow reports whether other clusters are wanted than before.
func (e *endpoints) follow(names []string, leftOut error) (differs bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.leftOut = ""
	if leftOut != nil {
		e.leftOut = leftOut.Error()
	}
	now := time.Now()
	kept := 0
	for _, name := range names {
		if e.clusters[name] != nil {
			kept++
		}
	}
	if kept == len(names) && kept == len(e.clusters) {
		return false
	}
	next := make(map[string]*assignment, len(names))
	for _, name := range names {
		a := e.clusters[name]
		if a == nil {
			a = e.admit(name)
			a.since = now
		}
		next[name] = a
	}
	for name, a := range e.clusters {
		if next[name] == nil {
			delete(e.missing, name)
			delete(e.news, name)
			e.parted[name] = a
			a.since = now
		}
	}
	if len(e.parted) > maxParted {
		e.forgetAll()
	}
	e.clusters = next
	return true
}

// admit returns what is known of a cluster that was not wanted.
func (e *endpoints) admit(name string) *assignment {
	a := e.parted[name]
	delete(e.parted, name)
	if a == nil {
		a = &assignment{}
	}
	if a.answered {
		e.news[name] = struct{}{}
	} else {
		e.missing[name] = a
	}
	return a
}

func (e *endpoints) forgetAll() {
	for name, a := range e.parted {
		e.forget(name, a)
	}
}

// names is adsclient.Config.Names.
func (e *endpoints) names(string) []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Collect(maps.Keys(e.clusters))
}

// Known implements intake.Assignments. What it returns is the caller's.
func (e *endpoints) Known(cluster string) *endpointv3.ClusterLoadAssignment {
	e.mu.Lock()
	var a assignment
	if known := e.clusters[cluster]; known != nil {
		a = *known // its data is replaced, never changed
	}
	e.mu.Unlock()
	if !a.answered {
		return nil
	}
	cla := &endpointv3.ClusterLoadAssignment{}
	if err := proto.Unmarshal(a.data, cla); err != nil {
		// It is our own encoding of a message that did decode.
		panic(fmt.Sprintf("upstreams: assignment of %s does not decode: %v", cluster, err))
	}
	return cla
}

// Settled implements intake.Assignments: a cluster is settled when it was answered, or given up, or
// is not followed.
func (e *endpoints) Settled(cluster string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.missing[cluster] == nil
}

// describe returns what is known.
func (e *endpoints) describe() *upstreams.EndpointsStatus {
	e.mu.Lock()
	defer e.mu.Unlock()
	st := &upstreams.EndpointsStatus{Clusters: len(e.clusters), Awaited: len(e.missing), NACKs: e.nacks, LastError: cmp.Or(e.leftOut, e.lastError)}
	for _, a := range e.clusters {
		if a.answered {
			st.Answered++
		}
	}
	return st
}

// HandleState implements adsclient.Handler.
func (e *endpoints) HandleState(s adsclient.State) {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch s.Phase {
	case adsclient.Connected:
		e.lastError = ""
		e.log.Debug("endpoints are answered", "address", s.Address)
	case adsclient.Disconnected, adsclient.Denied:
		if s.Err == nil {
			return
		}
		text := s.Err.Error()
		switch {
		case s.Answered:
			e.log.Debug("stream of endpoints ended; reconnecting", "address", s.Address, "err", s.Err)
		case text != e.lastError:
			e.log.Warn("endpoints can not be asked for; those that are known are used", "address", s.Address, "err", s.Err)
		}
		e.lastError = text
	}
}

// ResumeVersions implements adsclient.Handler. There are none in SotW.
func (e *endpoints) ResumeVersions(string) map[string]string { return nil }

// HandleResponse implements adsclient.Handler. What a response does not mention is as it
// was (PROTOCOL N2).
func (e *endpoints) HandleResponse(resp *adsclient.Response) error {
	if resp.TypeURL != edsTypeURL {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.nacks++
		return fmt.Errorf("type %s was not asked for", abbreviate(resp.TypeURL))
	}
	var out intake.Result
	changed := 0
	e.mu.Lock()
	for raw := range resp.Resources(maxAssignment) {
		name, value, err := splitAssignment(raw.Peek())
		if err != nil {
			out.Refuse("an element", err)
			continue
		}
		a, wanted := e.clusters[string(name)]
		if !wanted {
			if a = e.parted[string(name)]; a == nil {
				continue
			}
		}
		differs, err := e.assign(a, value, raw.Size, wanted)
		if err != nil {
			out.Refuse(abbreviate(string(name)), err)
			continue
		}
		if differs && wanted {
			changed++
			e.news[string(name)] = struct{}{}
			delete(e.missing, string(name))
		}
	}
	if out.RefusedTotal > 0 {
		e.nacks++
	}
	e.mu.Unlock()
	e.log.Debug("endpoints", "clusters", resp.Len(), "changed", changed, "bytes", resp.Size())
	if changed > 0 {
		e.stir()
	}
	err := out.Err()
	if err != nil {
		e.complaints.Warn(e.log, "response refused in part; the endpoints known before are used", "type", resp.TypeURL, "err", err)
	}
	return err
}

// assign takes over an assignment, whose element has size bytes, and reports whether it differs from what is known. It is
// decoded once for that, and encoded anew: then only its content decides.
func (e *endpoints) assign(a *assignment, value []byte, size int, wanted bool) (differs bool, err error) {
	if size > maxAssignment {
		return false, fmt.Errorf("%d bytes: more than %d", size, maxAssignment)
	}
	if a.answered && bytes.Equal(a.data, value) {
		return false, nil
	}
	cla := &endpointv3.ClusterLoadAssignment{}
	if err := proto.Unmarshal(value, cla); err != nil {
		return false, err
	}
	data, err := proto.MarshalOptions{Deterministic: true}.Marshal(cla)
	if err != nil {
		return false, err
	}
	added := len(data) - len(a.data)
	if wanted && e.size+added > maxAssignments {
		e.forgetAll()
	}
	if e.size+added > maxAssignments {
		return false, fmt.Errorf("all endpoints together take more than %d bytes", maxAssignments)
	}
	differs = !a.answered || !bytes.Equal(a.data, data)
	e.size += added
	a.data, a.answered = data, true
	return differs, nil
}

var errNoAssignment = errors.New("the element is no " + edsMessage)

// splitAssignment returns the name of a cluster and its encoded ClusterLoadAssignment, of
// which nothing else has been decoded.
func splitAssignment(element []byte) (name, value []byte, err error) {
	if !bytes.HasSuffix(wire.Last(element, 1), []byte("/"+edsMessage)) {
		return nil, nil, errNoAssignment
	}
	value = wire.Last(element, 2)
	if name = wire.Last(value, 1); len(name) == 0 {
		return nil, nil, errors.New("the element has no name")
	}
	return name, value, nil
}

func abbreviate(s string) string {
	if len(s) > 128 {
		return s[:128] + "…"
	}
	return s
}
