// Package kubernetes brings the Istio and Gateway API objects of the API server of a cluster.
//
// It owns how the server is reached, which kinds it serves, and how their objects are followed:
// client-go's reflector lists and watches each kind; the decoder and the store under it are of this
// package, so that nothing is held but what the intake holds.
//
// The package must not know what is served of the objects, nor which other upstreams there are.
package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"meshrelay/config"
	"meshrelay/internal/buildinfo"
	"meshrelay/internal/loglimit"
	"meshrelay/mirror"
	"meshrelay/upstreams"
)

const (
	goneAnswers = 3    // that have to lack a kind
	maxUnknown  = 1000 // objects with unknown fields that are remembered
)

// pace is how often a source does what nobody tells it to.
type pace struct {
	// look is how often it looks whether everything follows.
	look time.Duration
	// discover is how often it asks what the server serves, and soon how long it waits where there
	// is a reason to.
	discover, soon   time.Duration
	reread           time.Duration // of the credentials
	gone             time.Duration // that answers have to lack a kind
	verified         time.Duration // that the identity of the cluster counts as known
	retry, retryMost time.Duration // bound the pauses after a list or a watch that has failed
	// grace is how long a kind may be without a stream before the upstream is out of contact: a
	// server ends each watch after some minutes.
	grace time.Duration
}

var usual = pace{
	look: time.Second, discover: 30 * time.Second, soon: time.Second, reread: 10 * time.Second,
	gone: 30 * time.Second, verified: 5 * time.Second, retry: 800 * time.Millisecond, retryMost: 30 * time.Second, grace: 15 * time.Second,
}

// Kind returns the kind of source for API servers.
func Kind() upstreams.Kind {
	return upstreams.Kind{
		Config: &Config{},
		New:    func(u config.Upstream, env upstreams.Env) (upstreams.Source, error) { return New(u, env), nil },
		Check: func(u config.Upstream) error {
			if sectionOf(u).InCluster {
				return nil // a config may be checked elsewhere
			}
			_, err := accessOf(sectionOf(u))
			return err
		},
		Probe: probe,
	}
}

// Source brings what one API server has.
type Source struct {
	name, settings string
	section        *Config
	maxBytes       int // of the objects of a list
	pace           pace
	kinds          []mirror.Kind // to follow
	named          map[mirror.Kind]bool
	log            *slog.Logger
	complaints     *loglimit.Limit
	client         *client
	soon           chan struct{} // has an element when it is time to discover
	repeats        chan struct{} // has an element when everything is to be listed once more

	// Only Run, and what it starts, use these.
	ledger  *ledger
	running sync.WaitGroup
	absent  map[mirror.Kind]*absence

	identifying sync.Mutex // guards these
	identity    string     // of the cluster, empty while unknown
	verified    *connection
	verifiedAt  time.Time
	unbroken    uint64 // the breaks before that
	// unverified is the connection over which that failed last, with unverifiedErr.
	unverified    *connection
	unverifiedAt  time.Time
	unverifiedErr error

	breaks atomic.Uint64 // of streams: another server may answer next

	mu sync.Mutex // guards all below, and state; it is the innermost lock
	st status
}

// absence is what the answers tell of a kind that is not served.
type absence struct {
	since   time.Time
	answers int
	gone    bool // so it was told
}

// New returns a source that has asked nothing yet. It needs no file of its credentials yet.
func New(cfg config.Upstream, env upstreams.Env) *Source {
	section := sectionOf(cfg)
	s := &Source{
		name: cfg.Name, section: section, maxBytes: cfg.Limits.MaxBytes, pace: usual, settings: section.UnknownFields + " " + section.UnhealthyWorkloads,
		named: map[mirror.Kind]bool{}, log: env.Log, complaints: loglimit.New(20, 10*time.Second),
		client: &client{section: section, agent: fmt.Sprintf("meshrelay/%s (upstream %s)", buildinfo.Read("").Version, cfg.Name)},
		soon:   make(chan struct{}, 1), repeats: make(chan struct{}, 1), absent: map[mirror.Kind]*absence{},
	}
	s.st = newStatus()
	for _, word := range cfg.Import.Kinds {
		kinds, _ := mirror.ParseKinds(word) // the config has been checked
		for _, k := range kinds {
			s.named[k] = true
		}
	}
	for _, info := range mirror.Kinds() {
		if info.Kind != mirror.MeshConfig {
			s.kinds = append(s.kinds, info.Kind)
		}
	}
	for _, text := range section.Kinds {
		if k, ok := kindOf(text); ok && !slices.Contains(s.kinds, k) {
			s.kinds = append(s.kinds, k)
		}
	}
	return s
}

