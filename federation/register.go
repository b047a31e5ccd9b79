package federation

import (
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"

	"meshrelay/mirror"
)

const (
	// logBurst is how many host conflicts are logged at once, logEvery how often one more
	// is: a source that repeats another is one mistake, not thousands of lines.
	logBurst = 20
	logEvery = 10 * time.Second
)

// Register keeps account of what the sources of an Aggregate do not agree on: the keys
// that several of them have, and the hosts that several configs claim. It is a
// prometheus.Collector. Its methods may be called from any goroutine.
type Register struct {
	ledger *Ledger
	hosts  *Hosts
	log    *slog.Logger

	limit  *rate.Limiter
	panics atomic.Uint64
	silent int // conflicts that were not logged; of the Aggregate's goroutine
}

// NewRegister returns a Register that follows nobody yet.
func NewRegister(log *slog.Logger) *Register {
	return &Register{
		ledger: NewLedger(time.Now), hosts: NewHosts(time.Now), log: log,
		limit: rate.NewLimiter(rate.Every(logEvery), logBurst),
	}
}

// Follow makes the Register follow an Aggregate that does not run yet.
func (g *Register) Follow(a *mirror.Aggregate) error {
	if err := a.RegisterPanicHandler(g.panicked); err != nil {
		return err
	}
	if err := a.RegisterTouchHandler(func(key mirror.Key, s *mirror.Settlement) {
		if key.Kind == mirror.MeshConfig {
			return // every istiod has one, and each is for its own mesh (PROTOCOL C22)
		}
		if s == nil {
			s = &mirror.Settlement{} // not contested
		}
		g.ledger.Update(key, s.Copies, s.Verdict)
	}); err != nil {
		return err
	}
	return a.RegisterEventHandler(mirror.Kind{}, func(old, cur *mirror.Resource, _ mirror.Event) {
		for _, c := range g.hosts.Update(old, cur) {
			g.say(c)
		}
		if cur == nil {
			return
		}
		if n, ok := g.hosts.notFollowed(cur.Key()); ok && g.limit.Allow() {
			g.log.Warn("config is not followed by the detection of host conflicts; it is served", "resource", n.Key, "upstream", n.Source,
				"hosts", n.Hosts, "namespaces", n.Namespaces, "reason", n.Reason)
		}
	})
}

// panicked counts a panic of the Aggregate or its handlers, and logs it with its stack.
func (g *Register) panicked(key mirror.Key, p *mirror.Panic) {
	if n := g.panics.Add(1); n <= maxLoggedPanics || n%maxLoggedPanics == 0 {
		g.log.Error("panic while merging a resource", "resource", key, "panic", p.Value, "panics", n, "stack", p.Stack)
	}
}

// maxLoggedPanics is how many panics are logged, and of how many more one is.
const maxLoggedPanics = 20

// say logs a conflict that has begun, changed or ended.
func (g *Register) say(c HostConflict) {
	if !g.limit.Allow() {
		g.silent++
		return
	}
	if g.silent > 0 {
		g.log.Warn("host conflicts were not logged, relay conflicts lists all", "conflicts", g.silent)
		g.silent = 0
	}
	host := c.Host[:min(len(c.Host), maxLoggedHost)]
	if c.Ended {
		g.log.Info("host conflict has ended", "kind", c.Kind, "host", host)
		return
	}
	var claims []string
	for _, claim := range c.Claims[:min(len(c.Claims), maxLoggedClaims)] {
		claims = append(claims, claim.Namespace+"/"+claim.Name+" from "+claim.Source)
	}
	g.log.Warn("host is claimed by several configs; all are served", "kind", c.Kind, "host", host,
		"claims", strings.Join(claims, ", "), "of", len(c.Claims))
}

// What is logged of one conflict at most: bytes of its host (a DNS name has 253), and claims.
const (
	maxLoggedHost   = 253
	maxLoggedClaims = 16
)

// Contests returns the keys that several sources have, of some kinds or of all.
func (g *Register) Contests(kinds ...mirror.Kind) []Contest { return g.ledger.List(kinds...) }

// HostConflicts returns the hosts that several configs claim.
func (g *Register) HostConflicts() []HostConflict { return g.hosts.Conflicts() }

// NotFollowed returns the configs whose hosts are not looked at for conflicts.
func (g *Register) NotFollowed() []NotFollowed { return g.hosts.NotFollowed() }

var (
	contestsDesc   = prometheus.NewDesc("relay_contested_keys", "Keys that several upstreams have, by kind and by what became of the copies that did not win.", []string{"kind", "outcome"}, nil)
	hostsDesc      = prometheus.NewDesc("relay_host_conflicts", "Hosts that several configs claim where the same clients see them, by kind.", []string{"kind"}, nil)
	panicsDesc     = prometheus.NewDesc("relay_merge_panics_total", "Panics while one resource was merged. Nothing else is affected.", nil, nil)
	unfollowedDesc = prometheus.NewDesc("relay_host_conflicts_not_followed", "Configs that claim too many hosts for the detection of conflicts, by kind. They are served.", []string{"kind"}, nil)
)

// Describe implements prometheus.Collector.
func (g *Register) Describe(ch chan<- *prometheus.Desc) {
	ch <- contestsDesc
	ch <- hostsDesc
	ch <- unfollowedDesc
	ch <- panicsDesc
}

// Collect implements prometheus.Collector. Kinds outside the table count as "other": an
// upstream must not be able to make labels.
func (g *Register) Collect(ch chan<- prometheus.Metric) {
	counts := map[[2]string]int{}
	for kind, byOutcome := range g.ledger.Counts() {
		label := "other"
		if _, known := mirror.LookupKind(kind); known {
			label = kind.String()
		}
		for outcome, n := range byOutcome {
			counts[[2]string{label, string(outcome)}] += n
		}
	}
	for labels, n := range counts {
		ch <- prometheus.MustNewConstMetric(contestsDesc, prometheus.GaugeValue, float64(n), labels[0], labels[1])
	}
	for kind, n := range g.hosts.Counts() {
		ch <- prometheus.MustNewConstMetric(hostsDesc, prometheus.GaugeValue, float64(n), kind.String())
	}
	ch <- prometheus.MustNewConstMetric(panicsDesc, prometheus.CounterValue, float64(g.panics.Load()))
	for kind, n := range g.hosts.notFollowedCounts() {
		ch <- prometheus.MustNewConstMetric(unfollowedDesc, prometheus.GaugeValue, float64(n), kind.String())
	}
}
