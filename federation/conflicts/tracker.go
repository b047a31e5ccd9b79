// Package conflicts finds where the upstreams of an Aggregate disagree: the keys that several of them have, and the hosts
// that several served resources claim. It does not resolve conflicts: package merge and istiod do. It must not know who
// reads them.
package conflicts

import (
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"meshrelay/internal/loglimit"
	"meshrelay/internal/panics"
	"meshrelay/mirror"
)

// logBurst is the number of panics that are logged at once. After that, one is logged each logEvery.
const (
	logBurst = 20
	logEvery = 10 * time.Second
)

// Tracker tells the conflicts of an Aggregate, and counts its panics. It is a prometheus.Collector. Its methods may be
// called from any goroutine.
type Tracker struct {
	prometheus.Collector
	keys      *Keys
	resources *mirror.Aggregate
	log       *slog.Logger
	limit     *loglimit.Limit
	panics    atomic.Uint64
}

// Follow returns the Tracker of an Aggregate that does not run yet.
func Follow(a *mirror.Aggregate, log *slog.Logger) *Tracker {
	t := &Tracker{keys: NewKeys(time.Now), resources: a, log: log, limit: loglimit.New(logBurst, logEvery)}
	t.Collector = prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "relay_merge_panics_total", Help: "Panics while a resource was merged.",
	}, func() float64 { return float64(t.panics.Load()) })
	a.RegisterPanicHandler(t.panicked)
	a.RegisterHandler(t.update)
	return t
}

func (t *Tracker) update(c mirror.Change) {
	if c.Key.Kind.Singleton() {
		return // each upstream has one for its own mesh (PROTOCOL C22)
	}
	r := c.Resolution
	if r == nil {
		r = &mirror.Resolution{} // one copy at most
	}
	t.keys.Update(c.Key, r.Copies, r.Decision, r.Yields != "")
}

// panicked counts a panic of the Aggregate, and logs it with its stack.
func (t *Tracker) panicked(key mirror.Key, p *panics.Panic) {
	t.limit.Log(t.log, slog.LevelError, "panic while merging a resource", "resource", key, "panic", p.Value, "panics", t.panics.Add(1), "stack", p.Stack)
}

// KeyConflicts returns the keys that several sources have, of some kinds or of all.
func (t *Tracker) KeyConflicts(kinds ...mirror.Kind) []KeyConflict { return t.keys.List(kinds...) }

// HostConflicts returns the hosts that several resources claim.
func (t *Tracker) HostConflicts() []HostConflict { return hostConflicts(t.resources.Contests(false)) }

// Counts returns how many keys several sources have, and how many hosts several keys claim.
func (t *Tracker) Counts() (keys, hosts int) { return t.keys.Len(), len(t.HostConflicts()) }
