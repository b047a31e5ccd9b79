// Package relay assembles and runs a relay: it makes the parts from a config, connects them, and replaces
// their settings when the config file changes.
//
// The package must not know the command line or its output.
package relay

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"meshrelay/admin"
	"meshrelay/admin/ui"
	"meshrelay/config"
	"meshrelay/downstream"
	"meshrelay/downstream/admit"
	"meshrelay/events"
	"meshrelay/federation/conflicts"
	"meshrelay/federation/services"
	"meshrelay/internal/buildinfo"
	"meshrelay/internal/logring"
	"meshrelay/internal/memory"
	"meshrelay/internal/panics"
	"meshrelay/mirror"
	"meshrelay/orders"
	"meshrelay/push"
	"meshrelay/sink"
	"meshrelay/state"
	"meshrelay/state/local"
	"meshrelay/upstreams"
	"meshrelay/upstreams/kubernetes/clusters"
)

// Options are the parts of a Relay. All fields but Log are required.
type Options struct {
	// Config is the first config of Watcher, after Complete.
	Config  *config.Config
	Watcher *config.Watcher
	// Complete finishes each config: it sets the flags of the command line, and the limits that depend
	// on the memory of this process.
	Complete func(*config.Config)
	Build    buildinfo.Info
	Logger   *slog.Logger
	// LogLevel is the level of Logger.
	LogLevel *slog.LevelVar
	// Log has the last lines of Logger, for support bundles. It may be nil.
	Log *logring.Ring
}

// Relay is a relay with all its parts. New makes it, Run runs it.
type Relay struct {
	options    Options
	log        *slog.Logger
	aggregate  *mirror.Aggregate
	manager    *upstreams.Manager
	finder     *clusters.Finder
	keeper     *state.Keeper // nil: no state is kept
	events     *events.Journal
	stages     *stages
	conditions *conditions
	server     *downstream.Server
	pusher     *push.Pusher
	sinks      *sink.Set
	operators  *admin.Server
	pages      *ui.Pages
	guard      *admit.Guard
	expiries   *expiries
	metrics    *prometheus.Registry
	draining   atomic.Bool
	// config is the current config with the upstreams of found clusters. Configs are immutable: apply
	// replaces the pointer.
	config atomic.Pointer[config.Config]

	applying sync.Mutex     // held while upstreams are changed; guards file
	file     *config.Config // the current config as it is in the file
}

