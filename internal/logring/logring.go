// Package logring keeps the last lines of a log, those of level debug too, whatever the level of the
// log is.
//
// The package must not know what the lines tell, nor who reads them.
package logring

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// maxLines and maxBytes bound what a Ring keeps, and maxLine each line, in bytes.
	maxLines = 5000
	maxBytes = 2 << 20
	maxLine  = 2 << 10
	// MaxDebug is how many lines of level debug a Ring takes a second. Others are not made at all:
	// a push to ten thousand clients has a line for each.
	MaxDebug = 100
)

// Ring has the last lines of a log. The zero value is empty. Any goroutine may call its methods.
type Ring struct {
	// second is the present one, and debug the lines of level debug in it.
	second, debug atomic.Int64

	mu    sync.Mutex // guards all below
	lines []string   // a ring of maxLines places, nil before the first line
	first int        // the place of the oldest line
	n     int        // lines there are
	bytes int        // of them
}

// Write takes one line. It implements io.Writer, and never fails.
func (r *Ring) Write(b []byte) (int, error) {
	line := string(b)
	if len(b) > maxLine {
		line = string(b[:maxLine]) + "…\n"
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.lines == nil {
		r.lines = make([]string, maxLines)
	}
	for r.n == maxLines || r.bytes+len(line) > maxBytes {
		r.bytes -= len(r.lines[r.first])
		r.lines[r.first] = ""
		r.first, r.n = (r.first+1)%maxLines, r.n-1
	}
	r.lines[(r.first+r.n)%maxLines] = line
	r.n, r.bytes = r.n+1, r.bytes+len(line)
	return len(b), nil
}

// WriteTo writes the lines to w, the oldest first. It implements io.WriterTo.
func (r *Ring) WriteTo(w io.Writer) (n int64, err error) {
	r.mu.Lock()
	all := make([]string, r.n)
	for i := range all {
		all[i] = r.lines[(r.first+i)%maxLines]
	}
	r.mu.Unlock()
	for _, line := range all {
		k, err := io.WriteString(w, line)
		n += int64(k)
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

// room reports whether a line of a level would be taken now, and with take takes its place.
func (r *Ring) room(level slog.Level, take bool) bool {
	if level >= slog.LevelInfo {
		return true
	}
	now := time.Now().Unix()
	if r.second.Swap(now) != now {
		r.debug.Store(0)
	}
	if !take {
		return r.debug.Load() < MaxDebug
	}
	return r.debug.Add(1) <= MaxDebug
}

// Handler returns a handler that has the ring keep each record, and passes those on that next wants.
func (r *Ring) Handler(next slog.Handler) slog.Handler {
	return &handler{r, slog.LevelDebug, next, slog.NewTextHandler(r, &slog.HandlerOptions{Level: slog.LevelDebug})}
}

// WithoutDebug returns a handler that has its ring keep no record of level debug, when h is one of a
// Ring, else h. It is for parts that log something for each client of each push: no line is made of
// that then, unless the log itself has level debug.
func WithoutDebug(h slog.Handler) slog.Handler {
	if of, ok := h.(*handler); ok {
		return &handler{of.ring, slog.LevelInfo, of.next, of.keep}
	}
	return h
}

type handler struct {
	ring       *Ring
	least      slog.Level // that the ring keeps
	next, keep slog.Handler
}

// Enabled implements slog.Handler.
func (h *handler) Enabled(ctx context.Context, level slog.Level) bool {
	return h.next.Enabled(ctx, level) || level >= h.least && h.ring.room(level, false)
}

// Handle implements slog.Handler.
func (h *handler) Handle(ctx context.Context, record slog.Record) (err error) {
	if h.next.Enabled(ctx, record.Level) {
		err = h.next.Handle(ctx, record)
	}
	if record.Level >= h.least && h.ring.room(record.Level, true) {
		err = errors.Join(err, h.keep.Handle(ctx, record))
	}
	return err
}

// WithAttrs implements slog.Handler.
func (h *handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &handler{h.ring, h.least, h.next.WithAttrs(attrs), h.keep.WithAttrs(attrs)}
}

// WithGroup implements slog.Handler.
func (h *handler) WithGroup(name string) slog.Handler {
	return &handler{h.ring, h.least, h.next.WithGroup(name), h.keep.WithGroup(name)}
}
