package upstreams

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"meshrelay/config"
	"meshrelay/internal/glob"
	"meshrelay/upstreams/intake"
)

const (
	// leastLook and mostLook bound how often it is looked whether clients can be served. The
	// longer they have waited, the less it matters to look soon.
	leastLook = 2 * time.Millisecond
	mostLook  = 100 * time.Millisecond
	// mergePatience is how long to wait for what the sources gave to be merged before it is
	// looked again who they are.
	mergePatience = time.Second
)

// FirstSync is how clients fare with a source that has not synced since the start of the
// relay, and that was not on disk then.
type FirstSync struct {
	// Awaited: clients wait for it. Otherwise they are served without it, or will be.
	Awaited bool `json:"awaited"`
	// Until is when that wait ends at the latest, zero when it ends with the first sync only.
	Until time.Time `json:"until,omitzero"`
	// Reason completes: "clients wait for it: ", or "clients are served without it: ".
	Reason string `json:"reason"`
}

// firstSync is the wait of clients for the first sync of the sources. Its fields are guarded by
// the Manager's mu.
type firstSync struct {
	timeout time.Duration
	// kept: there is a state. served: clients were served from it before.
	kept, served bool
	clusters     []string // patterns of those of the views
	began        time.Time
	held         func() []string
	// released: clients are served. without then has the sources that were not known, each with
	// the reason why nobody waited for it.
	released bool
	without  map[string]string
}

func newFirstSync(cfg *config.Config, keeper Keeper) firstSync {
	return firstSync{
		timeout: cfg.Downstream.StartupTimeout.D(), kept: keeper != nil, served: keeper != nil && keeper.Served(),
		clusters: clustersOf(cfg.Views), held: func() []string { return nil },
	}
}

// clustersOf returns patterns of the clusters that views are for, but for those that fit every
// cluster.
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

// AwaitFirstSync waits until clients may be served: until every source whose firstSync asks
// for it has synced, and what the sources gave is merged. held returns the clusters of the clients that wait. The error is
// that of ctx. It is called once.
func (m *Manager) AwaitFirstSync(ctx context.Context, held func() []string) error {
	m.mu.Lock()
	m.first.began, m.first.held = time.Now(), held
	m.mu.Unlock()
	var told lateness
	for {
		now := time.Now()
		s, all := m.atStart(now)
		verdicts, next := s.decide(all)
		told.tell(m, s, verdicts, all)
		wait := min(max(s.elapsed/100, leastLook), mostLook)
		if !slices.ContainsFunc(verdicts, func(v verdict) bool { return v.awaited }) {
			merged, cancel := context.WithTimeout(ctx, mergePatience)
			err := m.aggregate.CaughtUp(merged)
			cancel()
			if err == nil && m.release(verdicts) {
				return nil
			}
		}
		if next > 0 {
			wait = min(wait, next-s.elapsed)
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		case <-timer.C:
		}
	}
}

// atStart returns what there is to decide at a time who clients wait for.
func (m *Manager) atStart(now time.Time) (start, []candidate) {
	m.mu.Lock()
	first, ups := m.first, m.currents()
	m.mu.Unlock()
	all := make([]candidate, len(ups))
	s := start{kept: first.kept, served: first.served, timeout: first.timeout}
	if !first.began.IsZero() {
		s.elapsed = now.Sub(first.began)
	}
	clients := sync.OnceValue(first.held)
	for i, u := range ups {
		c := &all[i]
		*c = candidate{name: u.cfg.Name, mode: u.cfg.FirstSync, added: u.added}
		if c.known = u.store.HasSynced(); c.known {
			continue
		}
		c.without = locked(u.upstream, (*intake.Intake).ServedWithout)
		if !u.cfg.Source.Relayed() || !s.kept || s.served {
			continue
		}
		c.mayWait = u.mayWait()
		if c.mayWait == "" && isOneOf(u.cfg.ClusterID, first.clusters) {
			c.mayWait = becauseView
		}
		if c.mayWait != "" || s.elapsed < s.timeout {
			continue // or it does not matter yet what clients there are
		}
		if slices.Contains(clients(), u.cfg.ClusterID) {
			c.mayWait = becauseClient
		}
	}
	return s, all
}

func isOneOf(cluster string, patterns []string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool { return glob.Match(p, cluster) })
}

