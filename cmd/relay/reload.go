package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"reflect"
	"sync/atomic"
	"syscall"
	"time"

	"meshrelay/config"
	"meshrelay/downstream"
	"meshrelay/mirror"
	"meshrelay/push"
	"meshrelay/state"
	"meshrelay/upstreams"
)

// reloader makes a running relay take over a config. It is used by one goroutine.
type reloader struct {
	// running is the config that the relay was started with, and now the one in force.
	running, now *config.Config
	// flags puts the command line before a config, and fills in what
	// follows from the memory of the process.
	flags func(*config.Config)

	manager   *upstreams.Manager
	aggregate *mirror.Aggregate
	server    *downstream.Server
	debouncer *push.Debouncer
	keeper    *state.Keeper // nil: nothing is kept
	memory    *memoryGuard
	level     *slog.LevelVar
	log       *slog.Logger
	// sources are the upstreams of the config that is used, for others; nil: nobody asks.
	sources *atomic.Pointer[[]config.Upstream]
}

// apply implements config.Apply. What can fail is checked first, so that nothing is taken
// over of a config that can not be taken over as a whole.
func (r *reloader) apply(ctx context.Context, cfg *config.Config) (needsRestart []string, err error) {
	r.flags(cfg)
	var level slog.Level
	if err := level.UnmarshalText([]byte(cfg.Log.Level)); err != nil {
		return nil, fmt.Errorf("log level %q: want debug, info, warn or error", cfg.Log.Level)
	}
	next := *cfg
	// What only a restart takes over stays as it is.
	next.Node, next.Provenance = r.running.Node, r.running.Provenance
	// The listeners that run meet the new views, whatever those in the file are.
	if err := config.CheckListeners(r.running.Downstream.Listeners, cfg.Views); err != nil {
		return nil, fmt.Errorf("the listeners stay until a restart, and these views are not for them: %w", err)
	}
	policies, others, err := mergePolicies(cfg.Merge)
	if err != nil {
		return nil, err
	}
	views, err := viewsOf(cfg.Views)
	if err != nil {
		return nil, err
	}
	limits := limitsOf(cfg.Downstream)
	if err := r.server.CheckReload(views, limits); err != nil {
		return nil, err
	}
	err = r.server.Reload(ctx, views, limits, func(held context.Context) error {
		if err := r.manager.Apply(&next); err != nil {
			return errors.Join(split(err)...)
		}
		r.aggregate.SetPolicies(policies, others)
		if err := r.aggregate.CaughtUp(held); err != nil && ctx.Err() == nil {
			r.log.Warn("the config is taken over, and merging what the upstreams have takes long: clients may see some of it before the rest", "err", err)
		}
		return ctx.Err()
	})
	if err != nil {
		return nil, err
	}
	if len(views)+len(r.now.Views) > 0 && !reflect.DeepEqual(cfg.Views, r.now.Views) || limits != limitsOf(r.now.Downstream) {
		r.log.Info("views and limits replaced", "views", len(views))
	}
	// The config has been checked: the two durations do not contradict each other.
	if err := r.debouncer.SetOptions(push.Options{After: cfg.Push.DebounceAfter.D(), Max: cfg.Push.DebounceMax.D()}); err != nil {
		return nil, err
	}
	if r.keeper != nil {
		if err := r.keeper.SetOptions(ctx, keeperOptions(cfg.State)); err != nil {
			return nil, err
		}
	}
	r.memory.setPercent(cfg.Downstream.ShedAtMemoryPercent)
	if cfg.Log.Level != r.now.Log.Level {
		r.level.Set(level) // else the level that an operator has set stays
	}
	r.now = &next
	if r.sources != nil {
		r.sources.Store(&next.Upstreams)
	}
	return config.Diff(r.running, cfg), nil
}

// hangups returns what tells of each SIGHUP. It does so to the end of the process, which a
// SIGHUP would be otherwise.
func hangups() <-chan os.Signal {
	c := make(chan os.Signal, 1)
	signal.Notify(c, syscall.SIGHUP)
	return c
}

// onHangup has the config file read on each SIGHUP, until ctx ends.
func onHangup(ctx context.Context, hangups <-chan os.Signal, log *slog.Logger, trigger func()) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-hangups:
			log.Info("SIGHUP: reading the config file")
			trigger()
		}
	}
}

// keeperOptions are those that can change.
func keeperOptions(s config.State) state.Options {
	return state.Options{FlushInterval: s.FlushInterval.D(), History: historyOf(s)}
}

// historyOf returns the bounds of the history.
func historyOf(s config.State) state.History {
	return state.History{Revisions: s.History.Revisions, MaxAge: s.History.MaxAge.D(), MaxBytes: s.History.MaxBytes}
}

// limitsOf returns the limits of clients that can change.
func limitsOf(d config.Downstream) downstream.Limits {
	return downstream.Limits{
		MaxConnections: d.MaxConnections, MaxStreams: d.MaxStreams,
		MaxConnectionsPerPeer: d.MaxConnectionsPerPeer, MaxStreamsPerPeer: d.MaxStreamsPerPeer, NewStreamsPerSecond: d.NewStreamsPerSecond,
		RequestsPerSecond: d.RequestsPerSecond, MaxNodeBytes: d.MaxNodeBytes, MaxTypesPerClient: d.MaxTypesPerClient,
		MaxNamesPerClient: d.MaxNamesPerClient, MaxNameBytesPerClient: d.MaxNameBytesPerClient,
		MaxNamesPerPeer: d.MaxNamesPerPeer, MaxNameBytesPerPeer: d.MaxNameBytesPerPeer,
		MaxNames: d.MaxNames, MaxNameBytes: d.MaxNameBytes, MaxVersionBytes: d.MaxVersionBytes,
	}
}

// backupOf returns what writes a copy of the state; nil when none is kept.
func backupOf(k *state.Keeper) func(io.Writer) error {
	if k == nil {
		return nil
	}
	return k.Backup
}

// notesOf returns what says what is wrong with the disk.
func notesOf(k *state.Keeper) func() []string {
	return func() (notes []string) {
		if k == nil {
			return nil
		}
		st := k.Status()
		if st.LastError != "" {
			notes = append(notes, fmt.Sprintf("state: not kept on disk since %s, and a restart would know no more than until then: %s",
				st.ErrorSince.UTC().Format(time.RFC3339), st.LastError))
		}
		if st.Note != "" {
			notes = append(notes, "state: "+st.Note)
		}
		for _, path := range st.SetAside {
			notes = append(notes, fmt.Sprintf("state: %s could not be used and was set aside: look at it, or delete it", path))
		}
		return notes
	}
}
