// Package kubernetes is the source that reads Istio and Gateway API objects from the API server of a cluster.
//
// It owns the config section, the choice of kinds, the conversion of objects to resources, and the status. A
// collection connects the reflector of a kind with the ledger, which feeds the intake.
//
// The package must not know what is served of the objects, or which other upstreams exist.
package kubernetes

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"meshrelay/config"
	"meshrelay/internal/buildinfo"
	"meshrelay/internal/doctor"
	"meshrelay/internal/loglimit"
	"meshrelay/internal/panics"
	"meshrelay/mirror"
	"meshrelay/upstreams"
	"meshrelay/upstreams/intake"
	"meshrelay/upstreams/intake/records"
	"meshrelay/upstreams/kubernetes/apiserver"
	"meshrelay/upstreams/kubernetes/discovery"
	"meshrelay/upstreams/kubernetes/ingress"
	"meshrelay/upstreams/kubernetes/ledger"
	"meshrelay/upstreams/kubernetes/object"
	"meshrelay/upstreams/kubernetes/reflector"
	"meshrelay/upstreams/kubernetes/services"
)

// pace has the intervals and time limits of a source.
type pace struct {
	// look is the time between two checks of the watches.
	look time.Duration
	// discover is the time between two discoveries. soon is the time until a requested one.
	discover, soon time.Duration
	reread         time.Duration // of the credentials
	gone           time.Duration // during which answers must lack a kind, or must have a better version of it
	verified       time.Duration // how long a verification of the cluster is valid
	// grace is how long the watch of a kind may be broken before the upstream is out of contact. A server
	// ends each watch after some minutes, so short breaks are usual.
	grace          time.Duration
	reflector.Pace // of each collection; three pauses Ended fit into grace
}

var usual = pace{
	look: time.Second, discover: 30 * time.Second, soon: time.Second, reread: 10 * time.Second,
	gone: 30 * time.Second, verified: 5 * time.Second, grace: 15 * time.Second,
	Pace: reflector.Pace{
		Retry: 800 * time.Millisecond, RetryMax: 30 * time.Second, Request: 800 * time.Millisecond,
		Ended: 5 * time.Second, Forgive: time.Hour,
	},
}

// maxDiscoveries bounds the discoveries of all sources at a time. A server can make one take apiserver.ReadTimeout,
// and a failed one is followed by a longer pause: less than 190 such servers keep nobody waiting.
const maxDiscoveries = 64

// Kind returns the kind of source for API servers.
func Kind() upstreams.Kind {
	discoveries := semaphore.NewWeighted(maxDiscoveries)
	return upstreams.Kind{
		Config: &Config{},
		New: func(u config.Upstream, env upstreams.Env) (upstreams.Source, error) {
			s := New(u, env)
			s.discoveries = discoveries
			return s, nil
		},
		Check: func(u config.Upstream) error {
			if sectionOf(u).Cluster.InCluster || sectionOf(u).Found != nil {
				return nil // the config may be checked on another host, and a found cluster must not fail a reload
			}
			return sectionOf(u).credentials().Check()
		},
		Lives: func(u config.Upstream) (certificate, token doctor.Life, err error) {
			return sectionOf(u).credentials().Lives()
		},
		Probe: probe,
	}
}