// wants reports whether the rules of the upstream may let a kind in.
func (s *Source) wants(k mirror.Kind) bool { return len(s.named) == 0 || s.named[k] }

// Run implements upstreams.Source.
func (s *Source) Run(ctx context.Context, feed upstreams.Feed) error {
	s.ledger = newLedger(s.kinds, feed)
	s.ledger.announce()
	defer s.client.close()
	defer s.running.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	looks := time.NewTicker(s.pace.look)
	defer looks.Stop()
	pause, discoverAt, rereadAt, found := s.pace.soon, time.Now(), time.Now(), false
	for {
		now := time.Now()
		if !now.Before(rereadAt) {
			s.readCredentials()
			rereadAt = now.Add(s.pace.reread)
		}
		if !now.Before(discoverAt) {
			if err := s.discover(ctx); err == nil {
				found, pause = true, s.pace.soon
				discoverAt = time.Now().Add(s.pace.discover)
			} else {
				pause = min(2*pause, s.pace.discover)
				discoverAt = time.Now().Add(pause)
			}
		}
		s.contact(found && s.ledger.check(time.Now(), s.pace.grace), feed.Synced())
		select {
		case <-ctx.Done():
			return nil
		case <-looks.C:
		case <-s.soon:
			if at := time.Now().Add(s.pace.soon); at.Before(discoverAt) {
				discoverAt = at
			}
		case <-s.repeats:
			for _, t := range s.ledger.repeat() {
				t.restart()
			}
		}
	}
}

// readCredentials has new credentials used.
func (s *Source) readCredentials() {
	before := s.client.current().server()
	err := s.client.refresh()
	s.trouble(troubleCredentials, err)
	if now := s.client.current().server(); err == nil && before != now {
		s.log.Info("API server", "address", now)
	}
}

