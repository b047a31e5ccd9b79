package admin

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// maxLevelFor bounds for how long a log level may be set: an operator forgets it.
const maxLevelFor = 24 * time.Hour

// logLevel is the log level of the process. An operator may set it for a time.
type logLevel struct {
	level   *slog.LevelVar
	changed chan struct{} // one slot

	mu    sync.Mutex // guards what follows
	set   slog.Level // until the time is over
	after slog.Level // what the level is then
	until time.Time  // zero: it was not set for a time
}

// Set sets the level, for a time when that is not 0.
func (l *logLevel) Set(level slog.Level, lasts time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.until.IsZero() || l.level.Level() != l.set { // else the time is another one, and its end the same
		l.after = l.level.Level()
	}
	l.set, l.until = level, time.Time{}
	if lasts > 0 {
		l.until = time.Now().Add(lasts)
	}
	l.level.Set(level)
	select {
	case l.changed <- struct{}{}:
	default:
	}
}

// String returns the level, and what it becomes.
func (l *logLevel) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	text := strings.ToLower(l.level.Level().String())
	if !l.until.IsZero() && l.level.Level() == l.set {
		text += fmt.Sprintf(" until %s, then %s", l.until.UTC().Format(time.RFC3339), strings.ToLower(l.after.String()))
	}
	return text
}

// run sets levels back when their time is over, until ctx ends.
func (l *logLevel) run(ctx context.Context, log *slog.Logger) error {
	for {
		var over <-chan time.Time
		if left, ok := l.left(ctx, log); ok {
			over = time.After(left)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-l.changed:
		case <-over:
		}
	}
}

// left returns how long the level stays, false for without an end. It sets back a level whose time is over,
// unless a reload has set another one since.
func (l *logLevel) left(ctx context.Context, log *slog.Logger) (time.Duration, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.until.IsZero() {
		return 0, false
	}
	if left := time.Until(l.until); left > 0 {
		return left, true
	}
	l.until = time.Time{}
	if l.level.Level() == l.set {
		l.level.Set(l.after)
		log.Log(ctx, max(l.after, slog.LevelInfo), "log level set back", "level", strings.ToLower(l.after.String()))
	}
	return 0, false
}

func (s *Server) logLevel(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", textType)
	fmt.Fprintln(w, s.level)
}

func (s *Server) setLogLevel(w http.ResponseWriter, r *http.Request) {
	name, text := strings.ToLower(r.FormValue("level")), r.FormValue("for")
	var level slog.Level
	if !slices.Contains([]string{"debug", "info", "warn", "error"}, name) || level.UnmarshalText([]byte(name)) != nil {
		s.refuse(w, r, badRequestf("level is %q: want debug, info, warn or error, as in PUT /debug/loglevel?level=debug", name))
		return
	}
	attrs := []any{"level", name}
	var lasts time.Duration
	if text != "" {
		var err error
		if lasts, err = time.ParseDuration(text); err != nil || lasts <= 0 || lasts > maxLevelFor {
			s.refuse(w, r, badRequestf("for is %.32q: want a duration up to %v, as in 10m or 2h", text, maxLevelFor))
			return
		}
		attrs = append(attrs, "for", lasts)
	}
	old := s.deps.LogLevel.Level()
	s.level.Set(level, lasts)
	s.recordOrder(r, "log-level", nil, attrs)
	s.audit(r, max(level, old), "log-level", attrs...)
	s.logLevel(w, r)
}
