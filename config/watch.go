package config

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"meshrelay/internal/errlist"
	"meshrelay/internal/fswatch"
	"meshrelay/internal/text"
)

const (
	// writing is how long a file that is written in place must not have changed before it is
	// read, and longest bounds the wait for that: half of a list is as valid a config as all of it.
	writing = time.Second
	longest = 5 * time.Second
	// maxReasonBytes and maxReasons bound what is kept and logged of the mistakes in a file.
	maxReasonBytes = 2 << 10
	maxReasons     = 10
	// shownHash is how many digits of a hash tell one content of a file from another.
	shownHash = 12
)

// Watcher loads a config file, and loads it again when it has changed or somebody asks for
// that. Its methods may be called from any goroutine.
type Watcher struct {
	path    string
	sources []Source
	files   *fswatch.Watcher
	wake    chan struct{} // one slot: the file is to be loaded
	ended   chan struct{} // closed when Run has returned

	// Only Load and then Run use these. seen is the file at the last look, and loaded at the
	// last load that was applied as a whole: hashes of its content, or errors. retry tells that
	// the file is valid and could not be applied: files that it names may be late.
	seen, loaded string
	retry        bool
	running      *Config // as it was applied last
	told         func(ReloadStatus)

	mu     sync.Mutex     // guards all below
	asks   []chan<- error // each has room for one
	status ReloadStatus
}

// ReloadStatus is the state of a config file.
type ReloadStatus struct {
	// File is the absolute path of the file. Hash is the beginning of the SHA-256 of what was in it when
	// the config that is used was loaded.
	File string `json:"file,omitempty"`
	Hash string `json:"hash,omitempty"`
	// LastAttempt is when the file was last loaded, or should have been.
	LastAttempt time.Time `json:"lastAttempt,omitzero"`
	// LastSuccess is when the config that is used was loaded.
	LastSuccess time.Time `json:"lastSuccess,omitzero"`
	// Error is why the file is not loaded since FailingSince; empty if it is. Mistakes are its
	// parts, a line each.
	Error        string    `json:"error,omitempty"`
	Mistakes     []string  `json:"mistakes,omitempty"`
	FailingSince time.Time `json:"failingSince,omitzero"`
	// Changed is what the last load that was applied has changed, as Changes describes it.
	Changed []string `json:"changed,omitempty"`
	// NeedsRestart are the changed fields that only a restart applies.
	NeedsRestart []string `json:"needsRestart,omitempty"`
}

// Apply applies a config to a running relay, and returns the fields that need a restart, as
// Diff does. After an error, part of cfg may be applied, and Apply may be called again with the
// same config.
type Apply func(ctx context.Context, cfg *Config) (needsRestart []string, err error)

// NewWatcher returns a Watcher of the file at path, which it does not read yet. sources are as with
// Load.
func NewWatcher(path string, sources ...Source) *Watcher {
	return &Watcher{
		path: path, sources: sources, told: func(ReloadStatus) {}, wake: make(chan struct{}, 1), ended: make(chan struct{}),
		files: fswatch.New(fswatch.Options{Writing: writing, Longest: longest}),
	}
}

// Path returns the absolute path of the file.
func (w *Watcher) Path() string {
	if path, err := filepath.Abs(w.path); err == nil {
		return path
	}
	return w.path
}

// Load loads the file, as the function Load does. Run looks for changes from then on.
func (w *Watcher) Load() (*Config, error) {
	data, err := read(w.path)
	if err != nil {
		return nil, err
	}
	cfg, err := Parse(w.path, data, w.sources...)
	if err != nil {
		return nil, err
	}
	w.seen, w.running = hash(data), cfg
	w.succeeded(w.seen, ReloadStatus{})
	return cfg, nil
}

// Tell has f called with the state of the file after each load that somebody has asked for, or that
// has another result than the one before. It is called before Run.
func (w *Watcher) Tell(f func(ReloadStatus)) { w.told = f }

// Status returns the state of the file.
func (w *Watcher) Status() ReloadStatus {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.status
}

// Trigger has Run load the file, even if it has not changed. It does not wait.
func (w *Watcher) Trigger() {
	select {
	case w.wake <- struct{}{}:
	default: // Run is about to load it
	}
}

