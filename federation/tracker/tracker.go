// Package tracker has package conflicts follow an Aggregate. It keeps, logs and counts the conflicts. It must
// not know who reads them.
package tracker

import (
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"meshrelay/federation/conflicts"
	"meshrelay/internal/loglimit"
	"meshrelay/mirror"
)

const (
	// conflictBurst is the number of host conflicts that are logged at once, and logBurst the number of
	// panics. After that, one is logged each logEvery: a source that repeats another one causes thousands.
	logBurst      = 20
	logEvery      = 10 * time.Second
	conflictBurst = 5
	// maxLoggedHost bounds the host in a log line, in bytes: a DNS name has at most 253. maxLoggedClaims
	// bounds the claims.
	maxLoggedHost   = 253
	maxLoggedClaims = 16
)

// Tracker keeps the conflicts of an Aggregate: the keys that several sources have a copy of, and the hosts that
// several resources claim. It is a prometheus.Collector. Its methods may be called from any goroutine.
type Tracker struct {
	keys  *conflicts.Keys
	hosts *conflicts.Hosts
	log   *slog.Logger

	limit, panicLimit *loglimit.Limit // of log lines
	panics            atomic.Uint64
}

// New returns a Tracker without an Aggregate: see Follow.
func New(log *slog.Logger) *Tracker {
	return &Tracker{
		keys: conflicts.NewKeys(time.Now), hosts: conflicts.NewHosts(time.Now), log: log,
		limit: loglimit.New(conflictBurst, logEvery), panicLimit: loglimit.New(logBurst, logEvery),
	}
}

// Follow registers the Tracker with an Aggregate. It fails once the Aggregate runs.
func (t *Tracker) Follow(a *mirror.Aggregate) error {
	t.hosts.Served = a.Get
	if err := a.RegisterPanicHandler(t.panicked); err != nil {
		return err
	}
	return a.RegisterHandler(func(c mirror.Change) {
		t.updateKeys(c)
		if c.Visible() {
			t.updateHosts(c)
		}
	})
}

func (t *Tracker) updateKeys(c mirror.Change) {
	if c.Key.Kind.Singleton() {
		return // each upstream has one for its own mesh (PROTOCOL C22)
	}
	r := c.Resolution
	if r == nil {
		r = &mirror.Resolution{} // one copy at most
	}
	t.keys.Update(c.Key, r.Copies, r.Decision, r.Yields != "")
}

func (t *Tracker) updateHosts(c mirror.Change) {
	for _, conflict := range t.hosts.Update(c.Old, c.New) {
		t.logConflict(conflict)
	}
	if n, skipped := t.hosts.Skipped(c.Key); c.New != nil && skipped {
		t.limit.Warn(t.log, "resource not checked for host conflicts", "resource", n.Key, "upstream", n.Source,
			"hosts", n.Hosts, "namespaces", n.Namespaces, "reason", n.Reason)
	}
}

// panicked counts a panic of the Aggregate or its handlers, and logs it with its stack.
func (t *Tracker) panicked(key mirror.Key, p *mirror.Panic) {
	t.panicLimit.Log(t.log, slog.LevelError, "panic while merging a resource", "resource", key, "panic", p.Value, "panics", t.panics.Add(1), "stack", p.Stack)
}

// logConflict logs a conflict that has begun, changed or ended.
func (t *Tracker) logConflict(c conflicts.HostConflict) {
	host := c.Host[:min(len(c.Host), maxLoggedHost)]
	if c.Ended {
		t.limit.Log(t.log, slog.LevelInfo, "host conflict ended", "kind", c.Kind, "host", host)
		return
	}
	var claims []string
	for _, claim := range c.Claims[:min(len(c.Claims), maxLoggedClaims)] {
		claims = append(claims, claim.Namespace+"/"+claim.Name+" from "+claim.Source)
	}
	t.limit.Warn(t.log, "host claimed by several resources", "kind", c.Kind, "host", host,
		"claims", strings.Join(claims, ", "), "of", len(c.Claims))
}

// KeyConflicts returns the keys that several sources have, of some kinds or of all.
func (t *Tracker) KeyConflicts(kinds ...mirror.Kind) []conflicts.KeyConflict {
	return t.keys.List(kinds...)
}

// HostConflicts returns the hosts that several resources claim.
func (t *Tracker) HostConflicts() []conflicts.HostConflict { return t.hosts.Conflicts() }

// Counts returns how many keys several sources have, and how many hosts several keys claim.
func (t *Tracker) Counts() (keys, hosts int) {
	for _, byOutcome := range t.keys.Counts() {
		for _, n := range byOutcome {
			keys += n
		}
	}
	for _, n := range t.hosts.Counts() {
		hosts += n
	}
	return keys, hosts
}

// NotFollowed returns the resources that the detection of host conflicts skips.
func (t *Tracker) NotFollowed() []conflicts.NotFollowed { return t.hosts.NotFollowed() }

var panicsDesc = prometheus.NewDesc("relay_merge_panics_total", "Panics while a resource was merged, or a handler was called for it.", nil, nil)

// Describe implements prometheus.Collector.
func (t *Tracker) Describe(ch chan<- *prometheus.Desc) {
	ch <- panicsDesc
}

// Collect implements prometheus.Collector.
func (t *Tracker) Collect(ch chan<- prometheus.Metric) {
	ch <- prometheus.MustNewConstMetric(panicsDesc, prometheus.CounterValue, float64(t.panics.Load()))
}
