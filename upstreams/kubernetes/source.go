// Package kubernetes is the source that reads Istio and Gateway API objects from the API server of a
// cluster.
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

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"meshrelay/config"
	"meshrelay/internal/buildinfo"
	"meshrelay/internal/loglimit"
	"meshrelay/mirror"
	"meshrelay/upstreams"
	"meshrelay/upstreams/intake"
	"meshrelay/upstreams/kubernetes/ingress"
)

const (
	goneAnswers = 3 // that have to lack a kind, or to have a better version of it
	hurries     = 4 // discoveries that follow soon after a definition has changed
)

// pace has the intervals of what a source does by itself.
type pace struct {
	// look is how often it looks whether everything follows.
	look time.Duration
	// discover is how often it asks what the server serves, and soon how long it waits where there
	// is a reason to.
	discover, soon   time.Duration
	reread           time.Duration // of the credentials
	gone             time.Duration // that answers have to lack a kind, or to have a better version
	verified         time.Duration // that the identity of the cluster counts as known
	retry, retryMost time.Duration // bound the pauses after a list or a watch that has failed
	// asks is the least time between two requests of a target, but for the first few.
	asks time.Duration
	// grace is how long a kind may be without a stream before the upstream is out of contact: a
	// server ends each watch after some minutes.
	grace time.Duration
	// forgive is how long lists are asked for in pages after streaming lists were cut off.
	forgive time.Duration
}

var usual = pace{
	look: time.Second, discover: 30 * time.Second, soon: time.Second, reread: 10 * time.Second,
	gone: 30 * time.Second, verified: 5 * time.Second, retry: 800 * time.Millisecond, retryMost: 30 * time.Second, asks: 800 * time.Millisecond, grace: 15 * time.Second,
	forgive: time.Hour,
}

// Kind returns the kind of source for API servers.
func Kind() upstreams.Kind {
	return upstreams.Kind{
		Config: &Config{},
		New: func(u config.Upstream, env upstreams.Env) (upstreams.Source, error) {
			return New(u, env), nil
		},
		Check: func(u config.Upstream) error {
			if sectionOf(u).InCluster || sectionOf(u).Found != nil {
				return nil // a config may be checked elsewhere, and found clusters keep nobody up
			}
			_, err := accessOf(sectionOf(u))
			return err
		},
		Probe:   probe,
		Metrics: metrics(),
	}
}

// Source brings what one API server has.
type Source struct {
	name, settings string
	section        *Config
	pace           pace
	kinds          []mirror.Kind // to follow
	named          map[mirror.Kind]bool
	log            *slog.Logger
	complaints     *loglimit.Limit
	client         *client
	soon           chan struct{} // has an element when it is time to discover
	fault          func(*object) // of tests: it panics

	choice         *choice          // of namespaces, nil for all
	ingressOptions *ingress.Options // nil: Ingresses are not converted
	// Where the MeshConfig is that tells how they are.
	meshNamespace, meshName string

	// Only Run, and what it starts, use these.
	feed    upstreams.Feed
	ledger  *ledger
	running sync.WaitGroup
	aside   []*target // that nothing waits for
	// absent are the kinds that are not served, better those that are served in a better version than
	// the followed one.
	absent, better map[mirror.Kind]*absence
	hurry          atomic.Int32 // discoveries that are to follow soon

	told atomic.Pointer[ledger] // the ledger, for Describe; nil before Run

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

	mu     sync.Mutex // guards all below, and state; it is the innermost lock
	st     status
	limits config.Limits
}

