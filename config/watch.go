package config

import (
	"context"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"meshrelay/internal/errlist"
)

const (
	// maxReasonBytes and maxReasons bound what is kept and logged of a config file's
	// mistakes.
	maxReasonBytes = 2 << 10
	maxReasons     = 10
)

// Watcher reads a config file, and reads it again when it has changed or somebody asks for
// that. Its methods may be called from any goroutine.
type Watcher struct {
	path    string
	asks    chan chan<- error // each has room for one
	trigger chan struct{}
	ended   chan struct{} // closed when Run has returned
	follow  follow

	mu     sync.Mutex
	status ReloadStatus
	// seen is what the file was when it was last looked at, and inForce what it was when it
	// was last taken over as a whole. They are hashes of its content, or errors.
	seen, inForce string
	// again says that what was seen last is right in itself and could not be taken over: what
	// it names may come yet.
	again bool
}

// ReloadStatus is what became of reading the config file.
type ReloadStatus struct {
	// LastAttempt is when the file was last read and found changed, or had to be read, or was
	// tried again because it could not be taken over.
	LastAttempt time.Time
	// LastSuccess is when the config that is in force was loaded.
	LastSuccess time.Time
	// Error is why the file is not loaded since FailingSince; empty if it is. Mistakes are its
	// parts, a line each.
	Error        string
	Mistakes     []string
	FailingSince time.Time
	// NeedsRestart are the fields that have changed and are taken over only when the relay
	// is started anew.
	NeedsRestart []string
}

// Apply makes a running relay take over a config, and returns the fields that need a restart,
// as Diff does. An error says that not all of cfg could be taken over; then it may be called
// with the same config again.
type Apply func(ctx context.Context, cfg *Config) (needsRestart []string, err error)

// NewWatcher returns a Watcher of the file at path, which it does not look at yet.
func NewWatcher(path string) *Watcher {
	return &Watcher{
		path: path, asks: make(chan chan<- error), trigger: make(chan struct{}, 1), ended: make(chan struct{}), follow: newFollow(path),
	}
}

// Load reads and checks the file, as the function Load does. Run looks for what differs from
// that.
func (w *Watcher) Load() (*Config, error) {
	data, err := read(w.path)
	if err != nil {
		return nil, err
	}
	cfg, err := Parse(w.path, data)
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seen = hash(data)
	w.inForce = w.seen
	now := time.Now()
	w.status = ReloadStatus{LastAttempt: now, LastSuccess: now}
	return cfg, nil
}

// Status returns what became of reading the file.
func (w *Watcher) Status() ReloadStatus {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.status
}

// Trigger has the file read, whether it has changed or not. It does not wait.
func (w *Watcher) Trigger() {
	select {
	case w.trigger <- struct{}{}:
	default: // it is about to be
	}
}

// Reload has the file read, whether it has changed or not, and returns when it is in force,
// or why it is not.
func (w *Watcher) Reload(ctx context.Context) error {
	answer := make(chan error, 1)
	select {
	case w.asks <- answer:
	case <-ctx.Done():
		return fmt.Errorf("reload of %s: another one is under way: %w", w.path, ctx.Err())
	case <-w.ended:
		return fmt.Errorf("reload of %s: the relay is shutting down", w.path)
	}
	select {
	case err := <-answer:
		return err
	case <-ctx.Done():
		return fmt.Errorf("reload of %s: it goes on, but takes longer: %w", w.path, ctx.Err())
	}
}

// Run follows the file until ctx ends, and then returns nil. What it finds it gives to apply,
// one config at a time, unless it can not be read or is wrong. It is called once.
func (w *Watcher) Run(ctx context.Context, log *slog.Logger, apply Apply) error {
	defer close(w.ended)
	defer w.follow.close()
	w.cover(log)
	for soon := true; ; soon = false { // it may have changed since it was loaded
		what, answer := w.follow.wait(ctx, soon, w.trigger, w.asks)
		if what == stopped {
			return nil
		}
		// Watched first and looked at then, no change falls between the two.
		w.cover(log)
		err := w.look(ctx, log, apply, what == asked)
		if answer != nil {
			answer <- err
		}
	}
}

func (w *Watcher) cover(log *slog.Logger) {
	if blind := w.follow.cover(); blind != nil {
		log.Warn("the config file is looked at now and then, as it can not be watched", "file", w.path, "every", w.follow.every(), "err", blind)
	}
}

// look reads the file, and has it taken over when it has changed, or must be, or could not be
// before. It returns why what is in the file is not in force.
func (w *Watcher) look(ctx context.Context, log *slog.Logger, apply Apply, must bool) error {
	data, err := read(w.path)
	what := ""
	if err != nil {
		what = err.Error()
	} else {
		what = hash(data)
	}
	w.mu.Lock()
	same, back := what == w.seen && !w.again, err == nil && what == w.inForce
	w.seen, w.again = what, false
	w.mu.Unlock()
	switch {
	case same && !must:
		return nil
	case back && !must:
		w.succeeded(what, w.Status().NeedsRestart, false)
		log.Info("the config file is what is in force again", "file", w.path)
		return nil
	}
	var cfg *Config
	if err == nil {
		cfg, err = Parse(w.path, data)
	}
	var needsRestart []string
	if err == nil {
		w.mu.Lock()
		w.inForce = "" // in part, from here on
		w.mu.Unlock()
		needsRestart, err = apply(ctx, cfg)
		w.mu.Lock()
		w.again = err != nil
		w.mu.Unlock()
	}
	if err != nil {
		if ctx.Err() != nil {
			return err // the relay is shutting down
		}
		mistakes := brief(err)
		text := strings.Join(mistakes, "; ")
		if w.failed(text, mistakes) && !must {
			return err // it has been said
		}
		log.Error("config not reloaded: what was in force stays so", "file", w.path, "err", text)
		return err
	}
	w.succeeded(what, needsRestart, true)
	log.Info("config reloaded", "file", w.path)
	if len(needsRestart) > 0 {
		log.Warn("some of what has changed in the config file is taken over only when the relay is started anew", "file", w.path, "fields", needsRestart)
	}
	return nil
}

func (w *Watcher) succeeded(what string, needsRestart []string, loaded bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.inForce = what
	now := time.Now()
	w.status = ReloadStatus{LastAttempt: now, LastSuccess: w.status.LastSuccess, NeedsRestart: needsRestart}
	if loaded {
		w.status.LastSuccess = now
	}
}

// failed notes why what is in the file is not in force, and reports whether that was known.
func (w *Watcher) failed(text string, mistakes []string) (known bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	known = w.status.Error == text
	w.status.LastAttempt = time.Now()
	w.status.Error, w.status.Mistakes = text, mistakes
	if w.status.FailingSince.IsZero() {
		w.status.FailingSince = w.status.LastAttempt
	}
	return known
}

func hash(data []byte) string {
	sum := sha256.Sum256(data)
	return string(sum[:])
}

// brief returns the parts of an error, a line each, of bounded number and length.
func brief(err error) (lines []string) {
	room := maxReasonBytes
	all := errlist.Lines(err)
	for i, line := range all {
		if i == maxReasons || room <= 0 {
			return append(lines, fmt.Sprintf("and %d more", len(all)-i))
		}
		if len(line) > room {
			line = strings.ToValidUTF8(line[:room], "") + "…"
		}
		room -= len(line) + len("; ")
		lines = append(lines, line)
	}
	return lines
}
