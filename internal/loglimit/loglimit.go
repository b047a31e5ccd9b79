// Package loglimit bounds the rate of log lines that clients, upstreams or files cause. It must not know
// the text of the lines.
package loglimit

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
)

// Limit bounds the rate of log lines, and counts those that it drops. It is safe for concurrent use.
type Limit struct {
	limiter *rate.Limiter
	silent  atomic.Int64
}

// New returns a Limit for burst lines at once, and then one line per every.
func New(burst int, every time.Duration) *Limit {
	return &Limit{limiter: rate.NewLimiter(rate.Every(every), burst)}
}

// Log logs a line unless the limit is reached. The next line has the number of dropped lines in the key
// unlogged.
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

// Warn calls Log with level warn.
func (l *Limit) Warn(log *slog.Logger, msg string, args ...any) {
	l.Log(log, slog.LevelWarn, msg, args...)
}