// New makes a Relay. It opens the state, but does not connect or listen.
func New(o Options) (*Relay, error) {
	r := &Relay{options: o, log: o.Logger, aggregate: mirror.NewAggregate(), file: o.Config, events: events.New(), stages: newStages()}
	finder, whole := clusters.New(o.Config.State.Dir, r.log)
	r.finder = finder
	r.finder.Adopt(o.Config)
	cfg, err := r.effective(o.Config)
	if err != nil {
		return nil, err
	}
	r.options.Config = cfg
	r.guard = admit.NewGuard()
	r.config.Store(cfg)
	r.expiries = &expiries{config: r.config.Load, listeners: cfg.Downstream.Listeners}
	for _, line := range append(cfg.Warnings(), SinkWarnings(cfg)...) {
		r.log.Warn("config has a likely mistake", "warning", line)
	}
	r.log.Info("relay starts", "version", o.Build.Version, "revision", o.Build.Revision, "node", cfg.Node.ID, "upstreams", len(cfg.Upstreams))
	r.log.Debug("memory limit", "bytes", memory.Tune())

	merge, err := merging(cfg)
	if err != nil {
		return nil, err
	}
	merge(r.aggregate)
	register := conflicts.Follow(r.aggregate, r.log)
	var kept upstreams.Keeper // stays a nil interface when no state is kept
	if cfg.State.Dir != "" {
		options := keeperOptions(cfg.State)
		options.Logger = r.log
		for _, u := range cfg.Upstreams {
			options.Retain = append(options.Retain, u.Name)
		}
		if !whole { // the list of found clusters was lost: retain the state of all upstreams
			options.Retain = nil
		} else if options.Retain == nil {
			options.Retain = []string{}
		}
		if r.keeper, err = state.Open(local.New(cfg.State.Dir, r.log), options); err != nil {
			return nil, err
		}
		kept = r.keeper
		if bad := r.events.Load(r.keeper.LoadJournal()); bad > 0 {
			r.log.Warn("journal has unreadable lines", "lines", bad)
		}
		r.keeper.FollowJournal(r.events)
	}
	if r.manager, err = upstreams.NewManager(cfg, Kinds(), r.aggregate, kept, r.log); err != nil {
		return nil, err
	}
	r.manager.Record(r.events)
	o.Watcher.Tell(r.recordReload)
	work := push.NewWork()
	r.pusher = push.NewPusher(pushOptions(), work)
	r.metrics = prometheus.NewRegistry()
	views := admin.Views{
		Resources: r.aggregate, Upstreams: r.upstreams, Clusters: r.finder.Status, Trace: r.manager.Trace, LeftOut: r.manager.LeftOut,
		Contests: register.KeyConflicts, HostConflicts: register.HostConflicts, Hybrids: register.Hybrids,
		Events: r.events, Replicas: func() []orders.Replica { return r.manager.Replicas() },
		Applied: func(key mirror.Key) []sink.Applied { return r.sinks.Applied(key) },
	}
	serverConfig, err := downstreamConfig(cfg, o.Build.Version)
	if err != nil {
		return nil, err
	}
	r.server, err = downstream.New(serverConfig, downstream.Deps{
		Resources: r.aggregate, Await: func(ctx context.Context) error {
			return r.manager.AwaitFirstSync(ctx, r.server.HeldClusters)
		},
		Work: work, Overloaded: r.guard.Overloaded, Events: r.events, Registerer: r.metrics,
		Logger: slog.New(logring.WithoutDebug(r.log.Handler())), // it logs each push to each client
	})
	if err != nil {
		return nil, err
	}
	debug := admin.NewDebug(views, r.server)
	r.manager.OnSame(r.server.Same)
	r.conditions = newConditions(r)
	r.follow(cfg)
	r.followStages()
	r.pushChanges()
	if r.sinks, err = r.newSinks(); err != nil {
		return nil, err
	}
	if r.pages, err = r.newPages(views, debug, register.Counts); err != nil {
		return nil, err
	}
	r.operators = admin.New(adminConfig(cfg), r.adminDeps(debug))
	r.pages.ShowServer(r.operators)
	own := []prometheus.Collector{admin.NewReloadMetric(o.Watcher.Status), r.manager, r.finder, register, r.pusher, r.sinks, r.expiries}
	if r.keeper != nil {
		own = append(own, r.keeper)
	}
	return r, registerProcess(r.metrics, o.Build, own...)
}

// pushChanges makes the pusher push changes of the merged resources.
func (r *Relay) pushChanges() {
	// A view of some upstreams may serve another copy than the one that the merge selects.
	r.aggregate.RegisterHandler(func(c mirror.Change) {
		if !r.server.NeedsPushes() {
			return
		}
		if r.server.NeedsCopies() {
			r.pusher.Changed(changer(c), c.Key, push.CopyUpdate)
		}
		if c.Visible() {
			r.pusher.Changed(cmp.Or(c.New, c.Old).Source(), c.Key, reasonOf(c))
		}
	})
}

// reasonOf returns the reason for a push of a visible change.
func reasonOf(c mirror.Change) push.Reason {
	var service, endpoint bool
	_ = panics.Try(func() { service, endpoint = services.Concerns(c.Old, c.New) }) // whatever their bytes: clients get it
	switch {
	case service:
		return push.ServiceUpdate
	case endpoint:
		return push.EndpointUpdate
	}
	return push.ConfigUpdate
}

// changer returns the upstream to which the pusher counts a change of copies: the upstream of the first copy.
func changer(c mirror.Change) string {
	switch {
	case c.Resolution != nil:
		return c.Resolution.Copies[0].Source
	case c.New != nil:
		return c.New.Source()
	}
	return ""
}

func (r *Relay) adminDeps(debug *admin.Debug) admin.Deps {
	deps := admin.Deps{
		Gatherer: r.metrics, Debug: debug, Pages: r.pages, LogLevel: r.options.LogLevel, Build: r.options.Build, Logger: r.log,
		Name: r.config.Load().Node.ID, Relay: r.config.Load().Provenance.Relay, Started: time.Now(), Memory: memory.InUse,
		Controls: r.manager, Clusters: r.finder, Sinks: r.sinks, Notes: r.notes, Reload: r.options.Watcher.Reload, ReloadStatus: r.options.Watcher.Status,
		Preview: r.preview,
		Remarks: func() []string { return powerfulImports(r.config.Load().Upstreams, r.aggregate) },
		Ready: func() admin.Readiness {
			if r.draining.Load() {
				return admin.Readiness{Reasons: []string{"shutting down"}}
			}
			return admin.Assess(r.server.HasReleased(), r.upstreams())
		},
	}
	deps.Supports = r.supports()
	if r.keeper != nil {
		deps.Backup = r.backup
	}
	return deps
}

