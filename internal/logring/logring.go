// Package logring keeps the last lines of a log in memory. It keeps lines of level debug even when the
// log itself does not.
//
// The package must not know the content of the lines.
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
	// maxLines and maxBytes bound a Ring. maxLine bounds a line, in bytes.
	maxLines = 5000
	maxBytes = 2 << 20
	maxLine  = 2 << 10
	// MaxDebug is the most lines of level debug that a Ring takes in a second. More lines are not even
	// formatted: a push to ten thousand clients would log a line for each.
	MaxDebug = 100
)

// Ring has the last lines of a log. The zero value is an empty Ring. It is safe for concurrent use.
type Ring struct {
	// second is the current second, and debug the number of lines of level debug in it.
	second, debug atomic.Int64

	mu    sync.Mutex // guards all below
	lines []string   // a ring buffer of maxLines elements; nil before the first line
	first int        // the index of the oldest line
	n     int        // the number of lines
	bytes int        // the size of all lines
}

// Write adds one line. It implements io.Writer, and never fails.
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

// room reports whether a line of a level is kept now. With take, it counts the line.
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

// Handler returns a handler that writes each record to the ring, and to next if its level is enabled there.
func (r *Ring) Handler(next slog.Handler) slog.Handler {
	return &handler{r, slog.LevelDebug, next, slog.NewTextHandler(r, &slog.HandlerOptions{Level: slog.LevelDebug})}
}

// WithoutDebug returns h without the records of level debug in its ring. A handler that is not from
// Ring.Handler is returned as it is. It is for parts that log a debug line for each client in each push.
func WithoutDebug(h slog.Handler) slog.Handler {
	if of, ok := h.(*handler); ok {
		return &handler{of.ring, slog.LevelInfo, of.next, of.keep}
	}
	return h
}

type handler struct {
	ring       *Ring
	least      slog.Level // the lowest level that the ring keeps
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
