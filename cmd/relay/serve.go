package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os/signal"
	"slices"
	"sync/atomic"
	"syscall"

	"github.com/oklog/run"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/spf13/cobra"

	"meshrelay/admin"
	"meshrelay/config"
	"meshrelay/downstream"
	"meshrelay/federation"
	"meshrelay/internal/buildinfo"
	"meshrelay/mirror"
	"meshrelay/push"
	"meshrelay/state"
	"meshrelay/state/local"
	"meshrelay/upstreams"
)

func newServe() *cobra.Command {
	var file, level, format string
	cmd := &cobra.Command{
		Use:   "serve -c FILE",
		Short: "Run the relay",
		Long: `Run the relay until it is told to end. On SIGTERM or SIGINT it tells its clients to
reconnect elsewhere, waits for them up to downstream.drainTimeout, writes down what is to
be kept, and ends; a second signal ends it at once. On SIGHUP, and whenever the config file
changes, it takes that over; a file that is wrong changes nothing.

Clients wait until every upstream has given its configuration or is served from what is on
disk (state.dir). For how long is upstreams[].firstSync and downstream.startupTimeout, and
"relay serve-without" ends it for one upstream. The readiness, with the reasons, is at
/ready of the admin address, and in "relay status".`,
		Example: `  relay serve -c relay.yaml
  relay serve -c relay.yaml --log-level debug --log-format json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if file == "" {
				return errNoConfig
			}
			watcher := config.NewWatcher(file)
			cfg, err := watcher.Load()
			if err != nil {
				return errors.Join(split(err)...)
			}
			flags := func(cfg *config.Config) {
				fitMemory(cfg)
				cfg.Log.Level = cmp.Or(level, cfg.Log.Level)
				cfg.Log.Format = cmp.Or(format, cfg.Log.Format)
			}
			flags(cfg)
			logLevel := new(slog.LevelVar)
			log, err := newLogger(cmd.ErrOrStderr(), cfg.Log, logLevel)
			if err != nil {
				return err
			}
			return serve(cmd.Context(), cfg, watcher, flags, log, logLevel)
		},
	}
	cmd.Flags().StringVarP(&file, "config", "c", "", "config `file` (required)")
	cmd.Flags().StringVar(&level, "log-level", "", "log `level` instead of the config's: debug, info, warn or error")
	cmd.Flags().StringVar(&format, "log-format", "", "log `format` instead of the config's: text or json")
	fixedCompletions(cmd, "log-level", "debug", "info", "warn", "error")
	fixedCompletions(cmd, "log-format", "text", "json")
	return cmd
}

func newLogger(w io.Writer, cfg config.Log, level *slog.LevelVar) (*slog.Logger, error) {
	if err := level.UnmarshalText([]byte(cfg.Level)); err != nil {
		return nil, fmt.Errorf("log level %q: want debug, info, warn or error", cfg.Level)
	}
	opts := &slog.HandlerOptions{Level: level}
	switch cfg.Format {
	case "text":
		return slog.New(slog.NewTextHandler(w, opts)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(w, opts)), nil
	}
	return nil, fmt.Errorf("log format %q: want text or json", cfg.Format)
}

// serve wires a relay together and runs it.
func serve(ctx context.Context, cfg *config.Config, watcher *config.Watcher, flags func(*config.Config), log *slog.Logger, level *slog.LevelVar) error {
	// A limit on the size of files is to be an error of a write, not the end.
	signal.Ignore(syscall.SIGXFSZ)
	hup := hangups()
	build := buildinfo.Read(version)
	log.Info("relay starts", "version", build.Version, "revision", build.Revision, "node", cfg.Node.ID, "upstreams", len(cfg.Upstreams))
	mem := newMemory(log)

	registry := prometheus.NewRegistry()
	aggregate := mirror.NewAggregate()
	policies, others, err := mergePolicies(cfg.Merge)
	if err != nil {
		return err
	}
	aggregate.SetPolicies(policies, others)
	register := federation.NewRegister(log)
	if err := register.Follow(aggregate); err != nil {
		return err
	}
	var keeper *state.Keeper
	var kept upstreams.Keeper // nil, and not an interface of a nil, when nothing is kept
	if cfg.State.Dir != "" {
		options := keeperOptions(cfg.State)
		options.Logger = log
		keeper = state.Open(local.New(cfg.State.Dir, log), options)
		kept = keeper
	}
	manager, err := upstreams.NewManager(cfg, aggregate, kept, log)
	if err != nil {
		return errors.Join(split(err)...)
	}
	guard := newMemoryGuard(cfg.Downstream.ShedAtMemoryPercent)
	debouncer, err := push.NewDebouncer(push.Options{After: cfg.Push.DebounceAfter.D(), Max: cfg.Push.DebounceMax.D()})
	if err != nil {
		return err
	}
	// The debug documents show the server that answers with them.
	var server *downstream.Server
	debug := admin.NewDebug(admin.Views{
		Configs: aggregate, Upstreams: manager.Status,
		Clients:  func() []downstream.ClientStatus { return server.Clients() },
		Receipts: func(key mirror.Key) []downstream.Receipt { return server.Receipts(key) },
		Trace:    manager.Trace, LeftOut: manager.LeftOut, Contests: register.Contests, HostConflicts: register.HostConflicts, NotFollowed: register.NotFollowed,
	})
	serverConfig, err := downstreamConfig(cfg, build.Version)
	if err != nil {
		return err
	}
	server, err = downstream.New(serverConfig, downstream.Deps{
		Configs: aggregate, Await: func(ctx context.Context) error {
			return manager.AwaitFirstSync(ctx, server.HeldClusters)
		},
		Debug: debug, Overloaded: guard.Overloaded, Registerer: registry, Logger: log,
	})
	if err != nil {
		return err
	}
	// Some clients do not see all copies, and may be served one that others are not.
	err = aggregate.RegisterTouchHandler(func(key mirror.Key, _ *mirror.Settlement) {
		if server.NeedsPushes() && server.NeedsCopies() {
			debouncer.UpdateKey(key, push.ConfigUpdate)
		}
	})
	if err != nil {
		return err
	}
	err = aggregate.RegisterEventHandler(mirror.Kind{}, func(old, cur *mirror.Resource, _ mirror.Event) {
		if !server.NeedsPushes() {
			return
		}
		if cur == nil {
			cur = old
		}
		debouncer.UpdateKey(cur.Key(), push.ConfigUpdate)
	})
	if err != nil {
		return err
	}
	reloaded := func() admin.ReloadStatus { return admin.ReloadStatus(watcher.Status()) }
	var draining atomic.Bool
	var sources atomic.Pointer[[]config.Upstream] // of the config that is used; immutable
	sources.Store(&cfg.Upstreams)
	operators, err := admin.New(admin.Config{
		Address: cfg.Admin.Address, Socket: cfg.AdminSocket(), OwnSocketDir: ownSocketDir(cfg),
	}, admin.Deps{
		Gatherer: registry, Debug: debug, LogLevel: level, Build: build, Logger: log,
		Controls: manager, ServeWithout: manager.ServeWithout, Reload: watcher.Reload, ReloadStatus: reloaded,
		Backup: backupOf(keeper), Notes: notesOf(keeper),
		Remarks: func() []string { return powerfulImports(*sources.Load(), aggregate) },
		Ready: func() admin.Readiness {
			if draining.Load() {
				return admin.Readiness{Reasons: []string{"shutting down"}}
			}
			return admin.Assess(server.HasReleased(), manager.Status())
		},
	})
	if err != nil {
		return err
	}
	own := []prometheus.Collector{manager, register, admin.NewReloadMetrics(reloaded)}
	if keeper != nil {
		own = append(own, keeper)
	}
	if err := registerProcess(registry, build, own...); err != nil {
		return err
	}
	reload := &reloader{
		running: cfg, now: cfg, flags: flags, manager: manager, aggregate: aggregate, server: server,
		debouncer: debouncer, keeper: keeper, memory: guard, level: level, log: log, sources: &sources,
	}

	// They are interrupted in this order, each when the one before it has ended: clients
	// are sent away first, and operators can look on to the end.
	var group run.Group
	group.Add(untilSignal(ctx, log, &draining))
	group.Add(actor(func(ctx context.Context) error { return onHangup(ctx, hup, log, watcher.Trigger) }))
	group.Add(actor(func(ctx context.Context) error { return watcher.Run(ctx, log, reload.apply) }))
	group.Add(actor(server.Run))
	group.Add(actor(func(ctx context.Context) error { return mem.run(ctx, server.Released()) }))
	group.Add(actor(guard.run))
	group.Add(actor(func(ctx context.Context) error { return sayServing(ctx, server.Released(), manager.Status, log) }))
	group.Add(actor(func(ctx context.Context) error { return debouncer.Run(ctx, server.Push) }))
	group.Add(actor(aggregate.Run))
	group.Add(actor(manager.Run))
	if keeper != nil {
		group.Add(actor(keeper.Run)) // what the sources gave to the end is written
	}
	group.Add(actor(operators.Run))
	err = group.Run()
	if err == nil {
		log.Info("relay has ended")
	}
	return err
}

// actor makes a Run method a member of a run.Group. Its interruption lasts until the
// method has returned.
func actor(runUntil func(context.Context) error) (execute func() error, interrupt func(error)) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	execute = func() error {
		defer close(done)
		return runUntil(ctx)
	}
	interrupt = func(error) {
		cancel()
		<-done
	}
	return execute, interrupt
}

// untilSignal ends with the first SIGTERM or SIGINT. From then on signals have their
// usual effect, so that a second one ends the process.
func untilSignal(ctx context.Context, log *slog.Logger, draining *atomic.Bool) (execute func() error, interrupt func(error)) {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGINT)
	execute = func() error {
		<-ctx.Done()
		if draining.Swap(true) {
			return nil // the relay ends for another reason
		}
		stop()
		log.Info("shutting down; another signal ends the relay at once", "cause", context.Cause(ctx))
		return nil
	}
	return execute, func(error) {
		draining.Store(true)
		stop()
	}
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

func downstreamConfig(cfg *config.Config, version string) (downstream.Config, error) {
	d := cfg.Downstream
	views, err := viewsOf(cfg.Views)
	if err != nil {
		return downstream.Config{}, err
	}
	out := downstream.Config{
		NodeID: cfg.Node.ID, Version: version, Views: views,
		MaxConnectionAge: d.MaxConnectionAge.D(), MaxConnectionAgeGrace: d.MaxConnectionAgeGrace.D(),
		DrainTimeout: d.DrainTimeout.D(), SendTimeout: d.SendTimeout.D(),
		MaxStreamsPerConnection: d.MaxStreamsPerConnection, MaxRequestBytes: d.MaxRequestBytes,
		MaxHeaderBytes: d.MaxHeaderBytes, Gzip: slices.Contains(d.Compression, config.CompressionGzip), Limits: limitsOf(d),
	}
	if cfg.Provenance.Annotations { // else what is served does not name this relay
		out.RelayName = cfg.Provenance.Relay
	}
	for _, l := range d.Listeners {
		listener := downstream.Listener{Address: l.Address, View: l.View, Debug: l.Debug}
		if l.TLS != nil {
			listener.TLS = &downstream.TLS{CertFile: l.TLS.CertFile, KeyFile: l.TLS.KeyFile, ClientCAFile: l.TLS.ClientCAFile}
			for _, ca := range l.TLS.ClientCAs {
				listener.TLS.ClientCAs = append(listener.TLS.ClientCAs, downstream.ClientCA(ca))
			}
		}
		out.Listeners = append(out.Listeners, listener)
	}
	return out, nil
}
