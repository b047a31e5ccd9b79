package relay

import (
	"context"
	"log/slog"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
)

// reloadOnHangup loads the config file on each SIGHUP, until ctx ends.
func (r *Relay) reloadOnHangup(ctx context.Context, hangups <-chan os.Signal) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-hangups:
			r.log.Info("reading config file", "cause", "SIGHUP")
			r.hungUp.Store(true)
			r.options.Watcher.Trigger()
		}
	}
}

// untilSignal returns a member of a run.Group that ends with the first SIGTERM or SIGINT. A second signal
// ends the process.
func untilSignal(ctx context.Context, log *slog.Logger, draining *atomic.Bool) (execute func() error, interrupt func(error)) {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGINT)
	execute = func() error {
		<-ctx.Done()
		if draining.Swap(true) {
			return nil // the relay ends for another reason
		}
		stop()
		log.Info("shutting down", "cause", context.Cause(ctx), "hint", "another signal ends the relay at once")
		return nil
	}
	return execute, func(error) {
		draining.Store(true)
		stop()
	}
}