// Source reads one API server. A list is final, so that it repeats none.
type Source struct {
	upstreams.Plain
	section    *Config
	pace       pace
	kinds      []mirror.Kind // to mirror
	sought     []mirror.Kind // kinds, and the inputs that not every server has
	named      map[mirror.Kind]bool
	asked      func(mirror.Kind) bool
	log        *slog.Logger
	complaints *loglimit.Limit
	client     *apiserver.Client
	tracker    *discovery.Tracker
	converting converter     // template for the converter of each kind
	soon       chan struct{} // has an element when a discovery is requested
	// discoveries has a place for each running discovery, of all sources of a Kind.
	discoveries *semaphore.Weighted

	selection      *ledger.Selection // of namespaces, nil for all
	ingressOptions *ingress.Options  // nil: Ingresses are not converted
	// The ConfigMap with the MeshConfig.
	meshNamespace, meshName string
	lists                   *object.Budget // of the collections
	cfg                     config.Upstream
	takes                   map[mirror.Kind]bool // see inputsOf

	// Only Run and the goroutines that it starts use these.
	feed           upstreams.Feed
	ledger         *ledger.Ledger
	cluster        *apiserver.Cluster
	ingresses      *ingresses    // nil: Ingresses are not converted
	makes          *serviceMaker // nil: services are not made
	serviceOptions services.Options
	optionsRead    bool // serviceOptions are what the server has told, or does not let the relay read
	running        *errgroup.Group
	hurry          atomic.Int32 // discoveries that follow soon

	runs atomic.Bool // the fields above are set, so Describe may use them

	mu     sync.Mutex // guards all below, and the states of collections; no other lock is taken while it is held
	st     status
	limits config.Limits
}

// New returns a source. It has not sent a request or read credentials yet. It shares no places for discoveries.
func New(cfg config.Upstream, env upstreams.Env) *Source {
	section := sectionOf(cfg)
	s := &Source{
		section: section, limits: cfg.Limits, pace: usual,
		named: map[mirror.Kind]bool{}, asked: records.Asked(cfg), log: env.Log, complaints: loglimit.New(20, 10*time.Second),
		client:     apiserver.NewClient(section.credentials(), fmt.Sprintf("meshrelay/%s (upstream %s)", buildinfo.Read("").Version, cfg.Name)),
		converting: converter{upstream: cfg.Name},
		soon:       make(chan struct{}, 1),
		selection:  ledger.NewSelection(section.DiscoverySelectors), ingressOptions: section.Ingress.options(cfg.DomainSuffix),
		discoveries: semaphore.NewWeighted(1), lists: object.NewBudget(cfg.Limits.MaxBytes),
	}
	s.cfg, s.st, s.serviceOptions, s.takes = cfg, newStatus(), optionsOf(cfg), inputsOf(cfg)
	s.meshNamespace, s.meshName = section.Ingress.Namespace, meshOf(cfg.Import.Revision)
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
	if s.sought = s.kinds; s.readsInput(exportKind) && !s.takes[exportKind] {
		s.sought = append(slices.Clone(s.kinds), exportKind)
	}
	return s
}

// wants reports whether import.profile and import.kinds allow a kind, or services are made of its objects.
func (s *Source) wants(k mirror.Kind) bool { return s.asked(k) || s.readsInput(k) }

// Run implements upstreams.Source.
func (s *Source) Run(ctx context.Context, feed upstreams.Feed) error {
	s.prepare(feed)
	s.ledger.Announce()
	defer s.client.Close()
	ctx, cancel := context.WithCancel(ctx)
	s.running, ctx = errgroup.WithContext(ctx)
	defer func() { _ = s.running.Wait() }() // also after a panic of Run
	defer cancel()

	looks := time.NewTicker(s.pace.look)
	defer looks.Stop()
	s.readCredentials(ctx)
	s.spawn(func() { s.rereadCredentials(ctx) })
	pause, discoverAt := s.pace.soon, time.Now()
	for {
		if !time.Now().Before(discoverAt) {
			if err := s.discover(ctx); err == nil {
				pause = s.pace.soon
				discoverAt = time.Now().Add(s.nextDiscovery())
			} else {
				pause = min(2*pause, s.pace.discover)
				discoverAt = time.Now().Add(pause)
			}
		}
		follows := s.ledger.Check(time.Now(), s.pace.grace, s.outage)
		s.contact(follows, feed.Synced())
		select {
		case <-ctx.Done():
			return s.running.Wait()
		case <-looks.C:
		case <-s.soon:
			if at := time.Now().Add(s.pace.soon); at.Before(discoverAt) {
				discoverAt = at
			}
		}
	}
}

