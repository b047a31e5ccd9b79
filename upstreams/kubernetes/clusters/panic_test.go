package clusters

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
)

// brittleLog is a log that panics once over a message.
type brittleLog struct {
	slog.Handler
	mu      *sync.Mutex
	message string
	left    *int
}

func (l brittleLog) WithAttrs(a []slog.Attr) slog.Handler {
	return brittleLog{l.Handler.WithAttrs(a), l.mu, l.message, l.left}
}

func (l brittleLog) Handle(ctx context.Context, r slog.Record) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r.Message == l.message && *l.left > 0 {
		*l.left--
		panic("injected")
	}
	return l.Handler.Handle(ctx, r)
}

// TestAPanicOfAReaderIsAFailureOfItsClusters: they stay, and are read again.
func TestAPanicOfAReaderIsAFailureOfItsClusters(t *testing.T) {
	h, dir := newHub(t), t.TempDir()
	h.secret("one", map[string][]byte{"east": h.kubeconfig("east")})
	var mu sync.Mutex
	var logged bytes.Buffer
	left := 1
	f := &found{t: t}
	f.Finder, _ = New("", slog.New(brittleLog{slog.NewTextHandler(&logged, nil), &mu, "cluster has another kubeconfig", &left}))
	f.pace = quick
	f.Adopt(h.parse(dir, fleet))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx) }()
	f.has("east found")
	h.secret("one", map[string][]byte{"east": h.kubeconfig("rotated")})
	f.until("it has panicked over east", func() bool { mu.Lock(); defer mu.Unlock(); return left == 0 })
	h.secret("two", map[string][]byte{"west": h.kubeconfig("west")})
	f.has("east found", "west found")
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if text := logged.String(); strings.Count(text, `msg="source failed"`) != 1 || strings.Count(text, "stack=") != 1 || !strings.Contains(text, "clusters=fleet") {
		t.Errorf("the log: %s", text)
	}
}
