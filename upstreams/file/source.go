// Package file reads the resources of a file, or of a directory of files, of Kubernetes-style YAML.
//
// It owns how files are found, watched and read. The package depends neither on what is served of
// them nor on other upstreams.
package file

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	"golang.org/x/sync/semaphore"

	"meshrelay/config"
	"meshrelay/internal/fswatch"
	"meshrelay/internal/loglimit"
	"meshrelay/mirror"
	"meshrelay/upstreams"
	"meshrelay/upstreams/intake"
	"meshrelay/upstreams/intake/records"
)

// Kind returns the kind of source for files. All its sources share one limit for large files and
// one for helper goroutines.
func Kind() upstreams.Kind {
	turn, helpers := semaphore.NewWeighted(maxReading), newHelpers()
	return upstreams.Kind{
		Config: &Config{},
		New: func(u config.Upstream, env upstreams.Env) (upstreams.Source, error) {
			s := New(u, env)
			s.scanner.turn, s.scanner.helpers = turn, helpers
			return s, nil
		},
		Read: look,
	}
}

const maxRefused = 100 // refusals in a status

// Source reads a file, or a directory of files.
type Source struct {
	upstreams.Plain
	path string // absolute
	log  *slog.Logger
	// complaints limits the log lines about files.
	complaints *loglimit.Limit
	// wake has an element when the feed has asked for a repetition.
	wake chan struct{}

	// Only Run, or the caller of Read, uses these.
	scanner *scanner
	refused []records.Refusal // in the last reading
	// repeating: the feed waits for a reading of all files.
	repeating bool
	blind     error // why the files are polled, nil if they are watched
	// taken: the feed has accepted everything, so that an unchanged reading is not fed again.
	taken bool

	mu sync.Mutex       // guards st
	st upstreams.Status // its refusals are about files, not those of the feed
}

// New returns a source that has not read anything yet. It waits for a path that does not exist.
func New(cfg config.Upstream, env upstreams.Env) *Source {
	path := pathOf(cfg)
	if abs, err := filepath.Abs(path); err == nil {
		path = abs
	}
	return &Source{
		path: path, log: env.Log, complaints: loglimit.New(maxRefused, time.Second), wake: make(chan struct{}, 1), scanner: newScanner(cfg.Name),
		st: upstreams.Status{State: upstreams.StateConnecting, Since: time.Now(), Address: pathOf(cfg)},
	}
}

// Run implements upstreams.Source: it reads the path now and after each change. It retries a path
// that can not be read; the last content stays.
func (s *Source) Run(ctx context.Context, feed upstreams.Feed) error {
	pause := &backoff.ExponentialBackOff{InitialInterval: 200 * time.Millisecond, MaxInterval: 15 * time.Second, RandomizationFactor: 0.1, Multiplier: 1.5}
	pause.Reset()
	for {
		err := s.follow(ctx, feed, pause.Reset)
		if ctx.Err() != nil {
			return nil //nolint:nilerr // the end was asked for
		}
		s.fail(feed, err)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause.NextBackOff()):
		}
	}
}

// follow reads and watches until the path can not be read, or ctx ends. It calls good after each
// reading. Each call starts a new watch, because the path may lead elsewhere.
func (s *Source) follow(ctx context.Context, feed upstreams.Feed, good func()) error {
	w := fswatch.New(fswatch.Options{})
	defer w.Close()
	for {
		// Watch first, so that changes during the reading are noticed.
		found, err := listFiles(s.path)
		if err != nil {
			return err
		}
		found.close()
		blind := w.Watch(s.path, slices.Collect(maps.Keys(found.dirs))...)
		if blind != nil {
			blind = fmt.Errorf("files are read every %v, as they can not be watched: %w", w.Interval(), blind)
		}
		if err := s.read(feed, blind); err != nil {
			return err
		}
		good()
		woken, err := w.Wait(ctx, s.scanner.busy, s.wake)
		if err != nil {
			return nil // ctx has ended
		}
		s.repeating = s.repeating || woken
	}
}

// Repeat implements upstreams.Source.
func (s *Source) Repeat() (repeats bool) {
	s.Resync()
	return true
}

