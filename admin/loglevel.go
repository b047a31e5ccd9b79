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

// maxLevelFor is the longest time for which a log level may be set. It protects against forgotten levels.
const maxLevelFor = 24 * time.Hour

// logLevel is the log level of the process. An operator may set it for a time.
type logLevel struct {
	level *slog.LevelVar
	log   *slog.Logger

	mu    sync.Mutex // guards the fields below
	set   slog.Level // the level until the time until
	after slog.Level // the level from then on
	until time.Time  // zero: the level was set without end
}

// Set sets the level, for the duration lasts unless it is 0.
func (l *logLevel) Set(level slog.Level, lasts time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.until.IsZero() || l.level.Level() != l.set { // otherwise after still has the level to return to
		l.after = l.level.Level()
	}
	l.set, l.until = level, time.Time{}
	if lasts > 0 {
		until := time.Now().Add(lasts)
		l.until = until
		time.AfterFunc(lasts, func() { l.restore(until) })
	}
	l.level.Set(level)
}

// restore restores the previous level, unless the end has been set anew, or a reload has set another level.
func (l *logLevel) restore(until time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.until.Equal(until) {
		return
	}
	l.until = time.Time{}
	if l.level.Level() == l.set {
		l.level.Set(l.after)
		l.log.Log(context.Background(), max(l.after, slog.LevelInfo), "log level restored", "level", strings.ToLower(l.after.String()))
	}
}

// String returns the level, with its end and the next level if it was set for a time.
func (l *logLevel) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	text := strings.ToLower(l.level.Level().String())
	if !l.until.IsZero() && l.level.Level() == l.set {
		text += fmt.Sprintf(" until %s, then %s", l.until.UTC().Format(time.RFC3339), strings.ToLower(l.after.String()))
	}
	return text
}

func (s *Server) logLevel(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", textType)
	fmt.Fprintln(w, s.level)
}

func (s *Server) setLogLevel(w http.ResponseWriter, r *http.Request, o *order) (any, error) {
	name, text := strings.ToLower(r.FormValue("level")), r.FormValue("for")
	var level slog.Level
	if !slices.Contains([]string{"debug", "info", "warn", "error"}, name) || level.UnmarshalText([]byte(name)) != nil {
		return nil, badRequestf("level is %q: want debug, info, warn or error, for example PUT /debug/loglevel?level=debug", name)
	}
	var lasts time.Duration
	if text != "" {
		var err error
		if lasts, err = time.ParseDuration(text); err != nil || lasts <= 0 || lasts > maxLevelFor {
			return nil, badRequestf("for is %.32q: want a duration up to %v, such as 10m or 2h", text, maxLevelFor)
		}
	}
	o.before = s.level.String()
	s.level.Set(level, lasts)
	o.after = s.level.String()
	s.logLevel(w, r)
	return nil, nil
}
