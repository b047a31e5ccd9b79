package main

import (
	"cmp"
	"fmt"
	"io"
	"log/slog"

	"github.com/spf13/cobra"
	"k8s.io/klog/v2"

	"meshrelay/config"
	"meshrelay/internal/buildinfo"
	"meshrelay/internal/logring"
	"meshrelay/internal/memory"
	"meshrelay/relay"
)

func newServe() *cobra.Command {
	var file configFile
	var level, format string
	cmd := &cobra.Command{
		Use:   "serve [-c FILE]",
		Short: "Run the relay",
		Long: `Run the relay until SIGTERM or SIGINT. The relay then makes its clients reconnect elsewhere, waits
for them up to 10 seconds, writes its state, and ends. A second signal ends it at once.
It loads the config file again on SIGHUP and when the file changes. A file with mistakes changes
nothing.

Clients wait until every upstream has synced or is served from disk (state.dir).
upstreams[].firstSync and downstream.startupTimeout limit the wait, and "relay serve-without"
ends it for one upstream. "relay status" and /ready of the admin address show whether the relay
is ready, and why not.`,
		Example: `  relay serve -c relay.yaml
  relay serve -c relay.yaml --log-level debug --log-format json`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			path, err := file.find()
			if err != nil {
				return err
			}
			watcher := config.NewWatcher(path, relay.Sources()...)
			cfg, err := watcher.Load()
			if err != nil {
				return err
			}
			complete := func(cfg *config.Config) {
				cfg.FitMemory(memory.SetLimit())
				cfg.Log.Level = cmp.Or(level, cfg.Log.Level)
				cfg.Log.Format = cmp.Or(format, cfg.Log.Format)
			}
			first := *cfg // only for the log; relay.New completes the upstreams
			first.Upstreams = nil
			complete(&first)
			logLevel := new(slog.LevelVar)
			log, err := newLogger(cmd.ErrOrStderr(), first.Log, logLevel)
			if err != nil {
				return err
			}
			recent := new(logring.Ring)
			log = slog.New(recent.Handler(log.Handler()))
			klog.SetSlogLogger(log) // client-go logs through klog
			r, err := relay.New(relay.Options{
				Config: cfg, Watcher: watcher, Complete: complete,
				Build: buildinfo.Read(version), Logger: log, LogLevel: logLevel, Log: recent,
			})
			if err != nil {
				return err
			}
			return r.Run(cmd.Context())
		},
	}
	file.flag(cmd)
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
