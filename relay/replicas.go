package relay

import (
	"context"
	"encoding/json"
	"io"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/singleflight"

	"meshrelay/admin"
	"meshrelay/config"
	"meshrelay/internal/loglimit"
	"meshrelay/peers"
	"meshrelay/upstreams"
)

const (
	pollEvery   = 5 * time.Second        // the status of other replicas
	pollTimeout = 2 * time.Second        // of one poll. An order waits longer.
	applyEvery  = 200 * time.Millisecond // between two questions whether a decision is in effect
)

// replicas asks the other replicas, and answers them. It is a prometheus.Collector.
type replicas struct {
	r      *Relay
	set    *peers.Set
	server *peers.Server
	creds  *peers.Credentials
	// decided returns the status of the decisions, nil where none are kept.
	decided func() *upstreams.ReplicasStatus
	// atStart returns what replicas tell when the relay starts. The first call asks them, and begins startBudget.
	atStart func() candidates
	polls   singleflight.Group // of ask

	mu    sync.Mutex // guards known
	known []peers.Replica
}

// newReplicas returns the replicas of a config, nil when it has none. lookup is nil for that of the config.
func (r *Relay) newReplicas(p *config.Peers, lookup peers.Lookup, debug *admin.Debug) (*replicas, error) {
	creds, err := peers.NewCredentials(p.CertFile, p.KeyFile, p.CAFile, p.Identities)
	if err != nil {
		return nil, err
	}
	if lookup == nil {
		lookup = peers.LookupService(p.Service)
	}
	x := &replicas{creds: creds, r: r, set: peers.NewSet(p.Service, lookup, creds), decided: r.manager.Replicas}
	x.atStart = sync.OnceValue(x.askAtStart)
	x.server = peers.NewServer(p.Listen, creds, x.set.Process, map[string]peers.Document{
		"status":       func(_ context.Context, _ url.Values, w io.Writer) error { return json.NewEncoder(w).Encode(x.own()) },
		"state":        r.writeSaved,
		"held":         r.writeHeld,
		"distribution": func(_ context.Context, q url.Values, w io.Writer) error { return debug.WriteDistribution(w, q) },
	}, r.log)
	return x, nil
}

// own returns what this replica tells about itself.
func (x *replicas) own() peers.Status {
	r := x.r
	s := peers.Status{
		Node: r.config.Load().Node.ID, Version: r.options.Build.Version, Process: x.set.Process, Config: r.options.Watcher.Status().Hash,
		Serving: r.server.HasReleased(), Time: time.Now(),
	}
	decided := x.decided()
	if decided != nil {
		s.Decisions = decided.Sequence
	}
	s.Clients, s.Synced = r.server.Synced()
	for _, u := range r.manager.Status() {
		one := peers.Upstream{Name: u.Name, Content: u.Content, InContact: u.InContact, LastContact: u.LastUpdate}
		for _, n := range u.Resources {
			one.Resources += n
		}
		if decided != nil {
			one.Lacks = decided.Missing[u.Name] != ""
		}
		if u.Held != nil {
			one.Held = u.Held.Removals
		}
		s.Upstreams = append(s.Upstreams, one)
	}
	return s
}

// Run answers replicas and asks for their status, until ctx ends.
func (x *replicas) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return x.server.Run(ctx) })
	g.Go(func() error {
		again, notes := time.NewTicker(pollEvery), loglimit.New(1, time.Minute)
		defer again.Stop()
		for {
			if err := x.creds.Read(); err != nil {
				notes.Warn(x.r.log, "certificates of replicas.peers not read, the last good ones stay", "err", err)
			}
			x.poll(ctx)
			select {
			case <-ctx.Done():
				return nil
			case <-again.C:
			}
		}
	})
	return g.Wait()
}

// poll asks the other replicas, and returns all, this one first. If ctx ends meanwhile, those that have not answered are as
// before.
func (x *replicas) poll(ctx context.Context) []peers.Replica {
	asking, cancel := context.WithTimeout(ctx, pollTimeout)
	defer cancel()
	answers, failures := x.set.Statuses(asking)
	own := x.own()
	x.mu.Lock()
	defer x.mu.Unlock()
	if ctx.Err() == nil {
		x.known = peers.Update(time.Now(), x.known, own, answers, failures)
		return x.known
	}
	known := slices.Clone(x.known)
	for i := range known {
		if s, answers := answers[known[i].Peer]; answers {
			known[i].Status, known[i].Reached = s, true
		}
	}
	return known
}

// all returns all replicas, this one first, or none without a config of peers.
func (x *replicas) all() []peers.Replica {
	if x == nil {
		return nil
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.known
}

// Applied implements upstreams.Peers.
func (x *replicas) Applied(ctx context.Context, upstream string, number uint64) (did, of int, unreachable []string) {
	for {
		did, of, unreachable = 0, 0, nil
		for _, r := range x.poll(ctx) {
			there := r.Status.Of(upstream)
			switch {
			case r.Peer == "":
				continue
			case !r.Reached:
				unreachable = append(unreachable, strings.TrimSpace(r.Status.Node+" "+r.Peer))
			case r.Status.Decisions >= number && (there == nil || !there.Lacks):
				did++
			}
			of++
		}
		if did+len(unreachable) == of || ctx.Err() != nil {
			return did, of, unreachable
		}
		select {
		case <-ctx.Done():
		case <-time.After(applyEvery):
		}
	}
}

var (
	replicasReached = prometheus.NewDesc("relay_replicas", "Other replicas, by whether they answer.", []string{"state"}, nil)
	replicasDiffer  = prometheus.NewDesc("relay_replicas_differ", "Upstreams of which a replica that answers serves another content.", nil, nil)
)

// Describe implements prometheus.Collector.
func (x *replicas) Describe(ch chan<- *prometheus.Desc) { ch <- replicasReached; ch <- replicasDiffer }

// Collect implements prometheus.Collector.
func (x *replicas) Collect(ch chan<- prometheus.Metric) {
	reached, unreachable, differ := 0, 0, map[string]bool{}
	for _, r := range x.all() {
		switch {
		case !r.Reached:
			unreachable++
		case r.Peer != "":
			reached++
		}
		for _, d := range r.Differences {
			differ[d.Upstream] = true
		}
	}
	ch <- prometheus.MustNewConstMetric(replicasReached, prometheus.GaugeValue, float64(reached), "reached")
	ch <- prometheus.MustNewConstMetric(replicasReached, prometheus.GaugeValue, float64(unreachable), "unreachable")
	ch <- prometheus.MustNewConstMetric(replicasDiffer, prometheus.GaugeValue, float64(len(differ)))
}