// spawn calls f in a goroutine, for which Run waits. A panic ends Run.
func (s *Source) spawn(f func()) {
	s.running.Go(func() error { return panics.Contain(func() error { f(); return nil }) })
}

// prepare creates the ledger, the cluster and the tracker.
func (s *Source) prepare(feed upstreams.Feed) {
	s.feed, s.tracker = feed, discovery.NewTracker(s.pace.gone)
	var derivers []ledger.Deriver
	if s.ingressOptions != nil {
		s.ingresses = newIngresses(s.cfg.Name, *s.ingressOptions, feed)
		s.ingresses.mesh = s.section.Ingress.Mode == modeMesh
		s.ingresses.unsettled = s.ingresses.mesh
		derivers = append(derivers, s.ingresses)
	}
	s.makes = newServiceMaker(s.cfg, s.serviceOptions, feed, s.endpointsRefused)
	if s.makes != nil {
		derivers, feed = append(derivers, s.makes), s.makes.feed
	}
	s.ledger = ledger.New(s.kinds, feed, s.selection, derivers...)
	before := feed.Identity()
	uid := cmp.Or(s.section.ClusterUID, before)
	if uid != before {
		feed.Tell(intake.Identified{Identity: uid})
	}
	s.cluster = apiserver.NewCluster(s.client, uid, apiserver.Hooks{
		Identified: func(uid string) { feed.Tell(intake.Identified{Identity: uid}) },
		Judged:     s.judged,
	})
	s.cluster.Verified, s.cluster.Retry = s.pace.verified, s.pace.Retry
	s.runs.Store(true)
}

// readsInput reports whether the objects of a kind are inputs of services.
func (s *Source) readsInput(kind mirror.Kind) bool {
	_, is := s.takes[kind]
	return is
}

// endpointsRefused logs services whose endpoints can not be served.
func (s *Source) endpointsRefused(r records.Result) {
	if err := r.Err(); err != nil {
		s.complaints.Warn(s.log, "endpoints of services refused, last endpoints served", "err", err)
	}
}

// judged handles the result of a verification.
func (s *Source) judged(uid string, err error) {
	s.trouble(troubleCluster, err)
	if err == nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.st.cluster = uid
	}
}

// rereadCredentials calls readCredentials regularly until ctx ends.
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
	before, rotations := s.client.Current().Server(), s.client.Rotations()
	err := s.client.Refresh(ctx)
	if ctx.Err() != nil {
		return
	}
	s.trouble(troubleCredentials, err)
	if now := s.client.Current().Server(); err == nil && before != now {
		s.log.Info("API server address changed", "address", now)
	}
	if s.client.Rotations() != rotations { // what was refused to the credentials of before need not wait
		s.discoverSoon()
		s.relist(func(c *collection) bool { return apierrors.IsUnauthorized(c.err) || apierrors.IsForbidden(c.err) })
	}
}

// Resync implements upstreams.Source.
func (s *Source) Resync() { s.relist(func(*collection) bool { return true }) }

// relist makes these collections list all objects again. which is called while mu is held.
func (s *Source) relist(which func(*collection) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.sorted() {
		if c.Kind != definitionKind && which(c) {
			c.entry.Relist()
		}
	}
}

// Limit implements upstreams.Source.
func (s *Source) Limit(now config.Limits) {
	s.mu.Lock()
	before := s.limits
	s.limits = now
	s.mu.Unlock()
	s.lists.Set(now.MaxBytes)
	if relaxed(before, now) { // a too large list fails as a whole
		s.relist(func(c *collection) bool { return c.entry.Cramped.Load() || c.shown == Failing })
	}
}

// relaxed reports whether any limit has grown.
func relaxed(before, now config.Limits) bool {
	more := func(before, now int) bool { return before > 0 && (now == 0 || now > before) }
	return more(before.MaxBytes, now.MaxBytes) || more(before.MaxResources, now.MaxResources)
}