// release notes that clients are served from now on. It reports whether that is so: not when
// the sources have become others since it was decided.
func (m *Manager) release(verdicts []verdict) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	without := map[string]string{}
	for _, v := range verdicts {
		without[v.name] = v.reason
	}
	for _, one := range m.upstreams {
		if _, decided := without[one.cfg.Name]; !decided && !one.store.HasSynced() {
			return false
		}
	}
	m.first.released, m.first.without = true, without
	if m.keeper != nil {
		m.keeper.MarkServed()
	}
	for _, v := range verdicts {
		level := m.log.Warn
		if v.reason == becauseOptional {
			level = m.log.Info
		}
		level("serving without upstream", "upstream", v.name, "reason", v.reason)
	}
	return true
}

// firstSyncs returns, by source, how clients fare with those that are not known.
func (m *Manager) firstSyncs() map[string]*FirstSync {
	m.mu.Lock()
	released, began, without := m.first.released, m.first.began, m.first.without
	m.mu.Unlock()
	out := map[string]*FirstSync{}
	if released {
		for name, reason := range without { // it does not change any more
			out[name] = &FirstSync{Reason: reason}
		}
		return out
	}
	s, all := m.atStart(time.Now())
	verdicts, _ := s.decide(all)
	for _, v := range verdicts {
		f := &FirstSync{Awaited: v.awaited, Reason: v.reason}
		if v.awaited && v.until > 0 && !began.IsZero() {
			f.Until = began.Add(v.until)
		}
		out[v.name] = f
	}
	return out
}

// ServeWithout has clients wait for an upstream no longer, until it has synced; also through
// restarts if there is a Keeper. The error is ErrUnknownUpstream, ErrNotPossible, or tells that
// a restart would forget it.
func (m *Manager) ServeWithout(ctx context.Context, upstream string) error {
	m.applying.Lock()
	defer m.applying.Unlock()
	one, err := m.upstream(upstream)
	if err != nil {
		return err
	}
	m.mu.Lock()
	released := m.first.released
	m.mu.Unlock()
	s, all := m.atStart(time.Now())
	verdicts, _ := s.decide(all)
	var mine *verdict
	var awaited []string
	for i, v := range verdicts {
		if v.name == upstream {
			mine = &verdicts[i]
		}
		if v.awaited {
			awaited = append(awaited, v.name)
		}
	}
	switch {
	case released && mine == nil:
		return fmt.Errorf("%w: clients are served, and nobody waits for upstream %s", ErrNotPossible, upstream)
	case released:
		return fmt.Errorf("%w: clients are served already, without upstream %s until it has synced", ErrNotPossible, upstream)
	case mine == nil:
		return fmt.Errorf("%w: clients do not wait for upstream %s, which has synced or is served from disk%s", ErrNotPossible, upstream, waitsFor(awaited))
	case !mine.awaited:
		return fmt.Errorf("%w: clients do not wait for upstream %s: %s%s", ErrNotPossible, upstream, mine.reason, waitsFor(awaited))
	}
	one.Tell(intake.ServeWithout{})
	if err := m.flush(ctx); err != nil {
		return fmt.Errorf("clients do not wait for upstream %s any more, but that is not on disk yet, and would be forgotten by a restart now: %w", upstream, err)
	}
	return nil
}

func waitsFor(names []string) string {
	if len(names) == 0 {
		return "; what the upstreams gave is being merged, and clients are served then"
	}
	return "; they wait for " + strings.Join(names, ", ")
}

// lateness tells of a wait that goes on beyond the timeout, once when it begins and once when
// it ends.
type lateness struct{ told map[string]struct{} }

func (l *lateness) tell(m *Manager, s start, verdicts []verdict, all []candidate) {
	if s.elapsed < s.timeout {
		return
	}
	if l.told == nil {
		l.told = map[string]struct{}{}
	}
	reasons := map[string]string{} // of those that are not awaited
	for _, v := range verdicts {
		if !v.awaited {
			reasons[v.name] = v.reason
			continue
		}
		if _, known := l.told[v.name]; known {
			continue
		}
		l.told[v.name] = struct{}{}
		m.log.Warn("clients are held until upstream has synced", "upstream", v.name, "reason", v.reason, "startupTimeout", s.timeout,
			"goOnWithout", "relay serve-without "+v.name)
	}
	for name := range l.told {
		if slices.ContainsFunc(verdicts, func(v verdict) bool { return v.name == name && v.awaited }) {
			continue
		}
		because := reasons[name]
		switch {
		case because != "":
		case slices.ContainsFunc(all, func(c candidate) bool { return c.name == name }):
			because = "it has synced"
		default:
			because = "it is not in the config any more"
		}
		delete(l.told, name)
		m.log.Info("clients are not held for upstream any more", "upstream", name, "because", because, "after", s.elapsed.Round(time.Millisecond))
	}
}
