// Package loglimit bounds the rate of log lines that others cause: clients, upstreams, writers of
// files. It must not know the text of the lines.
package loglimit

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
)

// Limit lets lines through, and counts those that it does not. Any goroutine may use it.
type Limit struct {
	limiter *rate.Limiter
	silent  atomic.Int64
}

// New returns a Limit that lets burst lines through at once, and then one in a time.
func New(burst int, every time.Duration) *Limit {
	return &Limit{limiter: rate.NewLimiter(rate.Every(every), burst)}
}

// Log logs a line, unless there were too many. The next one tells how many it has left out.
func (l *Limit) Log(log *slog.Logger, level slog.Level, msg string, args ...any) {
	if !l.limiter.Allow() {
		l.silent.Add(1)
		return
	}
	if n := l.silent.Swap(0); n > 0 {
		args = append(args, "unlogged", n)
	}
	log.Log(context.Background(), level, msg, args...)
}

// Warn is Log at the level of warnings.
func (l *Limit) Warn(log *slog.Logger, msg string, args ...any) {
	l.Log(log, slog.LevelWarn, msg, args...)
}
