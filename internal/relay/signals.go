package relay

import (
	"context"
	"log/slog"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
)

// ignoreFileSizeSignal makes a limit on the size of files an error of a write, not the end of
// the process.
func ignoreFileSizeSignal() { signal.Ignore(syscall.SIGXFSZ) }

// notifyHangups returns a channel of SIGHUPs. It stays registered: a SIGHUP would end the
// process otherwise.
func notifyHangups() <-chan os.Signal {
	c := make(chan os.Signal, 1)
	signal.Notify(c, syscall.SIGHUP)
	return c
}

// onHangup calls trigger on each SIGHUP, until ctx ends.
func onHangup(ctx context.Context, hangups <-chan os.Signal, log *slog.Logger, trigger func()) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-hangups:
			log.Info("reading the config file", "cause", "SIGHUP")
			trigger()
		}
	}
}

// untilSignal ends with the first SIGTERM or SIGINT. From then on signals have their usual
// effect, so that a second one ends the process.
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