// New returns a source that has asked nothing yet. It needs no file of its credentials yet.
func New(cfg config.Upstream, env upstreams.Env) *Source {
	section := sectionOf(cfg)
	s := &Source{
		name: cfg.Name, section: section, limits: cfg.Limits, pace: usual, settings: section.UnknownFields + " " + section.UnhealthyWorkloads,
		named: map[mirror.Kind]bool{}, log: env.Log, complaints: loglimit.New(20, 10*time.Second),
		client: &client{section: section, agent: fmt.Sprintf("meshrelay/%s (upstream %s)", buildinfo.Read("").Version, cfg.Name)},
		soon:   make(chan struct{}, 1), absent: map[mirror.Kind]*absence{}, better: map[mirror.Kind]*absence{},
		choice: newChoice(section.DiscoverySelectors), ingressOptions: section.Ingress.options(cfg.DomainSuffix),
	}
	s.st = newStatus()
	s.meshNamespace, s.meshName = section.Ingress.meshOf(cfg.Import.Revision)
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
	var converting *ingresses
	if s.ingressOptions != nil {
		converting = newIngresses(s.name, *s.ingressOptions, 0)
		converting.unsettled = s.section.Ingress.Mode == modeMesh
	}
	s.feed, s.ledger = feed, newLedger(s.kinds, feed, s.choice, converting)
	s.told.Store(s.ledger)
	s.ledger.limit(s.maxBytes()) // from now on Limit does
	s.ledger.announce()
	s.remember(feed.Identity())
	defer s.client.close()
	defer s.running.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	looks := time.NewTicker(s.pace.look)
	defer looks.Stop()
	s.readCredentials(ctx)
	s.running.Go(func() { s.rereadCredentials(ctx) })
	pause, discoverAt := s.pace.soon, time.Now()
	var err error // of the last discovery
	for {
		if !time.Now().Before(discoverAt) {
			if err = s.discover(ctx); err == nil {
				pause = s.pace.soon
				discoverAt = time.Now().Add(s.nextDiscovery())
			} else {
				pause = min(2*pause, s.pace.discover)
				discoverAt = time.Now().Add(pause)
			}
		}
		follows := s.ledger.check(time.Now(), s.pace.grace, s.outage)
		s.contact(follows, feed.Synced())
		select {
		case <-ctx.Done():
			return nil
		case <-looks.C:
		case <-s.soon:
			if at := time.Now().Add(s.pace.soon); at.Before(discoverAt) {
				discoverAt = at
			}
		}
	}
}

// rereadCredentials reads the credentials again from time to time, until ctx ends.
func (s *Source) rereadCredentials(ctx context.Context) {
	ticks := time.NewTicker(s.pace.reread)
	defer ticks.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticks.C:
			s.readCredentials(ctx)
		}
	}
}

// readCredentials reads the credentials again, and uses them if they are new.
func (s *Source) readCredentials(ctx context.Context) {
	before := s.client.current().server()
	err := s.client.refresh(ctx)
	if ctx.Err() != nil {
		return
	}
	s.trouble(troubleCredentials, err)
	if now := s.client.current().server(); err == nil && before != now {
		s.log.Info("API server", "address", now)
	}
}

// failed notes that a request of a target came to nothing.
func (s *Source) failed(t *target, err error) {
	if errors.Is(err, context.Canceled) {
		return
	}
	s.breaks.Add(1)
	s.panicked(t, err)
	if !t.aside {
		s.ledger.lost(t)
	}
	switch {
	case apierrors.IsForbidden(err):
		if !t.aside && !s.needed(t.kind) {
			s.ledger.hush(t)
		}
		s.enter(t, Denied, err)
	case apierrors.IsNotFound(err):
		s.enter(t, Unserved, err)
		if !t.aside {
			s.ledger.hush(t)
			s.discoverSoon()
		}
	default:
		s.enter(t, Failing, err)
	}
}

// lost notes that a watch of a target has ended.
func (s *Source) lost(t *target, err error) {
	s.breaks.Add(1)
	s.panicked(t, err)
	if !t.aside {
		s.ledger.lost(t)
	}
	if err != nil && !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) && !errors.Is(err, context.Canceled) {
		s.enter(t, Failing, err)
	}
}

// panicked tells of a panic while the objects of a target were read.
func (s *Source) panicked(t *target, err error) {
	if p := (*mirror.Panic)(nil); errors.As(err, &p) {
		s.ledger.feed.Tell(intake.Panicked{What: t.kind.String(), Panic: p})
	}
}

// resumed notes that the changes of a target follow again from where they were.
func (s *Source) resumed(t *target) {
	if !t.aside {
		s.ledger.resumed(t)
	}
	s.enter(t, Following, nil)
}

// following notes that all of a target was told.
func (s *Source) following(t *target, objects int) {
	s.enter(t, Following, nil)
	s.log.Debug("objects listed", "kind", t.kind, "namespace", t.namespace, "objects", objects)
}
