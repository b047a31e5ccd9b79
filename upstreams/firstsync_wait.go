package upstreams

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"meshrelay/config"
	"meshrelay/internal/glob"
	"meshrelay/upstreams/intake"
)

// leastLook and mostLook bound the time between two looks at the sources. The time grows with the time since the start.
const (
	leastLook = 2 * time.Millisecond
	mostLook  = 100 * time.Millisecond
)

// firstSync is the wait of clients for the first sync of the sources. The Manager's mu guards it.
type firstSync struct {
	start             // without elapsed and until
	clusters []string // patterns of the clusters of views
	began    time.Time
	held     func() []string
	// without has the sources that were not known when clients were first served. It is nil before.
	without map[string]*FirstSync
}

func newFirstSync(cfg *config.Config, keeper Keeper) firstSync {
	return firstSync{
		start:    start{kept: keeper != nil, served: keeper != nil && keeper.Served(), timeout: cfg.Downstream.StartupTimeout.D()},
		clusters: clustersOf(cfg.Views), held: func() []string { return nil },
	}
}

// clustersOf returns the patterns of clusters in views, without patterns that match every cluster.
func clustersOf(views []config.View) (patterns []string) {
	for _, v := range views {
		if v.ClusterID != "" {
			patterns = append(patterns, v.ClusterID)
		}
		for _, p := range v.Match.ClusterIDs {
			if strings.Trim(p, "*") != "" {
				patterns = append(patterns, p)
			}
		}
	}
	return patterns
}

// AwaitFirstSync waits until clients may be served: every source for which they wait has synced, and the
// aggregate has merged all content. held returns the clusters of the clients that wait. The error is that of ctx.
// It is called once.
func (m *Manager) AwaitFirstSync(ctx context.Context, held func() []string) error {
	select {
	case <-m.restored:
	case <-ctx.Done():
		return ctx.Err()
	}
	if m.replicas != nil { // so that no client is served what is frozen elsewhere
		pause(ctx, startPatience, m.replicas.ready)
	}
	m.mu.Lock()
	m.first.began, m.first.held = time.Now(), held
	m.mu.Unlock()
	late := map[string]bool{}
	for {
		s, verdicts := m.atStart()
		m.logLate(late, s, verdicts)
		if len(awaited(verdicts)) == 0 {
			if err := m.aggregate.CaughtUp(ctx); err != nil {
				return err
			}
			if m.release(verdicts) {
				return nil
			}
		}
		if pause(ctx, min(max(s.elapsed/100, leastLook), mostLook), nil); ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

func awaited(verdicts []verdict) (names []string) {
	for _, v := range verdicts {
		if v.Awaited {
			names = append(names, v.name)
		}
	}
	return names
}

// atStart decides which sources clients wait for now.
func (m *Manager) atStart() (start, []verdict) {
	m.mu.Lock()
	first := m.first
	m.mu.Unlock()
	reading := m.reading() // first: the rest then includes sources that are read meanwhile
	ups := m.all()
	all, s := make([]candidate, len(ups)), first.start
	s.reading = reading
	if !first.began.IsZero() {
		s.elapsed, s.until = time.Since(first.began), first.began.Add(s.timeout)
	}
	clients := sync.OnceValue(first.held)
	for i, u := range ups {
		c := &all[i]
		*c = candidate{name: u.cfg.Name, mode: u.cfg.FirstSync, added: u.added, known: u.store.HasSynced(), frozen: u.frozenEmpty()}
		if c.known && !c.frozen {
			continue
		}
		c.without = locked(u.upstream, (*intake.Intake).ServedWithout)
		if !u.cfg.Source.Relayed() || !s.kept || s.served {
			continue
		}
		c.mayWait = u.mayWait()
		switch {
		case c.mayWait != "":
		case isOneOf(u.cfg.ClusterID, first.clusters):
			c.mayWait = becauseView
		case s.elapsed >= s.timeout && slices.Contains(clients(), u.cfg.ClusterID): // before the timeout, clients wait anyway
			c.mayWait = becauseClient
		}
	}
	return s, s.decide(all)
}

func isOneOf(cluster string, patterns []string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool { return glob.Match(p, cluster) })
}

// release lets clients be served. It returns false if a reload has added sources since the verdicts.
func (m *Manager) release(verdicts []verdict) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	without := map[string]*FirstSync{}
	for _, v := range verdicts {
		without[v.name] = &v.FirstSync
	}
	for _, one := range m.upstreams {
		if without[one.cfg.Name] == nil && !one.store.HasSynced() {
			return false
		}
	}
	m.first.without = without
	if m.keeper != nil {
		m.keeper.MarkServed()
	}
	for _, v := range verdicts {
		level := m.log.Warn
		if v.Reason == becauseOptional {
			level = m.log.Info
		}
		level("serving without upstream", "upstream", v.name, "reason", v.Reason)
	}
	return true
}

// firstSyncs returns the FirstSync of each source that is not known, by name. The map is read-only.
func (m *Manager) firstSyncs() map[string]*FirstSync {
	if without := m.servedWithout(); without != nil {
		return without
	}
	out := map[string]*FirstSync{}
	_, verdicts := m.atStart()
	for _, v := range verdicts {
		out[v.name] = &v.FirstSync
	}
	return out
}

// servedWithout returns the sources that were not known when clients were first served. It is nil before.
func (m *Manager) servedWithout() map[string]*FirstSync {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.first.without
}

// withoutEvent returns the event that ends the wait of clients for an upstream.
func (m *Manager) withoutEvent(upstream string, o intake.Order) (intake.Event, error) {
	served := m.servedWithout() != nil
	_, verdicts := m.atStart()
	i := slices.IndexFunc(verdicts, func(v verdict) bool { return v.name == upstream })
	others := "; the relay merges the content of the upstreams, and then serves clients"
	if names := awaited(verdicts); len(names) > 0 {
		others = "; they wait for " + strings.Join(names, ", ")
	}
	switch {
	case served && i < 0:
		return nil, intake.NotPossible("clients are served, and nobody waits for upstream %s", upstream)
	case served:
		return nil, intake.NotPossible("clients are served already, without upstream %s until it has synced", upstream)
	case i < 0:
		return nil, intake.NotPossible("clients do not wait for upstream %s, which has synced or is served from disk%s", upstream, others)
	case !verdicts[i].Awaited:
		return nil, intake.NotPossible("clients do not wait for upstream %s: %s%s", upstream, verdicts[i].Reason, others)
	}
	return intake.ServeWithout{Order: o}, nil
}

// logLate logs each wait that lasts longer than the timeout once. late has those that it logged.
func (m *Manager) logLate(late map[string]bool, s start, verdicts []verdict) {
	for _, v := range verdicts {
		if v.Awaited && s.elapsed >= s.timeout && !late[v.name] {
			late[v.name] = true
			m.log.Warn("clients are held until upstream has synced", "upstream", v.name, "reason", v.Reason, "startupTimeout", s.timeout,
				"fix", "relay serve-without "+v.name)
		}
	}
}