// discover follows what the server serves now.
func (s *Source) discover(ctx context.Context) error {
	connection, err := s.verify(ctx)
	var a *answer
	if err == nil {
		a, err = discover(ctx, connection, s.kinds)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	s.trouble(troubleDiscovery, err)
	if err != nil {
		return err
	}
	first := s.discovered()
	for _, k := range s.kinds {
		if !s.wants(k) {
			continue
		}
		now := s.ledger.of(k)
		best, is := a.best(k)
		switch {
		case is:
			delete(s.absent, k)
			if len(now) == 0 || !a.has(now[0].served) {
				s.follow(ctx, best, now)
			}
		case a.lacks(k):
			s.missing(ctx, k, now)
		}
	}
	if first {
		s.ledger.Begin()
	}
	return nil
}

// follow follows a kind in the version that the server has of it, in place of those before.
func (s *Source) follow(ctx context.Context, of served, before []*target) {
	stop(before)
	namespaces := s.section.Namespaces
	if len(namespaces) == 0 || !of.namespaced {
		namespaces = []string{""}
	}
	targets := make([]*target, len(namespaces))
	for i, ns := range namespaces {
		targets[i] = &target{served: of, namespace: ns, source: s, budget: budget{most: s.maxBytes}, paced: rate.NewLimiter(rate.Every(s.pace.retry), burst), again: make(chan struct{}, 1), ended: make(chan struct{})}
	}
	s.ledger.set(of.kind, targets)
	s.show(of.kind, targets)
	for _, t := range targets {
		ctx, cancel := context.WithCancel(ctx)
		t.stopAll = cancel
		s.running.Go(func() { t.run(ctx) })
	}
}

func stop(targets []*target) {
	for _, t := range targets {
		t.stopAll()
	}
	for _, t := range targets {
		<-t.ended
	}
}

// missing counts the answers that lack a kind. What it had is gone when enough of them do: a server
// that starts may not know its own definitions yet.
func (s *Source) missing(ctx context.Context, k mirror.Kind, before []*target) {
	a := s.absent[k]
	if a == nil {
		a = &absence{since: time.Now()}
		s.absent[k] = a
	}
	for _, t := range before {
		s.ledger.hush(t)
	}
	if a.answers++; a.gone || a.answers < goneAnswers || time.Since(a.since) < s.pace.gone || !s.ready(ctx) {
		return
	}
	stop(before)
	s.ledger.set(k, nil)
	s.show(k, nil)
	a.gone = true
	if result := s.ledger.drop(k); result.Gone > 0 {
		s.log.Warn("kind is not served any more", "kind", k, "resources", result.Gone)
	}
}

// ready reports whether the server does not tell that it is still starting.
func (s *Source) ready(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	resp, err := s.client.current().get(ctx, "/readyz", nil, "*/*")
	if err == nil {
		resp.Body.Close()
	}
	return err == nil || apierrors.IsForbidden(err) || apierrors.IsNotFound(err)
}

// verify returns a connection to the server of the cluster that is mirrored, or an error. It asks
// which cluster it is where that may have changed. All that could bring something goes over
// connections that it has returned.
func (s *Source) verify(ctx context.Context) (*connection, error) {
	s.identifying.Lock()
	defer s.identifying.Unlock()
	c, breaks := s.client.current(), s.breaks.Load()
	if c == s.verified && breaks == s.unbroken && time.Since(s.verifiedAt) < s.pace.verified {
		return c, nil
	}
	if c == s.unverified && time.Since(s.unverifiedAt) < s.pace.retry {
		return nil, s.unverifiedErr // all targets wait for one answer, not one after the other for its own
	}
	s.verifiedAt = time.Time{}
	id, err := c.identity(ctx)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	s.unverified = nil
	switch {
	case s.identity == "" && (err == nil && id == "" || apierrors.IsForbidden(err) || apierrors.IsNotFound(err)):
		// The server does not tell, so nobody can know.
	case err != nil:
		err = fmt.Errorf("which cluster this is: %w", err)
		s.unverified, s.unverifiedAt, s.unverifiedErr = c, time.Now(), err
		return nil, err
	case s.identity == "":
		s.identity = id
	case id != s.identity:
		err := otherCluster(s.identity, id)
		s.trouble(troubleCluster, err)
		return nil, err
	}
	s.verified, s.verifiedAt, s.unbroken = c, time.Now(), breaks
	s.trouble(troubleCluster, nil)
	s.identified(s.identity)
	return c, nil
}

// Repeat implements upstreams.Repeater.
func (s *Source) Repeat(bool) {
	select {
	case s.repeats <- struct{}{}:
	default:
	}
}

// failed notes that a request of a target came to nothing.
func (s *Source) failed(t *target, err error) {
	if errors.Is(err, context.Canceled) {
		return
	}
	s.breaks.Add(1)
	s.ledger.lost(t)
	switch {
	case apierrors.IsForbidden(err):
		if !s.named[t.kind] {
			s.ledger.hush(t)
		}
		s.enter(t, Denied, err)
	case apierrors.IsNotFound(err):
		s.enter(t, Unserved, err)
		s.ledger.hush(t)
		s.discoverSoon()
	default:
		s.enter(t, Failing, err)
	}
}

func (s *Source) discoverSoon() {
	select {
	case s.soon <- struct{}{}:
	default:
	}
}

// lost notes that a watch of a target has ended.
func (s *Source) lost(t *target, err error) {
	s.breaks.Add(1)
	s.ledger.lost(t)
	if err != nil && !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) && !errors.Is(err, context.Canceled) {
		s.enter(t, Failing, err)
	}
}

// resumed notes that the changes of a target follow again from where they were.
func (s *Source) resumed(t *target) {
	s.ledger.resumed(t)
	s.enter(t, Following, nil)
}

// following notes that all of a target was told.
func (s *Source) following(t *target, objects int) {
	s.enter(t, Following, nil)
	s.log.Debug("objects listed", "kind", t.kind, "namespace", t.namespace, "objects", objects)
}
