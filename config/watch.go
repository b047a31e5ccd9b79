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
	"meshrelay/mirror"
)

const (
	// Run reads the file when it was not written for the time writing, because half of a file may be a valid
	// config, too. It reads the file at the latest when longest has passed since the first change.
	writing = time.Second
	longest = 5 * time.Second
	// maxReasonBytes and maxReasons limit the text kept and logged about mistakes in a file.
	maxReasonBytes = 2 << 10
	maxReasons     = 10
	// shownHash is the number of shown digits of a file's hash.
	shownHash = 12
)

// Watcher loads a config file, and loads it again when it changes or on request. Its methods may
// be called from any goroutine.
type Watcher struct {
	path    string
	sources []Source
	files   *fswatch.Watcher
	wake    chan struct{} // one slot: a request to load the file
	ended   chan struct{} // closed when Run has returned

	// Only Load, and after it Run, use these. seen is the hash or the error of the last read, and
	// loaded the hash of the last content that was fully applied. retry is set if the file is valid
	// but was not applied: files that it names may come later.
	seen, loaded string
	retry        bool
	running      *Config // last applied
	told         func(ReloadStatus)

	mu     sync.Mutex     // guards all below
	asks   []chan<- error // each has room for one
	status ReloadStatus
}

// ReloadStatus is the state of a config file.
type ReloadStatus struct {
	// File is the absolute path of the file. Hash is the beginning of the SHA-256 of the content
	// that is in use.
	File string `json:"file,omitempty"`
	Hash string `json:"hash,omitempty"`
	// LastAttempt is the time of the last load, successful or not.
	LastAttempt time.Time `json:"lastAttempt,omitzero"`
	// LastSuccess is when the config in use was loaded.
	LastSuccess time.Time `json:"lastSuccess,omitzero"`
	// Error is why the file has not been loaded since FailingSince, or empty. Mistakes are the parts of
	// Error, one line each.
	Error        string    `json:"error,omitempty"`
	Mistakes     []string  `json:"mistakes,omitempty"`
	FailingSince time.Time `json:"failingSince,omitzero"`
	// Changed lists the changes of the last applied load, as Changes returns them.
	Changed []string `json:"changed,omitempty"`
	// NeedsRestart are the changed fields that only a restart applies.
	NeedsRestart []string `json:"needsRestart,omitempty"`
}

// Text describes the state in one line: the content in use, and the result of the last load.
func (s ReloadStatus) Text() string {
	text := "hash " + s.Hash
	if len(s.Changed) > 0 {
		text += ", changed: " + strings.Join(s.Changed, ", ")
	}
	if len(s.NeedsRestart) > 0 {
		text += ", needs a restart: " + strings.Join(s.NeedsRestart, ", ")
	}
	if s.Error != "" {
		text += ", the file is not loaded: " + s.Error
	}
	return text
}

// Apply applies a config to a running relay, and returns the fields that need a restart (see
// Diff). After an error, part of cfg may be applied, and Apply may be called again with the
// same config.
type Apply func(ctx context.Context, cfg *Config) (needsRestart []string, err error)

// NewWatcher returns a Watcher of the file at path. It does not read the file. sources are those of
// Load.
func NewWatcher(path string, sources ...Source) *Watcher {
	return &Watcher{
		path: path, sources: sources, told: func(ReloadStatus) {}, wake: make(chan struct{}, 1), ended: make(chan struct{}),
		files: fswatch.New(fswatch.Options{Writing: writing, Longest: longest}),
	}
}

// Path returns the absolute path of the file.
func (w *Watcher) Path() string {
	return absolute(w.path)
}

// Parse parses a text as what the file may become.
func (w *Watcher) Parse(text []byte) (*Config, error) {
	return Parse(filepath.Join(filepath.Dir(w.path), "the planned config"), text, w.sources...)
}

// Load loads the file as the function Load does. Run then looks for later changes.
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

// Tell sets the function that Run calls with the state of the file, after each load that was
// requested or that has a new result. Call Tell before Run.
func (w *Watcher) Tell(f func(ReloadStatus)) { w.told = f }

// Status returns the state of the file.
func (w *Watcher) Status() ReloadStatus {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.status
}

// Trigger makes Run load the file, even if it has not changed. Trigger does not wait.
func (w *Watcher) Trigger() { mirror.Signal(w.wake) }

// Reload makes Run load the file, even if it has not changed. It waits, and returns nil if the
// config is applied.
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
		return fmt.Errorf("reload of %s has not finished and goes on: %w", w.path, ctx.Err())
	}
}

// Run follows the file until ctx ends, and then returns nil. It calls apply with each valid
// config, never concurrently. Call Run once.
func (w *Watcher) Run(ctx context.Context, log *slog.Logger, apply Apply) error {
	defer close(w.ended)
	defer w.files.Close()
	blind := w.watch(log, false)
	for soon := true; ; soon = false { // the file may have changed since Load
		woken, err := w.files.Wait(ctx, soon, w.wake)
		if err != nil {
			return nil // the end was asked for
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
		// Watch before reading, to miss no change in between.
		blind = w.watch(log, blind)
		err = w.reload(ctx, log, apply, woken)
		for _, answer := range asks {
			answer <- err
		}
	}
}

// watch watches the file. It reports whether watching failed, and logs the first failure.
func (w *Watcher) watch(log *slog.Logger, blind bool) bool {
	err := w.files.Watch(w.path)
	if err != nil && !blind {
		log.Warn("config file is polled, watching failed", "file", w.path, "every", w.files.Interval(), "err", err)
	}
	return err != nil
}

// reload reads the file, and applies it if it has changed, if must is set, or if applying failed before. The
// error is why the file is not loaded.
func (w *Watcher) reload(ctx context.Context, log *slog.Logger, apply Apply, must bool) error {
	data, err := read(w.path)
	now := hash(data)
	if err != nil {
		now = err.Error()
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
		w.loaded = "" // apply may apply a part
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
	if w.running != nil { // nil if Load was not called
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

// succeeded records the state after a load of a file with that hash. Without LastSuccess, it sets
// the current time.
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

// failed records the mistakes in the file, and reports whether the last load had the same ones.
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

// brief returns one line for each part of an error. It limits the number and length of lines.
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
