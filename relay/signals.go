package relay

import (
	"context"
	"log/slog"
	"os"
	"sync/atomic"
)

// reloadOnHangup loads the config file on each SIGHUP, until ctx ends.
func (r *Relay) reloadOnHangup(ctx context.Context, hangups <-chan os.Signal) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-hangups:
			r.log.Info("reading config file", "cause", "SIGHUP")
			r.options.Watcher.Trigger()
		}
	}
}

// untilSignal returns with the end of signals, the first SIGTERM or SIGINT, or of end: the relay ends for another reason.
// After stop, another signal ends the process.
func untilSignal(signals, end context.Context, stop func(), log *slog.Logger, draining *atomic.Bool) {
	defer draining.Store(true)
	defer stop()
	select {
	case <-end.Done():
	case <-signals.Done():
		stop() // before the log tells of it
		log.Info("shutting down", "cause", context.Cause(signals), "hint", "another signal ends the relay at once")
	}
}