// Resync implements upstreams.Source.
func (s *Source) Resync() { mirror.Signal(s.wake) }

// Read reads the path once. It returns an error if the path can not be read.
func (s *Source) Read(feed upstreams.Feed) error {
	err := s.read(feed, nil)
	if err != nil {
		s.fail(feed, err)
	}
	return err
}

// read reads the path and feeds its content. blind is why the files are polled, or nil.
func (s *Source) read(feed upstreams.Feed, blind error) error {
	select {
	case <-s.wake:
		s.repeating = true
	default:
	}
	if err := s.scanner.scan(s.path); err != nil {
		return err
	}
	if s.taken && !s.scanner.changed && !s.repeating && fmt.Sprint(blind) == fmt.Sprint(s.blind) {
		return nil
	}
	s.blind = blind
	s.feed(feed, blind)
	// A file that is broken, or that is being written, may still contain resources that seem deleted. Then
	// the next reading counts as the repetition.
	if s.repeating && s.scanner.clean() {
		s.repeating = false
		feed.Tell(intake.Repeated{})
	}
	return nil
}

// feed feeds the content of all files, and logs their problems.
func (s *Source) feed(feed upstreams.Feed, blind error) {
	merged, problems, total := s.scanner.merge()
	result := feed.Tell(intake.Received{
		Updates: updates(merged), Live: true, Unsure: !s.scanner.clean(), More: s.scanner.busy,
	})
	s.taken = s.scanner.clean() && result.RefusedTotal == 0 && !result.Unread && !result.Relist
	s.logRefused(slices.Concat(problems, result.Refused))

	s.mu.Lock()
	defer s.mu.Unlock()
	st := &s.st
	st.Refused, st.RefusedTotal = problems, total
	if st.State == upstreams.StateFailed {
		s.log.Info("path readable again", "path", s.path)
	}
	before := st.LastError
	if st.LastError = ""; blind != nil {
		if st.LastError = blind.Error(); st.LastError != before {
			s.log.Warn("path is polled, watching failed", "path", s.path, "err", blind)
		}
	}
	if changes := result.Changed + result.Gone; changes > 0 || st.State == upstreams.StateConnecting {
		s.log.Info("files read", "path", s.path, "resources", len(merged), "changes", changes, "refused", total+result.RefusedTotal)
	}
	s.st.Enter(upstreams.StateSynced)
}

// updates returns one complete update for each kind, sorted.
func updates(merged map[mirror.Key]*mirror.Resource) (out []records.Update) {
	for all := sorted(merged); len(all) > 0; {
		kind, n := all[0].Kind(), 1
		for n < len(all) && all[n].Kind() == kind {
			n++
		}
		out = append(out, records.Update{Scope: records.KindScope(kind), Complete: true, Room: n, Elements: records.Resources(all[:n]...)})
		all = all[n:]
	}
	return out
}

// logRefused logs new refusals.
func (s *Source) logRefused(refused []records.Refusal) {
	for _, r := range refused {
		if !slices.Contains(s.refused, r) {
			s.complaints.Warn(s.log, "refused", "resource", r.Resource, "err", r.Reason)
		}
	}
	if len(refused) == 0 && len(s.refused) > 0 {
		s.log.Info("no resources refused", "path", s.path)
	}
	s.refused = refused
}

// fail reports that the path can not be read.
func (s *Source) fail(feed upstreams.Feed, err error) {
	s.taken = false
	feed.Tell(intake.Closed{Reason: err.Error(), Failed: true})
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.st.LastError != err.Error() {
		s.log.Warn("path not readable, last content served", "path", s.path, "err", err)
	}
	s.st.LastError = err.Error()
	s.st.Enter(upstreams.StateFailed)
}

// Describe implements upstreams.Source.
func (s *Source) Describe(st *upstreams.Status) {
	s.mu.Lock()
	defer s.mu.Unlock()
	st.State, st.Since, st.Address, st.LastError = s.st.State, s.st.Since, s.st.Address, s.st.LastError
	st.Refused = slices.Concat(s.st.Refused, st.Refused)
	st.Refused = st.Refused[:min(len(st.Refused), maxRefused)]
	st.RefusedTotal += s.st.RefusedTotal
}
