package upstreams

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/cenkalti/backoff/v5"

	"meshrelay/internal/panics"
)

// Bounds of the pauses after failures. After a run of mostPause, the next pause is short again.
const (
	leastPause = time.Second
	mostPause  = 5 * time.Minute
)

// Restart calls run until run returns nil, or ctx ends. After a panic or an error it logs that, calls failed, and
// pauses before it calls run again. It logs the stack of a panic that repeats once.
func Restart(ctx context.Context, log *slog.Logger, run func(context.Context) error, failed func(error)) {
	restart(ctx, log, leastPause, run, failed)
}

// restart is Restart with a first pause of its own.
func restart(ctx context.Context, log *slog.Logger, least time.Duration, run func(context.Context) error, failed func(error)) {
	pauses := &backoff.ExponentialBackOff{InitialInterval: least, MaxInterval: mostPause, Multiplier: 2, RandomizationFactor: 0.1}
	pauses.Reset()
	for last := ""; ; {
		began := time.Now()
		err := panics.Contain(func() error { return run(ctx) })
		if err == nil {
			return
		}
		if time.Since(began) >= mostPause {
			pauses.Reset()
			last = ""
		}
		next := pauses.NextBackOff()
		args := []any{"err", err, "pause", next.Round(time.Millisecond)}
		if p, is := errors.AsType[*panics.Panic](err); is && p.Value != last {
			last = p.Value
			args = append(args, "stack", p.Stack)
		}
		log.Error("source failed", args...)
		_ = panics.Contain(func() error { failed(err); return nil }) // what panics there has panicked in run, and is logged
		if pause(ctx, next, nil); ctx.Err() != nil {
			return
		}
	}
}