// Reload has Run load the file, even if it has not changed, and returns when it is applied, or
// why it is not.
func (w *Watcher) Reload(ctx context.Context) error {
	answer := make(chan error, 1)
	w.mu.Lock()
	w.asks = append(w.asks, answer)
	w.Trigger()
	w.mu.Unlock()
	select {
	case err := <-answer:
		return err
	case <-w.ended:
		return fmt.Errorf("reload of %s: the relay is shutting down", w.path)
	case <-ctx.Done():
		return fmt.Errorf("reload of %s: it takes longer and goes on: %w", w.path, ctx.Err())
	}
}

// Run follows the file until ctx ends, and then returns nil. It calls apply with each valid
// config, one at a time. It is called once.
func (w *Watcher) Run(ctx context.Context, log *slog.Logger, apply Apply) error {
	defer close(w.ended)
	defer w.files.Close()
	blind := w.watch(log, false)
	for soon := true; ; soon = false { // it may have changed since it was loaded
		woken, err := w.files.Wait(ctx, soon, w.wake)
		if err != nil {
			return nil //nolint:nilerr // the end was asked for
		}
		w.mu.Lock()
		asks := w.asks
		w.asks = nil
		select {
		case <-w.wake:
			woken = true
		default:
		}
		w.mu.Unlock()
		// It watches first and reads then, so that it misses no change in between.
		blind = w.watch(log, blind)
		err = w.reload(ctx, log, apply, woken)
		for _, answer := range asks {
			answer <- err
		}
	}
}

// watch watches the file, and reports whether it is blind to changes. It logs when it becomes
// blind.
func (w *Watcher) watch(log *slog.Logger, blind bool) bool {
	err := w.files.Watch(w.path)
	if err != nil && !blind {
		log.Warn("config file is polled, watching failed", "file", w.path, "every", w.files.Interval(), "err", err)
	}
	return err != nil
}

// reload reads the file, and applies it if it has changed, if it must, or if that failed before.
// It returns why the file is not loaded.
func (w *Watcher) reload(ctx context.Context, log *slog.Logger, apply Apply, must bool) error {
	data, err := read(w.path)
	now := ""
	if err != nil {
		now = err.Error()
	} else {
		now = hash(data)
	}
	same, back := now == w.seen && !w.retry, err == nil && now == w.loaded
	w.seen, w.retry = now, false
	switch {
	case same && !must:
		return nil
	case back && !must:
		st := w.Status()
		w.succeeded(now, ReloadStatus{LastSuccess: st.LastSuccess, Changed: st.Changed, NeedsRestart: st.NeedsRestart})
		log.Info("config file equals the loaded config again", "file", w.path)
		w.told(w.Status())
		return nil
	}
	var cfg *Config
	if err == nil {
		cfg, err = Parse(w.path, data, w.sources...)
	}
	var needsRestart []string
	if err == nil {
		w.loaded = "" // apply may do a part
		needsRestart, err = apply(ctx, cfg)
		w.retry = err != nil
	}
	if err != nil {
		if ctx.Err() != nil {
			return err // the relay is shutting down
		}
		mistakes := brief(err)
		if known := w.failed(mistakes); !known || must {
			log.Error("config not reloaded, previous config stays", "file", w.path, "err", strings.Join(mistakes, "; "))
			w.told(w.Status())
		}
		return err
	}
	var changed []string
	if w.running != nil { // nil without Load
		changed = Changes(w.running, cfg)
	}
	w.running = cfg
	w.succeeded(now, ReloadStatus{Changed: changed, NeedsRestart: needsRestart})
	log.Info("config reloaded", "file", w.path, "changed", strings.Join(changed, ", "))
	w.told(w.Status())
	if len(needsRestart) > 0 {
		log.Warn("changed config fields need a restart", "file", w.path, "fields", needsRestart)
	}
	return nil
}

// succeeded notes the state after a load of a file with that hash. Without LastSuccess, the file
// was applied now.
func (w *Watcher) succeeded(file string, st ReloadStatus) {
	w.loaded = file
	st.File, st.Hash = w.Path(), hex.EncodeToString([]byte(file))[:shownHash]
	w.mu.Lock()
	defer w.mu.Unlock()
	st.LastAttempt = time.Now()
	if st.LastSuccess.IsZero() {
		st.LastSuccess = st.LastAttempt
	}
	w.status = st
}

// failed notes why the file is not loaded, and reports whether that was known.
func (w *Watcher) failed(mistakes []string) (known bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	text := strings.Join(mistakes, "; ")
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
		line = text.Shorten(line, room)
		room -= len(line) + len("; ")
		lines = append(lines, line)
	}
	return lines
}