// supports returns the parts of a support bundle that come from the relay.
func (r *Relay) supports() (s admin.Supports) {
	s.Config = func(w io.Writer) error {
		text, err := r.config.Load().Shown()
		if err == nil {
			_, err = w.Write(text)
		}
		return err
	}
	if log := r.options.Log; log != nil {
		s.Log = func(w io.Writer) error {
			_, err := log.WriteTo(w)
			return err
		}
	}
	if r.keeper != nil {
		s.State = func(w io.Writer) error { return json.NewEncoder(w).Encode(r.keeper.Status()) }
	}
	return s
}

// Run runs the relay until ctx ends, SIGTERM or SIGINT arrives, or a part fails.
func (r *Relay) Run(ctx context.Context) error {
	signal.Ignore(syscall.SIGXFSZ) // a write over the limit of file sizes then returns an error
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP) // never undone: a SIGHUP would end the process
	signals, stop := signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGINT)
	r.events.Record(events.Event{Type: events.Started, By: events.ByRelay, Text: fmt.Sprintf("version %s, upstreams: %d", r.options.Build.Version, len(r.config.Load().Upstreams))})
	// Clients leave first, and the admin server ends last.
	parts := []part{
		func(end context.Context) error {
			untilSignal(signals, end, stop, r.log, &r.draining)
			r.events.Record(events.Event{Type: events.Ended, By: events.ByRelay, Text: "the relay shuts down"})
			return nil
		},
		func(ctx context.Context) error { return r.reloadOnHangup(ctx, hangups) },
		func(ctx context.Context) error { return r.options.Watcher.Run(ctx, r.log, r.apply) },
		r.followClusters,
		r.finder.Run,
		r.server.Run,
		func(ctx context.Context) error { return r.guard.Run(ctx, r.server.Shed) },
		r.expiries.Run,
		r.tellTrouble,
		r.logServing,
		r.sinks.Run,
		func(ctx context.Context) error { return r.pusher.Run(ctx, r.server.Push) },
		r.aggregate.Run,
		r.conditions.run, // ends before the upstreams, whose sources it uses
		r.manager.Run,
		r.stages.Run,
		r.events.Run, // ends after all that record events, and before the keeper
	}
	if r.keeper != nil {
		parts = append(parts, r.keep) // ends after the upstreams, and writes all their resources
	}
	parts = append(parts, r.pages.Run, r.operators.Run)
	err := runParts(ctx, parts)
	if err == nil {
		r.log.Info("relay ended")
	}
	return err
}

// keep runs the Keeper after the upstreams have read their state from disk.
func (r *Relay) keep(ctx context.Context) error {
	select {
	case <-r.manager.Restored():
	case <-ctx.Done():
	}
	return r.keeper.Run(ctx)
}

// logServing logs when the relay begins to serve clients. It returns when ctx ends.
func (r *Relay) logServing(ctx context.Context) error {
	began := time.Now()
	select {
	case <-ctx.Done():
		return nil
	case <-r.server.Released():
	}
	r.events.Record(events.Event{Type: events.Serving, By: events.ByRelay, Text: fmt.Sprintf("clients are served after %v", time.Since(began).Round(time.Millisecond))})
	r.log.Info("serving clients", append(servedFrom(r.manager.Status()), "after", time.Since(began).Round(time.Millisecond))...)
	<-ctx.Done()
	return nil
}

// servedFrom returns log attributes with the number of upstreams that have synced, that are served from
// disk, and the rest.
func servedFrom(sources []upstreams.Status) []any {
	synced, fromDisk := 0, 0
	for _, s := range sources {
		switch {
		case s.Synced:
			synced++
		case s.Stale && len(s.Resources) > 0:
			fromDisk++
		}
	}
	return []any{"upstreams", len(sources), "synced", synced, "fromDisk", fromDisk, "notSynced", len(sources) - synced - fromDisk}
}

func registerProcess(registry *prometheus.Registry, build buildinfo.Info, own ...prometheus.Collector) error {
	info := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name:        "relay_build_info",
		Help:        "1, with the version of the program as labels.",
		ConstLabels: prometheus.Labels{"version": build.Version, "revision": build.Revision, "goversion": build.GoVersion},
	}, func() float64 { return 1 })
	var errs []error
	for _, c := range append(own, info, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{})) {
		errs = append(errs, registry.Register(c))
	}
	return errors.Join(errs...)
}
