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
	"github.com/zeebo/xxh3"
	"google.golang.org/protobuf/proto"

	"meshrelay/adsclient"
	"meshrelay/federation/services"
	"meshrelay/internal/loglimit"
	"meshrelay/internal/panics"
	"meshrelay/internal/wire"
	"meshrelay/mirror"
	"meshrelay/upstreams"
	"meshrelay/upstreams/intake"
	"meshrelay/upstreams/intake/records"
)

const (
	edsMessage = "envoy.config.endpoint.v3.ClusterLoadAssignment"
	edsTypeURL = "type.googleapis.com/" + edsMessage

	endpointsPatience = 30 * time.Second // for the first answer about a cluster
	maxAssignment     = 4 << 20          // bytes of one cluster
	maxAssignments    = 256 << 20        // bytes of all

	// forgetAfter is how long an unwanted assignment is kept, and maxUnwanted how many are. A
	// server ignores a request that crosses its response. If the cluster is wanted again soon, the
	// server sees no difference and does not repeat the assignment.
	forgetAfter = time.Minute
	maxUnwanted = 1 << 16
)

// endpoints follows the endpoints of an istiod's clusters, by EDS on a stream of its own.
type endpoints struct {
	client     *adsclient.Client
	patience   time.Duration
	log        *slog.Logger
	complaints *loglimit.Limit
	changed    func(clusters []string)
	wake       chan struct{} // wakes run to look at the clusters

	mu       sync.Mutex             // guards the fields below
	clusters map[string]*assignment // wanted now, or within forgetAfter
	size     int                    // of all assignments, in bytes
	// lastError is the stream's last error, empty while it works. leftOut is the error of want.
	lastError, leftOut string
	nacks              uint64
}

// assignment is the state of one cluster.
type assignment struct {
	digest    xxh3.Uint128    // of the newest ClusterLoadAssignment, as it came
	endpoints services.Packed // that the relay can use
	some      bool            // a locality has endpoints, of any sort
	answered  bool
	wanted    bool
	since     time.Time // when wanted changed
	awaited   bool      // the first answer has not come
	news      bool      // run must call changed
}

// newEndpoints returns endpoints without clusters. patience is how long to wait for the first
// answer about a cluster. run calls changed, in turn, with the clusters whose assignment has
// changed or did not come in time.
func newEndpoints(cfg adsclient.Config, patience time.Duration, changed func(clusters []string)) *endpoints {
	e := &endpoints{
		patience: patience, log: cfg.Logger, complaints: newComplaints(), changed: changed,
		wake: make(chan struct{}, 1), clusters: map[string]*assignment{},
	}
	cfg.Protocol, cfg.Names = adsclient.SotW, e.names
	cfg.TypeURLs = func(bool) []string { return []string{edsTypeURL} }
	e.client = adsclient.New(cfg, e)
	return e
}

func (e *endpoints) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- panics.Contain(func() error { return e.client.Run(ctx) }) }()
	late := time.NewTimer(0)
	defer late.Stop()
	for {
		select {
		case err := <-done:
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

// take returns the clusters for changed, and how long run may wait until the next call.
func (e *endpoints) take(now time.Time) (news []string, wait time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	wait = time.Hour
	late := 0
	for name, a := range e.clusters {
		passed, left := now.Sub(a.since), time.Duration(0)
		switch {
		case a.awaited:
			if left = e.patience - passed; left <= 0 {
				late++
				a.awaited, a.news = false, true
			}
		case !a.wanted:
			if left = forgetAfter - passed; left <= 0 {
				e.forget(name)
			}
		}
		if left > 0 {
			wait = min(wait, left)
		}
		if a.news {
			a.news = false
			news = append(news, name)
		}
	}
	if late > 0 {
		e.log.Warn("clusters without an answer, their endpoints are left out", "clusters", late, "waited", e.patience)
	}
	slices.Sort(news)
	return news, wait
}

func (e *endpoints) forget(name string) {
	e.size -= len(e.clusters[name].endpoints)
	delete(e.clusters, name)
}

func (e *endpoints) forgetUnwanted() {
	for name, a := range e.clusters {
		if !a.wanted {
			e.forget(name)
		}
	}
}

// want follows exactly these clusters. It does not block. It returns an error if one request can
// not name them all: the rest counts as without endpoints.
func (e *endpoints) want(clusters map[string]struct{}) error {
	fit, err := adsclient.FitNames(slices.Collect(maps.Keys(clusters)))
	if e.follow(fit, err) {
		e.client.Resubscribe()
		mirror.Signal(e.wake)
	}
	return err
}

// follow sets the wanted clusters and reports whether they have changed.
func (e *endpoints) follow(names []string, leftOut error) (differs bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.leftOut = ""
	if leftOut != nil {
		e.leftOut = leftOut.Error()
	}
	now, wanted := time.Now(), make(map[string]bool, len(names))
	for _, name := range names {
		wanted[name] = true
		a := e.clusters[name]
		if a == nil {
			a = &assignment{}
			e.clusters[name] = a
		}
		if !a.wanted {
			differs = true
			a.wanted, a.since, a.awaited, a.news = true, now, !a.answered, a.answered
		}
	}
	for name, a := range e.clusters {
		if a.wanted && !wanted[name] {
			differs = true
			a.wanted, a.since, a.awaited, a.news = false, now, false, false
		}
	}
	if len(e.clusters)-len(wanted) > maxUnwanted {
		e.forgetUnwanted()
	}
	return differs
}

// names implements adsclient.Config.Names.
func (e *endpoints) names(string) (names []string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for name, a := range e.clusters {
		if a.wanted {
			names = append(names, name)
		}
	}
	return names
}

// told returns what the server has told of clusters, without those that are awaited.
func (e *endpoints) told(clusters []string) intake.Endpoints {
	e.mu.Lock()
	defer e.mu.Unlock()
	out := make(intake.Endpoints, len(clusters))
	for _, name := range clusters {
		switch a := e.clusters[name]; {
		case a == nil || !a.wanted:
			out[name] = records.Assignment{}
		case !a.awaited:
			out[name] = records.Assignment{Endpoints: a.endpoints, Known: a.answered}
		}
	}
	return out
}

func (e *endpoints) describe() *upstreams.EndpointsStatus {
	e.mu.Lock()
	defer e.mu.Unlock()
	st := &upstreams.EndpointsStatus{NACKs: e.nacks, LastError: cmp.Or(e.leftOut, e.lastError)}
	some := false
	for _, a := range e.clusters {
		if !a.wanted {
			continue
		}
		st.Clusters++
		some = some || a.some
		if a.answered {
			st.Answered++
		}
		if a.awaited {
			st.Awaited++
		}
	}
	if st.Clusters > 0 && st.Awaited == 0 && !some {
		st.None = fmt.Sprintf("the server gives no endpoint of any of %d ports of services (one in ambient mode with a network gives none): read them from the API server of its cluster, or set services.mode: gateway", st.Clusters)
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
		e.log.Debug("endpoint stream answered", "address", s.Address)
	case adsclient.Disconnected, adsclient.Denied:
		if s.Err == nil {
			return
		}
		text := s.Err.Error()
		switch {
		case s.Answered:
			e.log.Debug("endpoint stream ended, reconnecting", "address", s.Address, "err", s.Err)
		case text != e.lastError:
			e.log.Warn("endpoint stream failed, last endpoints used", "address", s.Address, "err", s.Err)
		}
		e.lastError = text
	}
}

// ResumeVersions implements adsclient.Handler. SotW has none.
func (e *endpoints) ResumeVersions(string) map[string]string { return nil }

// takeResponse takes a response, and returns how many clusters have changed.
func (e *endpoints) takeResponse(resp *adsclient.Response) (changed int, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	var out records.Result
	if resp.TypeURL == edsTypeURL {
		changed = e.takeAll(resp, &out)
		err = out.Err()
	} else {
		err = fmt.Errorf("type %.128s was not asked for", resp.TypeURL)
	}
	if err != nil {
		e.nacks++
	}
	return changed, err
}

// HandleResponse implements adsclient.Handler. A response leaves clusters that it does not name
// unchanged (PROTOCOL N2).
func (e *endpoints) HandleResponse(resp *adsclient.Response) error {
	changed, err := e.takeResponse(resp)
	e.log.Debug("endpoint response", "clusters", resp.Len(), "changed", changed, "bytes", resp.Size())
	if changed > 0 {
		mirror.Signal(e.wake)
	}
	if err != nil {
		e.complaints.Warn(e.log, "response refused in part, last endpoints used", "type", resp.TypeURL, "err", err)
	}
	return err
}

// takeAll stores the assignments of a response, and returns how many wanted ones have changed.
func (e *endpoints) takeAll(resp *adsclient.Response, out *records.Result) (changed int) {
	for raw := range resp.Resources(maxAssignment) {
		name, value, err := splitAssignment(raw.Peek())
		if err != nil {
			out.Refuse("an element", err)
			continue
		}
		a := e.clusters[string(name)]
		if a == nil {
			continue
		}
		differs, err := e.assign(a, value, raw.Size)
		if err != nil {
			out.Refuse(fmt.Sprintf("%.128s", name), err)
		} else if differs && a.wanted {
			changed++
			a.news, a.awaited = true, false
		}
	}
	return changed
}

// assign stores an assignment and reports whether its endpoints have changed. size is that of its element.
func (e *endpoints) assign(a *assignment, value []byte, size int) (differs bool, err error) {
	if size > maxAssignment {
		return false, fmt.Errorf("%d bytes: more than %d", size, maxAssignment)
	}
	digest := xxh3.Hash128(value)
	if a.answered && a.digest == digest {
		return false, nil
	}
	all, err := panics.Value(func() (services.Packed, error) {
		cla := &endpointv3.ClusterLoadAssignment{}
		err := proto.Unmarshal(value, cla)
		return services.Pack(services.FromAssignment(cla)), err
	})
	if p, is := errors.AsType[*panics.Panic](err); is {
		e.complaints.Log(e.log, slog.LevelError, "panic while reading the endpoints of a cluster", "panic", p.Value, "stack", p.Stack)
	}
	if err != nil {
		return false, err
	}
	added := len(all) - len(a.endpoints)
	if a.wanted && e.size+added > maxAssignments {
		e.forgetUnwanted()
	}
	if e.size+added > maxAssignments {
		return false, fmt.Errorf("all endpoints together take more than %d bytes", maxAssignments)
	}
	differs = !a.answered || a.endpoints != all
	e.size += added
	a.digest, a.endpoints, a.some, a.answered = digest, all, len(wire.Last(value, 2)) > 0, true
	return differs, nil
}

// splitAssignment returns the name of a cluster and its encoded ClusterLoadAssignment.
func splitAssignment(element []byte) (name, value []byte, err error) {
	if !bytes.HasSuffix(wire.Last(element, 1), []byte("/"+edsMessage)) {
		return nil, nil, errors.New("the element is not an " + edsMessage)
	}
	value = wire.Last(element, 2)
	if name = wire.Last(value, 1); len(name) == 0 {
		return nil, nil, errors.New("the element has no name")
	}
	return name, value, nil
}
